package vec

import "golang.org/x/sys/cpu"

func sets() []Kernels {
	k := Kernels{
		Name:       "neon",
		sumSquares: func(x []float32) float32 { return sumSquaresNEON(p(x), len(x)) },
		scaleMul:   func(dst, x, w []float32, s float32) { scaleMulNEON(p(dst), p(x), p(w), len(x), s) },
		add:        func(dst, x []float32) { addNEON(p(dst), p(x), len(x)) },
		scale:      func(x []float32, s float32) { scaleNEON(p(x), len(x), s) },
		scaleAdd:   func(dst, x []float32, s float32, y []float32) { scaleAddNEON(p(dst), p(x), p(y), len(x), s) },
		siluMul:    func(dst, gate, up []float32) { siluMulNEON(p(dst), p(gate), p(up), len(gate)) },
		maximum:    func(x []float32) float32 { return maximumNEON(p(x), len(x)) },
		expSum:     func(x []float32, shift float32) float32 { return expSumNEON(p(x), len(x), shift) },
		ropePairs:  func(x, cos, sin []float32) { ropePairsNEON(p(x), p(cos), p(sin), len(cos)) },
		ropeHalves: func(x, cos, sin []float32) { ropeHalvesNEON(p(x), p(cos), p(sin), len(cos)) },
	}
	k.attendNEON()
	// Nothing here needs them; but the matrices' kernels of this name do, and an engine uses both.
	if !cpu.ARM64.HasASIMDDP {
		k.unavailable = "this CPU lacks the dot products of ARMv8.2"
	}
	const none = "only amd64 builds have them"
	return []Kernels{k, {Name: "avx512", unavailable: none}, {Name: "avx2", unavailable: none}, twin()}
}

// All counts are of float32 and multiples of 16 (ropes: of 8 pairs).

//go:noescape
func sumSquaresNEON(x *float32, n int) float32

//go:noescape
func scaleMulNEON(dst, x, w *float32, n int, s float32)

//go:noescape
func scaleAddNEON(dst, x, y *float32, n int, s float32)

//go:noescape
func addNEON(dst, x *float32, n int)

//go:noescape
func scaleNEON(x *float32, n int, s float32)

//go:noescape
func siluMulNEON(dst, gate, up *float32, n int)

//go:noescape
func maximumNEON(x *float32, n int) float32

//go:noescape
func expSumNEON(x *float32, n int, shift float32) float32

//go:noescape
func ropePairsNEON(x, cos, sin *float32, pairs int)

//go:noescape
func ropeHalvesNEON(x, cos, sin *float32, pairs int)
