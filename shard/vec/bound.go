package vec

// piece is the most values that one call of a kernel takes: some 20 us, as assembly cannot be stopped for the collector.
const piece = 16 << 10

// bound has vectors longer than a piece cut into several calls. What adds values up or compares them is left to plain Go there,
// which gives the same bits: no model has norms or spans of that length. Scores and Mix take one chunk of keys and need no bound.
func (k *Kernels) bound() {
	asm, plain := *k, twin()
	k.sumSquares = func(x []float32) float32 {
		if len(x) > piece {
			return plain.sumSquares(x)
		}
		return asm.sumSquares(x)
	}
	k.maximum = func(x []float32) float32 {
		if len(x) > piece {
			return plain.maximum(x)
		}
		return asm.maximum(x)
	}
	k.expSum = func(x []float32, shift float32) float32 {
		if len(x) > piece {
			return plain.expSum(x, shift)
		}
		return asm.expSum(x, shift)
	}
	k.scaleMul = func(dst, x, w []float32, s float32) {
		pieces(len(x), func(a, b int) { asm.scaleMul(dst[a:b], x[a:b], w[a:b], s) })
	}
	k.add = func(dst, x []float32) { pieces(len(x), func(a, b int) { asm.add(dst[a:b], x[a:b]) }) }
	k.scale = func(x []float32, s float32) { pieces(len(x), func(a, b int) { asm.scale(x[a:b], s) }) }
	k.scaleAdd = func(dst, x []float32, s float32, y []float32) {
		pieces(len(x), func(a, b int) { asm.scaleAdd(dst[a:b], x[a:b], s, y[a:b]) })
	}
	k.siluMul = func(dst, gate, up []float32) {
		pieces(len(gate), func(a, b int) { asm.siluMul(dst[a:b], gate[a:b], up[a:b]) })
	}
	k.geluMul = func(dst, gate, up []float32) {
		pieces(len(gate), func(a, b int) { asm.geluMul(dst[a:b], gate[a:b], up[a:b]) })
	}
	k.softCap = func(x []float32, limit float32) { pieces(len(x), func(a, b int) { asm.softCap(x[a:b], limit) }) }
	k.ropePairs = func(x, cos, sin []float32) {
		pieces(len(cos), func(a, b int) { asm.ropePairs(x[2*a:2*b], cos[a:b], sin[a:b]) })
	}
	k.ropeHalves = func(x, cos, sin []float32) {
		if len(cos) > piece {
			plain.ropeHalves(x, cos, sin)
			return
		}
		asm.ropeHalves(x, cos, sin)
	}
}

// pieces calls fn with the pieces [a, b) of n values.
func pieces(n int, fn func(a, b int)) {
	for a := 0; a < n; a += piece {
		fn(a, min(a+piece, n))
	}
}
