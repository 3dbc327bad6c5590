package vec

import (
	"math/rand/v2"
	"testing"
)

// No call of assembly gets more than a piece, whatever the length, and what comes out is what the twin gives.
func TestCallsAreBounded(t *testing.T) {
	most, calls := 0, 0
	seen := func(n int) {
		most, calls = max(most, n), calls+1
	}
	g := twin()
	k := g
	k.sumSquares = func(x []float32) float32 { seen(len(x)); return g.sumSquares(x) }
	k.maximum = func(x []float32) float32 { seen(len(x)); return g.maximum(x) }
	k.expSum = func(x []float32, shift float32) float32 { seen(len(x)); return g.expSum(x, shift) }
	k.scaleMul = func(dst, x, w []float32, s float32) { seen(len(x)); g.scaleMul(dst, x, w, s) }
	k.add = func(dst, x []float32) { seen(len(x)); g.add(dst, x) }
	k.scale = func(x []float32, s float32) { seen(len(x)); g.scale(x, s) }
	k.scaleAdd = func(dst, x []float32, s float32, y []float32) { seen(len(x)); g.scaleAdd(dst, x, s, y) }
	k.siluMul = func(dst, gate, up []float32) { seen(len(gate)); g.siluMul(dst, gate, up) }
	k.geluMul = func(dst, gate, up []float32) { seen(len(gate)); g.geluMul(dst, gate, up) }
	k.softCap = func(x []float32, limit float32) { seen(len(x)); g.softCap(x, limit) }
	k.ropePairs = func(x, cos, sin []float32) { seen(len(cos)); g.ropePairs(x, cos, sin) }
	k.ropeHalves = func(x, cos, sin []float32) { seen(len(cos)); g.ropeHalves(x, cos, sin) }
	k.bound()
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{16, piece, piece + 16, 2*piece + 48} {
		x, y, w := noise(r, 2*n, 1), noise(r, n, 1), noise(r, n, 1)
		for _, op := range []struct {
			name  string
			calls int // of a vector of two pieces and a bit
			run   func(k *Kernels, x []float32) float32
		}{
			{"sumSquares", 0, func(k *Kernels, x []float32) float32 { return k.sumSquares(x[:n]) }},
			{"maximum", 0, func(k *Kernels, x []float32) float32 { return k.maximum(x[:n]) }},
			{"expSum", 0, func(k *Kernels, x []float32) float32 { return k.expSum(x[:n], 1) }},
			{"scaleMul", 3, func(k *Kernels, x []float32) float32 { k.scaleMul(x[:n], x[:n], w, 3); return 0 }},
			{"add", 3, func(k *Kernels, x []float32) float32 { k.add(x[:n], y); return 0 }},
			{"scale", 3, func(k *Kernels, x []float32) float32 { k.scale(x[:n], 3); return 0 }},
			{"scaleAdd", 3, func(k *Kernels, x []float32) float32 { k.scaleAdd(x[:n], y, 3, w); return 0 }},
			{"siluMul", 3, func(k *Kernels, x []float32) float32 { k.siluMul(x[:n], y, w); return 0 }},
			{"geluMul", 3, func(k *Kernels, x []float32) float32 { k.geluMul(x[:n], y, w); return 0 }},
			{"softCap", 3, func(k *Kernels, x []float32) float32 { k.softCap(x[:n], 3); return 0 }},
			{"ropePairs", 3, func(k *Kernels, x []float32) float32 { k.ropePairs(x, y, w); return 0 }},
			{"ropeHalves", 0, func(k *Kernels, x []float32) float32 { k.ropeHalves(x, y, w); return 0 }},
		} {
			most, calls = 0, 0
			got, want := clone(x), clone(x)
			a, b := op.run(&k, got), op.run(&g, want)
			same(t, op.name, append(got, a), append(want, b))
			if most > piece || n > 2*piece && calls != op.calls || n <= piece && calls != 1 {
				t.Errorf("%s of %d values: %d calls of up to %d", op.name, n, calls, most)
			}
		}
	}
}

// The longest calls of each set; the house's bound is 100 us.
func BenchmarkLongestCall(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	x, y, w := noise(r, piece, 1), noise(r, piece, 1), noise(r, piece, 1)
	for _, name := range Names() {
		k, err := For(name)
		if err != nil || name == "generic" {
			continue
		}
		for _, op := range []struct {
			name string
			run  func()
		}{
			{"siluMul", func() { k.siluMul(x, y, w) }}, {"geluMul", func() { k.geluMul(x, y, w) }}, {"softCap", func() { k.softCap(x, 30) }},
			{"expSum", func() { k.expSum(x, 1) }}, {"sumSquares", func() { k.sumSquares(x) }},
		} {
			b.Run(name+"/"+op.name, func(b *testing.B) {
				for b.Loop() {
					op.run()
				}
			})
		}
	}
}
