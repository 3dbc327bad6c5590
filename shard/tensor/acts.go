package tensor

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/meshnet/meshnet/shard/pool"
)

// maxTile is the most activation rows that a kernel takes at once, in any set.
const maxTile = 8

// Quantized activations come in tiles of T rows. A tile has, for each block of 32 values, 12 times T dwords, field by
// field, row by row:
//
//	0: float32 d, the scale            3: float32 d * sum
//	1: int32 -sum of the 32 int8       4..11: four int8 each, values 4(i-4)..
//	2: int32 -sum of the first 16
//
// A tile for float weights has for each value T float32.
const (
	actFields     = 12
	actBlockBytes = actFields * 4 // of one row
)

// Scratch holds rows of activations, prepared for the matrices that they are multiplied with, and reuses its memory.
// It belongs to one goroutine at a time; the zero value is ready.
type Scratch struct {
	x       []float32
	n, cols int
	quant   tiles
	float   tiles
	wide    tiles
	job     job
	wideJob wideJob
}

// tiles is one prepared form of the rows.
type tiles struct {
	buf   []byte
	data  []byte // aligned; whole tiles of width rows, then one of the rest
	width int    // 0: not made yet
	n     int    // rows
}

// Quantize sets the rows for the MulQ calls that follow: n rows of cols values in x, which must stay as they are until
// the last of those. Each form that a matrix needs is made once, by the first that needs it.
func (s *Scratch) Quantize(p *pool.Pool, x []float32, n, cols int) {
	if n < 0 || cols < 1 || len(x) < n*cols {
		panic(fmt.Sprintf("tensor: %d activations given for %d rows of %d", len(x), n, cols))
	}
	s.x, s.n, s.cols = x[:n*cols], n, cols
	s.quant.width, s.float.width, s.wide.width = 0, 0, 0
}

// prepare makes the last n rows ready for a kernel set, unless they are.
func (s *Scratch) prepare(p *pool.Pool, ks *kernelSet, float bool, n int) *tiles {
	t := &s.quant
	rowBytes := s.cols / blockValues * actBlockBytes
	if float {
		t, rowBytes = &s.float, s.cols*4
	}
	width := ks.width(n)
	if t.width == width && t.n == n {
		return t
	}
	t.width, t.n = width, n
	t.reserve(n * rowBytes)
	cols := s.cols
	p.Run((n+width-1)/width, func(i int) {
		rows := min(width, n-i*width)
		dst := t.data[i*width*rowBytes:][:rows*rowBytes]
		for r := range rows {
			x := s.x[(s.n-n+i*width+r)*cols:][:cols]
			if float {
				interleave(dst, x, rows, r)
			} else {
				ks.quantize(x, dst, rows, r)
			}
		}
	})
	return t
}

func (t *tiles) reserve(n int) {
	if n+64 > len(t.buf) {
		t.buf = make([]byte, n+n/4+64)
	}
	off := -int(uintptr(unsafe.Pointer(&t.buf[0]))) & 63
	t.data = t.buf[off : off+n]
}

func interleave(dst []byte, x []float32, rows, r int) {
	d := unsafe.Slice((*float32)(unsafe.Pointer(&dst[0])), len(x)*rows)
	if rows == 1 {
		copy(d, x)
		return
	}
	for i, v := range x {
		d[i*rows+r] = v
	}
}

// quantizeTwin is the definition of an activation's int8 form; it writes row r of a tile of rows.
//
// A block's scale is its largest magnitude / 127. A block too small for that to be a normal number counts as zeros; one
// with an infinity or a NaN gets the scale NaN, which every output it meets will show.
func quantizeTwin(x []float32, dst []byte, rows, r int) {
	fields := unsafe.Slice((*uint32)(unsafe.Pointer(&dst[0])), len(dst)/4)
	for b := range len(x) / blockValues {
		blk := x[b*blockValues:][:blockValues]
		out := fields[b*actFields*rows+r:]
		top := uint32(0) // magnitudes compare as integers, NaN above all
		for _, v := range blk {
			top = max(top, math.Float32bits(v)&0x7fffffff)
		}
		d := math.Float32frombits(top) / 127
		id := float32(0)
		switch {
		case top >= 0x7f800000:
			d = math.Float32frombits(quietNaN)
		case d < minNormal32:
			d = 0
		default:
			id = 1 / d
		}
		var q [blockValues]int8
		sum, sum0 := int32(0), int32(0)
		for i, v := range blk {
			if id != 0 {
				q[i] = int8(math.RoundToEven(float64(float32(v * id))))
			}
			sum += int32(q[i])
			if i == 15 {
				sum0 = sum
			}
		}
		out[0] = math.Float32bits(d)
		out[rows] = uint32(-sum)
		out[2*rows] = uint32(-sum0)
		out[3*rows] = math.Float32bits(d * float32(sum))
		for k := range 8 {
			out[(4+k)*rows] = uint32(uint8(q[4*k])) | uint32(uint8(q[4*k+1]))<<8 | uint32(uint8(q[4*k+2]))<<16 | uint32(uint8(q[4*k+3]))<<24
		}
	}
}

const quietNaN = 0x7fc00000
