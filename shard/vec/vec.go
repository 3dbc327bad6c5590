// Package vec holds the float32 vector operations of a forward pass: norms,
// rotary embedding, activations, softmax and the pieces of attention.
//
// Invariant: the result of every operation is the same bits on every machine.
// The plain Go functions in twin.go are the definition; each assembly kernel
// equals its twin bit for bit. Sums run in 16 virtual lanes (element i belongs
// to lane i mod 16, in order of i) that are then added as a fixed tree: lanes
// 8 apart, 4 apart, 2 apart, 1 apart. Wherever the text says fma, the product
// and the sum are rounded once.
//
// Start with Kernels, then twin.go; how keys and values lie in memory is in cache.go.
package vec

import (
	"fmt"
	"math"
)

// Lanes is the number of virtual lanes of every sum. The lengths given to
// Kernels are multiples of it, except where a function says otherwise.
const Lanes = 16

// Chunk is the number of positions of one key chunk and one value chunk, as
// Scores and Mix read them.
const Chunk = 64

// Tile is the most query vectors that Scores and Mix serve in one pass.
const Tile = 4

// Kernels is one set of kernels. All sets give the same bits.
type Kernels struct {
	Name string

	sumSquares  func(x []float32) float32
	scaleMul    func(dst, x, w []float32, s float32)
	add         func(dst, x []float32)
	scale       func(x []float32, s float32)
	scaleAdd    func(dst, x []float32, s float32, y []float32)
	siluMul     func(dst, gate, up []float32)
	geluMul     func(dst, gate, up []float32)
	softCap     func(x []float32, limit float32)
	maximum     func(x []float32) float32
	expSum      func(x []float32, shift float32) float32
	ropePairs   func(x, cos, sin []float32)
	ropeHalves  func(x, cos, sin []float32)
	scores      [cacheTypes + 1]scoresFunc // by CacheType
	mix         [cacheTypes + 1]mixFunc
	unavailable string
}

type (
	scoresFunc func(out []float32, stride int, q []float32, rows int, keys []byte, dim int)
	mixFunc    func(acc []float32, w []float32, stride, rows int, values []byte, dim, slot, n int)
)

// Names lists the kernel sets, fastest first.
func Names() []string { return []string{"avx512", "avx2", "neon", "generic"} }

// For returns the kernel set of that name: "avx512", "avx2", "neon" or "generic". It
// fails when this CPU or this build lacks it. "avxvnni" and "amx" add integers to "avx2" and
// "avx512", of which there are none here.
func For(name string) (*Kernels, error) {
	switch name { // sets of package tensor
	case "avxvnni":
		name = "avx2"
	case "amx":
		name = "avx512"
	}
	for _, k := range sets() {
		if k.Name != name {
			continue
		}
		if k.unavailable != "" {
			return nil, fmt.Errorf("vector kernels %q: %s", name, k.unavailable)
		}
		k.complete()
		if k.Name != "generic" {
			k.bound()
		}
		return &k, nil
	}
	return nil, fmt.Errorf("vector kernels %q: unknown; there are %v", name, Names())
}

// complete gives the twin's function for each that a set lacks.
func (k *Kernels) complete() {
	t := twin()
	if k.scaleAdd == nil {
		k.scaleAdd = t.scaleAdd
	}
	if k.geluMul == nil {
		k.geluMul = t.geluMul
	}
	if k.softCap == nil {
		k.softCap = t.softCap
	}
	for _, c := range CacheTypes() {
		if k.scores[c] == nil {
			k.scores[c] = t.scores[c]
		}
		if k.mix[c] == nil {
			k.mix[c] = t.mix[c]
		}
	}
}

// RMSNorm writes x / sqrt(mean(x²) + eps) * w to dst, which may be x.
func (k *Kernels) RMSNorm(dst, x, w []float32, eps float32) {
	need(len(x)%Lanes == 0 && len(w) == len(x) && len(dst) == len(x))
	mean := k.sumSquares(x) / float32(len(x))
	k.scaleMul(dst, x, w, 1/float32(math.Sqrt(float64(float32(mean+eps)))))
}

// Add adds x to dst.
func (k *Kernels) Add(dst, x []float32) {
	need(len(x)%Lanes == 0 && len(dst) == len(x))
	k.add(dst, x)
}

// Scale multiplies x by s.
func (k *Kernels) Scale(x []float32, s float32) {
	need(len(x)%Lanes == 0)
	k.scale(x, s)
}

