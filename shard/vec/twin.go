package vec

import "math"

// The functions here define every kernel: what they round, and in which order.

func twin() Kernels {
	k := Kernels{
		Name:       "generic",
		sumSquares: twinSumSquares,
		scaleMul:   twinScaleMul,
		add:        twinAdd,
		scale:      twinScale,
		scaleAdd:   twinScaleAdd,
		siluMul:    twinSiLUMul,
		geluMul:    twinGELUMul,
		softCap:    twinSoftCap,
		maximum:    twinMaximum,
		expSum:     twinExpSum,
		ropePairs:  twinRopePairs,
		ropeHalves: twinRopeHalves,
	}
	for _, c := range CacheTypes() {
		k.scores[c] = c.twinScores
		k.mix[c] = c.twinMix
	}
	return k
}

// sumLanes adds the 16 lanes as the fixed tree.
func sumLanes(l *[Lanes]float32) float32 {
	for w := Lanes / 2; w > 0; w /= 2 {
		for i := range w {
			l[i] += l[i+w]
		}
	}
	return l[0]
}

func twinSumSquares(x []float32) float32 {
	var l [Lanes]float32
	for i, v := range x {
		l[i%Lanes] = FMA(v, v, l[i%Lanes])
	}
	return sumLanes(&l)
}

func twinScaleMul(dst, x, w []float32, s float32) {
	for i, v := range x {
		dst[i] = float32(v*s) * w[i]
	}
}

func twinAdd(dst, x []float32) {
	for i, v := range x {
		dst[i] += v
	}
}

func twinScale(x []float32, s float32) {
	for i := range x {
		x[i] *= s
	}
}

func twinScaleAdd(dst, x []float32, s float32, y []float32) {
	for i, v := range x {
		dst[i] = FMA(v, s, y[i])
	}
}

func twinSiLUMul(dst, gate, up []float32) {
	for i, g := range gate {
		s := g / float32(1+Exp(-g))
		dst[i] = s * up[i]
	}
}

// twinGELUMul uses that (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), which keeps the
// small values of negative gates, where 1 + tanh(u) cancels.
func twinGELUMul(dst, gate, up []float32) {
	for i, g := range gate {
		w := float32(g * FMA(float32(g*g), gelu3, gelu1))
		s := g / float32(1+Exp(w))
		dst[i] = s * up[i]
	}
}

func twinSoftCap(x []float32, limit float32) {
	for i, v := range x {
		x[i] = limit * Tanh(v/limit)
	}
}

func twinMaximum(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		m = max(m, v)
	}
	return m
}

// twinExpSum replaces x by exp(x - shift) and returns the sum of that.
func twinExpSum(x []float32, shift float32) float32 {
	var l [Lanes]float32
	for i, v := range x {
		x[i] = Exp(v - shift)
		l[i%Lanes] += x[i]
	}
	return sumLanes(&l)
}

func twinRopePairs(x, cos, sin []float32) {
	for i := range cos {
		x[2*i], x[2*i+1] = turn(x[2*i], x[2*i+1], cos[i], sin[i])
	}
}

func twinRopeHalves(x, cos, sin []float32) {
	h := len(cos)
	for i := range cos {
		x[i], x[i+h] = turn(x[i], x[i+h], cos[i], sin[i])
	}
}

// turn rounds each product and then their sum.
func turn(a, b, c, s float32) (float32, float32) {
	return float32(a*c) - float32(b*s), float32(b*c) + float32(a*s)
}

func (c CacheType) twinScores(out []float32, stride int, q []float32, rows int, keys []byte, dim int) {
	var key [Lanes]float32
	for group := range Chunk / Lanes {
		for t := range rows {
			clear(out[t*stride+group*Lanes:][:Lanes])
		}
		for d := range dim {
			c.loadKeys(&key, keys, dim, group, d)
			for t := range rows {
				acc := out[t*stride+group*Lanes:][:Lanes]
				for i, x := range key {
					acc[i] = FMA(q[d*rows+t], x, acc[i])
				}
			}
		}
	}
}

func (c CacheType) twinMix(acc []float32, w []float32, stride, rows int, values []byte, dim, slot, n int) {
	var value [Lanes]float32
	for j := range n {
		for d := 0; d < dim; d += Lanes {
			c.loadValue(&value, values, dim, slot+j, d)
			for t := range rows {
				sum := acc[t*dim+d:][:Lanes]
				for i, x := range value {
					sum[i] = FMA(w[t*stride+j], x, sum[i])
				}
			}
		}
	}
}

// Constants of Exp: log2(e), ln 2 in two parts, and the polynomial of
// (exp(r) - 1 - r) / r² on |r| <= ln(2)/2, highest power first (Cephes, expf).
const (
	expLow   = -87
	expHigh  = 88
	log2e    = 1.44269504088896341
	ln2Hi    = 0.693359375
	ln2Lo    = -2.12194440e-4
	roundInt = 12582912 // 1.5 * 2^23: adding it rounds to an integer
	expP0    = 1.9875691500e-4
	expP1    = 1.3981999507e-3
	expP2    = 8.3334519073e-3
	expP3    = 4.1665795894e-2
	expP4    = 1.6666665459e-1
	expP5    = 5.0000001201e-1
)

// Exp is e to the x, within 2 units in the last place for -87 <= x <= 88. Below
// that range it is exactly 0, above it stays at Exp(88).
func Exp(x float32) float32 {
	if x < expLow {
		return 0
	}
	if x > expHigh {
		x = expHigh
	}
	t := FMA(x, log2e, roundInt)
	n := float32(t - roundInt)
	r := FMA(n, -ln2Lo, FMA(n, -ln2Hi, x))
	p := FMA(FMA(FMA(FMA(FMA(expP0, r, expP1), r, expP2), r, expP3), r, expP4), r, expP5)
	y := float32(FMA(p, float32(r*r), r) + 1)
	return y * math.Float32frombits(math.Float32bits(t)<<23+127<<23)
}

// Constants of GELU in its tanh form: -2u = x * (gelu1 + gelu3 * x²), where
// u = sqrt(2/pi) * (x + 0.044715 x³).
const (
	gelu1 = -1.5957691216057308
	gelu3 = -0.07135481627159146
)

// Constants of Tanh: where its polynomial ends, and that of (tanh(x) - x) / x³
// by powers of x², highest first (Cephes, tanhf).
const (
	tanhSmall = 0.625
	tanhP0    = -5.70498872745e-3
	tanhP1    = 2.06390887954e-2
	tanhP2    = -5.37397155531e-2
	tanhP3    = 1.33314422036e-1
	tanhP4    = -3.33332819422e-1
)

// Tanh is the hyperbolic tangent, within 3 units in the last place.
func Tanh(x float32) float32 {
	a := math.Float32frombits(math.Float32bits(x) &^ (1 << 31))
	if a < tanhSmall {
		z := float32(x * x)
		p := FMA(FMA(FMA(FMA(tanhP0, z, tanhP1), z, tanhP2), z, tanhP3), z, tanhP4)
		return FMA(float32(p*z), x, x)
	}
	y := 1 - float32(2/float32(1+Exp(a+a)))
	return math.Float32frombits(math.Float32bits(y) | math.Float32bits(x)&(1<<31))
}
