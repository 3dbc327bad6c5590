package quant

import (
	"math"

	"github.com/meshnet/meshnet/shard/vec"
)

// The K types: 256 values share two float16 that scale the small integers which scale 32 (Q6_K: 16) of them. Each
// sub-block's best scale is found alone; then those are made integers, and what that costs is won back where possible by
// trying the integers beside them.

const superValues = 256

// weights say how much an error at each value counts: large weights of a matrix matter more.
func weights(x []float32, w []float32) {
	sum := float32(0)
	for _, v := range x {
		sum += float32(v * v)
	}
	rms := float32(math.Sqrt(float64(sum / float32(len(x)))))
	for i, v := range x {
		w[i] = rms + max(v, -v)
	}
}

// nearest rounds to a whole number, ties to even: adding 1.5 * 2^23, whose unit is 1, does it for all that is below 2^22.
func nearest(x float32) float32 { return float32(x+0x1.8p23) - 0x1.8p23 }

// within is the whole number in [lo, hi] that is nearest to x.
func within(lo, hi, x float32) float32 {
	switch {
	case x <= lo:
		return lo
	case x >= hi:
		return hi
	}
	return nearest(x)
}

// levels are the q in [0, top] for which d*q - m is nearest to x, and the weighted square error of that.
func levels(x, w []float32, d, m, top float32, q []float32) (loss float32) {
	id := inverse(d)
	for i, v := range x {
		q[i] = within(0, top, float32((v+m)*id))
		e := float32(d*q[i]) - m - v
		loss += float32(w[i] * float32(e*e))
	}
	return loss
}

// fitSpan finds d, m >= 0 so that x is about d*q - m with q in [0, top].
func fitSpan(x, w []float32, top float32) (d, m float32) {
	lo, hi := float32(0), x[0] // m is not negative, so 0 is always within reach
	for _, v := range x {
		lo, hi = min(lo, v), max(hi, v)
	}
	if hi <= lo {
		return 0, -lo
	}
	var q [32]float32
	d, m = (hi-lo)/top, -lo
	best := levels(x, w, d, m, top, q[:len(x)])
	for step := range 21 {
		try := (hi - lo) / (top + (float32(step)-10)/10)
		levels(x, w, try, -lo, top, q[:len(x)])
		td, tm, ok := line(x, w, q[:len(x)])
		if !ok {
			continue
		}
		if loss := levels(x, w, td, tm, top, q[:len(x)]); loss < best {
			best, d, m = loss, td, tm
		}
	}
	return d, m
}

// line is the least squares solution of x = d*q - m with d > 0 and m >= 0.
func line(x, w, q []float32) (d, m float32, ok bool) {
	var sw, sq, sqq, sx, sxq float64
	for i := range x {
		wi, qi, xi := float64(w[i]), float64(q[i]), float64(x[i])
		wq := float64(wi * qi)
		sw += wi
		sq += wq
		sqq += float64(wq * qi)
		sx += float64(wi * xi)
		sxq += float64(wq * xi)
	}
	det := float64(sw*sqq) - float64(sq*sq)
	if det <= 0 {
		return 0, 0, false
	}
	d = float32((float64(sw*sxq) - float64(sq*sx)) / det)
	m = float32((float64(sq*sxq) - float64(sqq*sx)) / det)
	if m < 0 {
		d, m = float32(sxq/sqq), 0
	}
	return d, m, d > 0
}

// spans is a super-block of 8 sub-blocks with scales and minimums of 6 bits.
type spans struct {
	d, m   float32 // as float16 has them
	sc, mn [8]byte
	q      [superValues]byte
}

func (s *spans) fit(b []byte, x []float32, top float32) bool {
	var w [superValues]float32
	var d, m [8]float32
	maxD, maxM := float32(0), float32(0)
	for j := range 8 {
		xs, ws := x[32*j:][:32], w[32*j:][:32]
		weights(xs, ws)
		d[j], m[j] = fitSpan(xs, ws, top)
		maxD, maxM = max(maxD, d[j]), max(maxM, m[j])
	}
	okD, okM := putHalf(b, maxD/63), putHalf(b[2:], maxM/63)
	s.d, s.m = vec.FromF16(le.Uint16(b)), vec.FromF16(le.Uint16(b[2:]))
	if !okD || !okM {
		return false
	}
	for j := range 8 {
		s.choose(j, x[32*j:][:32], w[32*j:][:32], d[j], m[j], top)
	}
	return true
}

