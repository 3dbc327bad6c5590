// Package quant turns float32 weights into the blocks of quantized types.
//
// Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 round as ggml's reference quantizers do and give the same bytes. The K types search for
// the scales with the least error, each in its own way (kquant.go), so their bytes differ from ggml's, not their quality.
//
// Invariant: a row gives the same bytes on every machine, since peers know a model by its hash: every product is rounded
// before it is added. Start reading at Append.
package quant

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/vec"
)

// Types lists what Append can make, from the largest to the smallest.
func Types() []gguf.Type {
	return []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q6_K, gguf.Q5_1, gguf.Q5_K, gguf.Q5_0, gguf.Q4_1, gguf.Q4_K, gguf.Q4_0}
}

// Parse finds a type by its name, in any case.
func Parse(name string) (gguf.Type, error) {
	var names []string
	for _, t := range Types() {
		if strings.EqualFold(name, t.String()) {
			return t, nil
		}
		names = append(names, t.String())
	}
	return 0, fmt.Errorf("%q is not a type that can be made; those are %s", name, strings.Join(names, ", "))
}

// Append appends a row of whole blocks of type t to dst. It fails on values that are not finite, on those that the type
// cannot hold (a float16, or the float16 scale of a block, ends at 65504), and on a row that is not whole blocks.
func Append(dst []byte, t gguf.Type, row []float32) ([]byte, error) {
	if !slices.Contains(Types(), t) {
		return dst, fmt.Errorf("%s cannot be made here", t)
	}
	size := t.BlockSize()
	if len(row)%size != 0 {
		return dst, fmt.Errorf("rows of %d values are not whole blocks of %d (%s)", len(row), size, t)
	}
	for i, v := range row {
		if !finite(v) {
			return dst, fmt.Errorf("value %d is %g", i, v)
		}
	}
	dst = slices.Grow(dst, len(row)/size*t.BlockBytes())
	for i := 0; i < len(row); i += size {
		at := len(dst)
		dst = append(dst, make([]byte, t.BlockBytes())...)
		if !block(t, dst[at:], row[i:i+size]) {
			return dst[:at], fmt.Errorf("values near %d are too large for %s: the largest is %g", i, t, largest(row[i:i+size]))
		}
	}
	return dst, nil
}

// beyond is more than any type but the floats can hold; squares of what is below stay far from infinity.
const beyond = 1 << 30

// block fills b, which is zero, and says whether all fits.
func block(t gguf.Type, b []byte, x []float32) bool {
	if len(x) > 1 && largest(x) > beyond {
		return false
	}
	switch t {
	case gguf.F32:
		le.PutUint32(b, math.Float32bits(x[0]))
		return true
	case gguf.F16:
		return putHalf(b, x[0])
	case gguf.BF16:
		v := math.Float32bits(x[0])
		v += 0x7fff + v>>16&1 // to the nearest, ties to even
		le.PutUint16(b, uint16(v>>16))
		return v&0x7f800000 != 0x7f800000
	case gguf.Q8_0:
		return eight(b, x)
	case gguf.Q4_0:
		return signed(b, x, 8)
	case gguf.Q5_0:
		return signed(b, x, 16)
	case gguf.Q4_1:
		return spanned(b, x, 15)
	case gguf.Q5_1:
		return spanned(b, x, 31)
	case gguf.Q4_K:
		return fourK(b, x)
	case gguf.Q5_K:
		return fiveK(b, x)
	case gguf.Q6_K:
		return sixK(b, x)
	}
	panic("quant: Types lists what block does not know")
}

var le = binary.LittleEndian

func finite(x float32) bool { return math.Float32bits(x)&0x7f800000 != 0x7f800000 }

// putHalf stores a float16 and says whether it is finite.
func putHalf(b []byte, x float32) bool {
	h := vec.ToF16(x)
	le.PutUint16(b, h)
	return h&0x7c00 != 0x7c00
}

func largest(x []float32) float32 {
	top := float32(0)
	for _, v := range x {
		top = max(top, v, -v)
	}
	return top
}

// inverse is 1/d, or 0 where that could overflow: such a scale is 0 as a float16.
func inverse(d float32) float32 {
	if max(d, -d) < 0x1p-126 {
		return 0
	}
	return 1 / d
}

// eight is Q8_0: the scale makes the largest magnitude 127.
func eight(b []byte, x []float32) bool {
	d := largest(x) / 127
	id := inverse(d)
	for i, v := range x {
		b[2+i] = byte(int8(math.Round(float64(float32(v * id)))))
	}
	return putHalf(b, d)
}

// signed is Q4_0 and Q5_0: the scale makes the value of the largest magnitude, the first of several, -zero.
func signed(b []byte, x []float32, zero float32) bool {
	top := float32(0)
	for _, v := range x {
		if max(v, -v) > max(top, -top) {
			top = v
		}
	}
	d := top / -zero
	id := inverse(d)
	var q [32]byte
	for i, v := range x {
		q[i] = byte(min(2*zero-1, float32(v*id)+(zero+0.5)))
	}
	putQuants(b[2:], &q, zero == 16)
	return putHalf(b, d)
}

// spanned is Q4_1 and Q5_1: the minimum is 0, the maximum top.
func spanned(b []byte, x []float32, top float32) bool {
	lo, hi := slices.Min(x), slices.Max(x)
	d := (hi - lo) / top
	id := inverse(d)
	var q [32]byte
	for i, v := range x {
		q[i] = byte(min(top, float32((v-lo)*id)+0.5))
	}
	putQuants(b[4:], &q, top == 31)
	ok := putHalf(b, d)
	return putHalf(b[2:], lo) && ok
}

// putQuants stores 32 values of 4 or 5 bits: the fifth bits first, then nibbles, value i beside value 16+i.
func putQuants(b []byte, q *[32]byte, fifth bool) {
	if fifth {
		h := uint32(0)
		for i, v := range q {
			h |= uint32(v>>4) << i
		}
		le.PutUint32(b, h)
		b = b[4:]
	}
	for i := range 16 {
		b[i] = q[i]&15 | q[16+i]&15<<4
	}
}
