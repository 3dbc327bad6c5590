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
// where dw is the block's scale, or d * scale of a sub-block; of a super-block m = -(dmin * minimum). With scales for 16
// values it does the first two lines for each half of the block, then if mins:
//
//	acc = fma(-m, da * float32(-sum a), acc)             for each half
//
// Float weights: acc = fma(w, x, acc), value by value.
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
	var d, m [groupRows][2]float32 // of both halves
	var lo, hi [groupRows]int32
	for b := range nb {
		for r := range groupRows {
			d[r], m[r] = f.scalesOf(c, b, r)
		}
		lines := unsafe.Slice(c.linesOf(f, b), f.lineBytes)
		blk := a[b*actFields*t:][:actFields*t]
		for v := range t {
			da, dsum := math.Float32frombits(blk[v]), math.Float32frombits(blk[3*t+v])
			neg0, neg1 := int32(blk[2*t+v]), int32(blk[t+v])-int32(blk[2*t+v])
			var x [blockValues]int64
			for i := range x {
				x[i] = int64(int8(blk[(4+i/4)*t+v] >> (i % 4 * 8)))
			}
			f.dots(lines, &x, &lo, &hi)
			for r := range groupRows {
				s := acc[v][r]
				if f.halves {
					s = fma32(float32(lo[r]), float32(d[r][0]*da), s)
					s = fma32(float32(hi[r]), float32(d[r][1]*da), s)
				} else {
					s = fma32(float32(lo[r]+hi[r]), float32(d[r][0]*da), s)
				}
				switch {
				case f.halves && f.mins:
					s = fma32(-m[r][0], float32(float32(neg0)*da), s)
					s = fma32(-m[r][1], float32(float32(neg1)*da), s)
				case f.mins:
					s = fma32(m[r][0], dsum, s)
				}
				acc[v][r] = s
			}
		}
	}
	c.store(&acc, t)
}

// scalesOf reads the scales and minimums of block b of lane r.
func (f *form) scalesOf(c *call, b, r int) (d, m [2]float32) {
	var blk block
	scales := (*byte)(unsafe.Add(unsafe.Pointer(c.scales), f.scales(b/f.blocks(), 0)))
	f.getScales(unsafe.Slice(scales, f.scaleBytes), b%f.blocks(), r, &blk)
	return blk.scales(f)
}

// dots is the sum of (q - zero) * x over the first and the second half of a block, for its 16 rows. Two rows share a word of
// 64 bits, one in each half: the sum of the lower one may borrow from the upper one, which is given back at the end.
func (f *form) dots(lines []byte, x *[blockValues]int64, lo, hi *[groupRows]int32) {
	const low = 1 | 1<<32 // the lowest bit of each row's dword
	var zero [2]int32
	for i, v := range x {
		zero[i/16] += f.zero * int32(v)
	}
	for r := 0; r < groupRows; r += 2 {
		var sum [2]int64 // of each half
		for k := range 8 {
			q, pos := uint64(0), 0 // the quarter's values of two rows
			for _, p := range f.parts(k) {
				q |= le.Uint64(lines[64*p.line+4*r:]) >> p.from & (uint64(p.mask()) * low) << pos
				pos += p.bits
			}
			s := &sum[k/4]
			for j, v := range x[4*k : 4*k+4] {
				w := q >> (8 * j)
				if f.table != nil {
					*s += (int64(f.table[w&15]) + int64(f.table[w>>32&15])<<32) * v
				} else {
					*s += int64(w&(255*low)) * v
				}
			}
		}
		a, b := sum[0], sum[1]
		lo[r], lo[r+1] = int32(a)-zero[0], int32((a-int64(int32(a)))>>32)-zero[0]
		hi[r], hi[r+1] = int32(b)-zero[1], int32((b-int64(int32(b)))>>32)-zero[1]
	}
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