// choose makes the scale and the minimum of sub-block j integers.
func (s *spans) choose(j int, x, w []float32, d, m, top float32) {
	sc, mn := nearest(float32(d*inverse(s.d))), nearest(float32(m*inverse(s.m)))
	best := float32(math.MaxFloat32)
	var q [32]float32
	for ds := float32(-1); ds <= 1; ds++ {
		for dm := float32(-1); dm <= 1; dm++ {
			a, b := min(63, max(0, sc+ds)), min(63, max(0, mn+dm))
			if loss := levels(x, w, float32(s.d*a), float32(s.m*b), top, q[:]); loss < best {
				best, s.sc[j], s.mn[j] = loss, byte(a), byte(b)
				for i, v := range q {
					s.q[32*j+i] = byte(v)
				}
			}
		}
	}
}

// putScales packs 8 scales and 8 minimums of 6 bits into 12 bytes: the low bits of the last four are nibbles of the last four
// bytes, their upper bits the top of the first eight.
func (s *spans) putScales(b []byte) {
	for j := range 4 {
		b[j] = s.sc[j] | s.sc[j+4]>>4<<6
		b[j+4] = s.mn[j] | s.mn[j+4]>>4<<6
		b[j+8] = s.sc[j+4]&15 | s.mn[j+4]<<4
	}
}

// putNibbles stores low nibbles, pairs of sub-blocks side by side in 32 bytes.
func (s *spans) putNibbles(b []byte) {
	for j := range 4 {
		for i := range 32 {
			b[32*j+i] = s.q[64*j+i]&15 | s.q[64*j+32+i]<<4
		}
	}
}

func fourK(b []byte, x []float32) bool {
	var s spans
	ok := s.fit(b, x, 15)
	s.putScales(b[4:])
	s.putNibbles(b[16:])
	return ok
}

func fiveK(b []byte, x []float32) bool {
	var s spans
	ok := s.fit(b, x, 31)
	s.putScales(b[4:])
	for i, v := range s.q {
		b[16+i%32] |= v >> 4 << (i / 32)
	}
	s.putNibbles(b[48:])
	return ok
}

// around is levels for q in [-32, 31] without a minimum.
func around(x, w []float32, d float32, q []float32) (loss float32) {
	id := inverse(d)
	for i, v := range x {
		q[i] = within(-32, 31, float32(v*id))
		e := float32(d*q[i]) - v
		loss += float32(w[i] * float32(e*e))
	}
	return loss
}

// fitAround finds d, of either sign, so that x is about d*q with q in [-32, 31].
func fitAround(x, w []float32) (d float32) {
	top := float32(0)
	for _, v := range x {
		if max(v, -v) > max(top, -top) {
			top = v
		}
	}
	if top == 0 {
		return 0
	}
	var q [16]float32
	best := float32(math.MaxFloat32)
	for step := range 21 {
		around(x, w, top/-(32+(float32(step)-10)/10), q[:])
		sqq, sxq := float32(0), float32(0)
		for i, v := range x {
			wq := float32(w[i] * q[i])
			sqq += float32(wq * q[i])
			sxq += float32(wq * v)
		}
		if sqq <= 0 {
			continue
		}
		try := sxq / sqq
		if loss := around(x, w, try, q[:]); loss < best {
			best, d = loss, try
		}
	}
	return d
}

// sixK is Q6_K: low nibbles, upper two bits, 16 signed scales, d.
func sixK(b []byte, x []float32) bool {
	var w [superValues]float32
	var ds [16]float32
	top := float32(0)
	for j := range ds {
		xs, ws := x[16*j:][:16], w[16*j:][:16]
		weights(xs, ws)
		ds[j] = fitAround(xs, ws)
		if max(ds[j], -ds[j]) > max(top, -top) {
			top = ds[j]
		}
	}
	if !putHalf(b[208:], top/-128) {
		return false
	}
	d := vec.FromF16(le.Uint16(b[208:]))
	var q [superValues]byte
	for j := range ds {
		xs, ws := x[16*j:][:16], w[16*j:][:16]
		sc, best := nearest(float32(ds[j]*inverse(d))), float32(math.MaxFloat32)
		var try [16]float32
		for step := float32(-1); step <= 1; step++ {
			a := min(127, max(-128, sc+step))
			if loss := around(xs, ws, float32(d*a), try[:]); loss < best {
				best, b[192+j] = loss, byte(int8(a))
				for i, v := range try {
					q[16*j+i] = byte(int8(v) + 32)
				}
			}
		}
	}
	for i, v := range q { // 128 values share 64 bytes of nibbles and 32 of upper bits
		half, sub, at := i/128, i%128/32, i%32
		b[64*half+sub%2*32+at] |= v & 15 << (sub / 2 * 4)
		b[128+32*half+at] |= v >> 4 << (2 * sub)
	}
	return true
}
