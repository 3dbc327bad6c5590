package tensor

import (
	"math"
	"unsafe"
)

// call is the work of one kernel call: some groups of a panel times one tile of activations. Assembly reads it by offset.
type call struct {
	scales *byte    // of the first group's first unit
	lines  *byte    // of the first group's first block
	steps  int      // units of a row
	a      *byte    // activation tile
	out    *float32 // first output of the first row of activations; the groups' outputs are adjacent
	outRow int      // bytes from one activation row's outputs to the next's
	resume int      // 1: begin with the sums that out holds, not with 0
}

// twin is the kernel of a form for one group and a tile of t rows, in plain Go. It is the definition of the form's outputs:
//
//	acc = 0; for each block in order:
//	    isum = sum over the block of (q - zero) * a      exact in int32
//	    acc = fma(float32(isum), dw * da, acc)
//	    if mins: acc = fma(m, da * float32(sum a), acc)
//
// where dw is the block's scale, or d * scale of a sub-block; of a super-block m = -(dmin * minimum); and Q6_K does the first
// two lines for 16 values at a time. Float weights: acc = fma(w, x, acc), value by value.
func twin(f *form, t int) func(c *call) {
	if f.float() {
		return func(c *call) { twinFloat(f, t, c) }
	}
	return func(c *call) { twinQuant(f, t, c) }
}

func twinQuant(f *form, t int, c *call) {
	nb := c.steps * f.blocks()
	a := unsafe.Slice((*uint32)(unsafe.Pointer(c.a)), nb*actFields*t)
	acc := c.load(t)
	var q [groupRows][blockValues]int32
	var d, d1, m [groupRows]float32
	for b := range nb {
		for r := range groupRows {
			d[r], d1[r], m[r] = f.unpackLane(c, b, r, &q[r])
		}
		blk := a[b*actFields*t:][:actFields*t]
		for v := range t {
			da, dsum := math.Float32frombits(blk[v]), math.Float32frombits(blk[3*t+v])
			var x [blockValues]int32
			for k := range 8 {
				w := blk[(4+k)*t+v]
				x[4*k], x[4*k+1], x[4*k+2], x[4*k+3] = int32(int8(w)), int32(int8(w>>8)), int32(int8(w>>16)), int32(int8(w>>24))
			}
			for r := range groupRows {
				lo, hi := dot16((*[16]int32)(q[r][:16]), (*[16]int32)(x[:16])), dot16((*[16]int32)(q[r][16:]), (*[16]int32)(x[16:]))
				s := acc[v][r]
				if f.halves {
					s = fma32(float32(lo), float32(d[r]*da), s)
					s = fma32(float32(hi), float32(d1[r]*da), s)
				} else {
					s = fma32(float32(lo+hi), float32(d[r]*da), s)
				}
				if f.mins {
					s = fma32(m[r], dsum, s)
				}
				acc[v][r] = s
			}
		}
	}
	c.store(&acc, t)
}

func dot16(a, b *[16]int32) int32 {
	s := int32(0)
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

// unpackLane reads block b of lane r: the weights less their zero, the scale (of the first and second half), the minimum.
func (f *form) unpackLane(c *call, b, r int, q *[blockValues]int32) (d, d1, m float32) {
	var blk block
	f.getLines(unsafe.Slice(c.linesOf(f, b), f.lineBytes), r, &blk.q)
	for i, v := range blk.q {
		q[i] = int32(v) - f.zero
	}
	scales := (*byte)(unsafe.Add(unsafe.Pointer(c.scales), f.scales(b/f.blocks(), 0)))
	f.getScales(unsafe.Slice(scales, f.scaleBytes), b%f.blocks(), r, &blk)
	d = halfAt(blk.d[:])
	switch {
	case f.halves:
		return float32(d * float32(int8(blk.sc16[0]))), float32(d * float32(int8(blk.sc16[1]))), 0
	case f.super:
		return float32(d * float32(blk.sc)), 0, -float32(halfAt(blk.m[:]) * float32(blk.mn))
	case f.mins:
		m = halfAt(blk.m[:])
	}
	return d, 0, m
}

// linesOf is where block b's lines of the call's first group begin.
func (c *call) linesOf(f *form, b int) *byte {
	return (*byte)(unsafe.Add(unsafe.Pointer(c.lines), f.lines(b, 0)-f.lines(0, 0)))
}

func twinFloat(f *form, t int, c *call) {
	x := unsafe.Slice((*float32)(unsafe.Pointer(c.a)), c.steps*t)
	acc := c.load(t)
	for i := range c.steps {
		w := unsafe.Slice(c.linesOf(f, i), f.lineBytes)
		for r := range groupRows {
			wv := f.floatAt(w, r)
			for v := range t {
				acc[v][r] = fma32(wv, x[i*t+v], acc[v][r])
			}
		}
	}
	c.store(&acc, t)
}

func (c *call) output(v int) *[groupRows]float32 {
	return (*[groupRows]float32)(unsafe.Add(unsafe.Pointer(c.out), v*c.outRow))
}

func (c *call) load(t int) (acc [maxTile][groupRows]float32) {
	for v := 0; v < t && c.resume == 1; v++ {
		acc[v] = *c.output(v)
	}
	return acc
}

func (c *call) store(acc *[maxTile][groupRows]float32, t int) {
	for v := range t {
		*c.output(v) = acc[v]
	}
}
