package tensor

import "golang.org/x/sys/cpu"

// kernelSets lists the sets that this machine can run, the best first.
func kernelSets() []*kernelSet {
	var sets []*kernelSet
	if cpu.ARM64.HasASIMDDP {
		ks := &kernelSet{name: "neon", tile: 4, quantize: quantizeWith(quantizeNEON)}
		fillNEON(ks)
		sets = append(sets, ks)
	}
	return append(sets, generic())
}

//go:noescape
func quantizeNEON(x *float32, blocks int, dst *byte, stride int)

// whyNot says why this machine lacks a kernel set that it might have, and whether its owner should be told unasked.
func whyNot(string) (why error, tell bool) { return nil, false }