// SiLUMul writes gate / (1 + exp(-gate)) * up to dst, which may be gate or up.
func (k *Kernels) SiLUMul(dst, gate, up []float32) {
	need(len(gate)%Lanes == 0 && len(up) == len(gate) && len(dst) == len(gate))
	k.siluMul(dst, gate, up)
}

// GELUMul writes gelu(gate) * up to dst, which may be gate or up. It is the tanh
// form of GELU: g/2 * (1 + tanh(sqrt(2/pi) * (g + 0.044715 g³))).
func (k *Kernels) GELUMul(dst, gate, up []float32) {
	need(len(gate)%Lanes == 0 && len(up) == len(gate) && len(dst) == len(gate))
	k.geluMul(dst, gate, up)
}

// SoftCap replaces x by limit * tanh(x / limit). It takes any length.
func (k *Kernels) SoftCap(x []float32, limit float32) {
	n := len(x) / Lanes * Lanes
	k.softCap(x[:n], limit)
	if n < len(x) {
		var rest [Lanes]float32
		copy(rest[:], x[n:])
		k.softCap(rest[:], limit)
		copy(x[n:], rest[:])
	}
}

// Softmax replaces the scores x[:n] by exp(x - peak), peak being their maximum,
// and returns peak and the sum of that: a caller divides what it makes of the
// weights, not the weights. len(x) is n rounded up to a multiple of 16 or more;
// x[n:] up to that multiple becomes 0.
func (k *Kernels) Softmax(x []float32, n int) (peak, sum float32) {
	need(n > 0 && (n+Lanes-1)/Lanes*Lanes <= len(x))
	x = x[:(n+Lanes-1)/Lanes*Lanes]
	for i := n; i < len(x); i++ {
		x[i] = float32(math.Inf(-1))
	}
	peak = k.maximum(x)
	return peak, k.expSum(x, peak)
}

// ScaleAdd writes fma(x, s, y) to dst, which may be x or y.
func (k *Kernels) ScaleAdd(dst, x []float32, s float32, y []float32) {
	need(len(x)%Lanes == 0 && len(y) == len(x) && len(dst) == len(x))
	k.scaleAdd(dst, x, s, y)
}

// RopeHalves turns the first 2*len(cos) values of x by the angles whose cosines and
// sines are given, in pairs (i, i+len(cos)). len(cos) is a multiple of 8.
func (k *Kernels) RopeHalves(x, cos, sin []float32) {
	need(len(cos)%8 == 0 && len(sin) == len(cos) && len(x) >= 2*len(cos))
	k.ropeHalves(x[:2*len(cos)], cos, sin)
}

// RopePairs is RopeHalves with pairs (2i, 2i+1).
func (k *Kernels) RopePairs(x, cos, sin []float32) {
	need(len(cos)%8 == 0 && len(sin) == len(cos) && len(x) >= 2*len(cos))
	k.ropePairs(x[:2*len(cos)], cos, sin)
}

// Scores multiplies rows (1 .. Tile) query vectors by the Chunk keys of one
// key chunk: out[t*stride+j] = q_t · key_j, summed over dim in order, each key
// widened to float32 first (one rounding in CacheQ8, none else).
//
//	q  [dim][rows]  the query vectors, interleaved
func (k *Kernels) Scores(c CacheType, out []float32, stride int, q []float32, rows int, keys []byte, dim int) {
	need(rows >= 1 && rows <= Tile && dim%Lanes == 0 && dim > 0 && stride >= Chunk)
	need(len(q) >= rows*dim && len(keys) >= c.PartBytes(dim) && len(out) >= (rows-1)*stride+Chunk)
	k.scores[c](out, stride, q, rows, keys, dim)
}

// Mix adds weighted values to rows (1 .. Tile) accumulators, in order of j:
// acc[t*dim+d] += w[t*stride+j] * value(slot+j)[d] for j < n, of one value chunk.
func (k *Kernels) Mix(c CacheType, acc []float32, w []float32, stride, rows int, values []byte, dim, slot, n int) {
	need(rows >= 1 && rows <= Tile && dim%Lanes == 0 && n >= 0 && slot >= 0 && slot+n <= Chunk)
	if n == 0 || dim == 0 {
		return
	}
	need(len(acc) >= rows*dim && len(values) >= c.PartBytes(dim) && len(w) >= (rows-1)*stride+n)
	k.mix[c](acc, w, stride, rows, values, dim, slot, n)
}

// need panics when a caller broke a kernel's contract on shapes: assembly does
// not check bounds.
func need(ok bool) {
	if !ok {
		panic("vec: shapes break the kernel's contract")
	}
}
