package vec

import "golang.org/x/sys/cpu"

func sets() []Kernels {
	two := Kernels{
		Name:       "avx2",
		sumSquares: func(x []float32) float32 { return sumSquaresAVX2(p(x), len(x)) },
		scaleMul:   func(dst, x, w []float32, s float32) { scaleMulAVX2(p(dst), p(x), p(w), len(x), s) },
		add:        func(dst, x []float32) { addAVX2(p(dst), p(x), len(x)) },
		scale:      func(x []float32, s float32) { scaleAVX2(p(x), len(x), s) },
		scaleAdd:   func(dst, x []float32, s float32, y []float32) { scaleAddAVX2(p(dst), p(x), p(y), len(x), s) },
		siluMul:    func(dst, gate, up []float32) { siluMulAVX2(p(dst), p(gate), p(up), len(gate)) },
		geluMul:    func(dst, gate, up []float32) { geluMulAVX2(p(dst), p(gate), p(up), len(gate)) },
		softCap:    func(x []float32, limit float32) { softCapAVX2(p(x), len(x), limit) },
		maximum:    func(x []float32) float32 { return maximumAVX2(p(x), len(x)) },
		expSum:     func(x []float32, shift float32) float32 { return expSumAVX2(p(x), len(x), shift) },
		ropePairs:  func(x, cos, sin []float32) { ropePairsAVX2(p(x), p(cos), p(sin), len(cos)) },
		ropeHalves: func(x, cos, sin []float32) { ropeHalvesAVX2(p(x), p(cos), p(sin), len(cos)) },
	}
	two.attendAVX2()
	// What is bound by loads and stores, not arithmetic, stays at 256 bits.
	five := two
	five.Name = "avx512"
	five.siluMul = func(dst, gate, up []float32) { siluMulAVX512(p(dst), p(gate), p(up), len(gate)) }
	five.geluMul = func(dst, gate, up []float32) { geluMulAVX512(p(dst), p(gate), p(up), len(gate)) }
	five.softCap = func(x []float32, limit float32) { softCapAVX512(p(x), len(x), limit) }
	five.expSum = func(x []float32, shift float32) float32 { return expSumAVX512(p(x), len(x), shift) }
	five.attendAVX512()
	if !cpu.X86.HasAVX2 || !cpu.X86.HasFMA || !cpu.X86.HasF16C {
		two.unavailable = "this CPU lacks AVX2, FMA or F16C"
		five.unavailable = two.unavailable
	}
	if !cpu.X86.HasAVX512F || !cpu.X86.HasAVX512DQ || !cpu.X86.HasAVX512VL {
		five.unavailable = "this CPU lacks AVX-512 F, DQ or VL"
	}
	return []Kernels{five, two, {Name: "neon", unavailable: "only arm64 builds have them"}, twin()}
}

// All counts are of float32 and multiples of 16 (ropes: of 8 pairs).

//go:noescape
func sumSquaresAVX2(x *float32, n int) float32

//go:noescape
func scaleMulAVX2(dst, x, w *float32, n int, s float32)

//go:noescape
func addAVX2(dst, x *float32, n int)

//go:noescape
func scaleAVX2(x *float32, n int, s float32)

//go:noescape
func scaleAddAVX2(dst, x, y *float32, n int, s float32)

//go:noescape
func siluMulAVX2(dst, gate, up *float32, n int)

//go:noescape
func siluMulAVX512(dst, gate, up *float32, n int)

//go:noescape
func geluMulAVX2(dst, gate, up *float32, n int)

//go:noescape
func geluMulAVX512(dst, gate, up *float32, n int)

//go:noescape
func softCapAVX2(x *float32, n int, limit float32)

//go:noescape
func softCapAVX512(x *float32, n int, limit float32)

//go:noescape
func maximumAVX2(x *float32, n int) float32

//go:noescape
func expSumAVX2(x *float32, n int, shift float32) float32

//go:noescape
func expSumAVX512(x *float32, n int, shift float32) float32

//go:noescape
func ropePairsAVX2(x, cos, sin *float32, pairs int)

//go:noescape
func ropeHalvesAVX2(x, cos, sin *float32, pairs int)
