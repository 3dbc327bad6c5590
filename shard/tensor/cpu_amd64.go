package tensor

import "golang.org/x/sys/cpu"

//go:generate go run ./gen

// kernelSets lists the sets that this machine can run, the best first.
func kernelSets() []*kernelSet {
	var sets []*kernelSet
	x := cpu.X86
	avx2 := x.HasAVX2 && x.HasFMA && x.HasF16C
	if avx2 && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512DQ && x.HasAVX512VNNI {
		ks := &kernelSet{name: "avx512", tile: 6, quantize: quantizeWith(quantizeAVX512)}
		fillAVX512(ks)
		sets = append(sets, ks)
	}
	if avx2 && x.HasAVXVNNI { // not so on CPUs that have only AVX-512's encoding of it
		sets = append(sets, avxVNNI())
	}
	if avx2 {
		ks := &kernelSet{name: "avx2", tile: 2, quantize: quantizeWith(quantizeAVX2)}
		fillAVX2(ks)
		sets = append(sets, ks)
	}
	return append(sets, generic())
}

func avxVNNI() *kernelSet {
	ks := &kernelSet{name: "avxvnni", tile: 3, quantize: quantizeWith(quantizeAVX2)}
	fillAVXVNNI(ks)
	return ks
}

// quantizeWith wraps an assembly quantizer of blocks blocks at x, whose fields go to dst, stride bytes apart.
func quantizeWith(asm func(x *float32, blocks int, dst *byte, stride int)) func(x []float32, dst []byte, rows, r int) {
	return func(x []float32, dst []byte, rows, r int) {
		blocks := len(x) / blockValues
		if len(dst) < blocks*rows*actBlockBytes || r >= rows {
			panic("tensor: an activation tile is too short")
		}
		if blocks > 0 {
			asm(&x[0], blocks, &dst[4*r], 4*rows)
		}
	}
}
