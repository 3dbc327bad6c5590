package tensor

import "golang.org/x/sys/cpu"

// kernelSets lists the sets that this machine can run, the best first.
func kernelSets() []*kernelSet {
	var sets []*kernelSet
	x := cpu.X86
	avx2 := x.HasAVX2 && x.HasFMA && x.HasF16C
	if a := amxOfThisProcess(); a.set != nil {
		sets = append(sets, a.set)
	}
	if hasAVX512() {
		sets = append(sets, avx512())
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

func hasAVX512() bool {
	x := cpu.X86
	return x.HasAVX2 && x.HasFMA && x.HasF16C && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512DQ && x.HasAVX512VNNI
}

func avx512() *kernelSet {
	ks := &kernelSet{name: "avx512", tile: 6, few: 8, quantize: quantizeWith(quantizeAVX512)}
	fillAVX512(ks)
	return ks
}

func avxVNNI() *kernelSet {
	ks := &kernelSet{name: "avxvnni", tile: 3, quantize: quantizeWith(quantizeAVX2)}
	fillAVXVNNI(ks)
	return ks
}
