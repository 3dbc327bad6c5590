package tensor

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/meshnet/meshnet/shard/gguf"
)

// DequantRow writes row i of a tensor, dequantized exactly as ggml does, to dst[:Dims[0]]. It reads the file's own bytes:
// nothing is packed.
func DequantRow(t *gguf.Tensor, i int, dst []float32) error {
	f := formOf(t.Type)
	switch {
	case f == nil:
		return fmt.Errorf("tensor %q: type %s has no kernels here; known are %s", t.Name, t.Type, knownTypes())
	case i < 0 || i >= t.Rows():
		return fmt.Errorf("tensor %q: row %d is not one of its %d", t.Name, i, t.Rows())
	case uint64(len(dst)) < t.Dims[0]:
		return fmt.Errorf("tensor %q: %d values of room for a row of %d", t.Name, len(dst), t.Dims[0])
	}
	raw := t.Data[i*t.RowBytes():][:t.RowBytes()]
	dst = dst[:t.Dims[0]]
	if f.float() {
		for c := range dst {
			dst[c] = f.floatAt(raw, c)
		}
		return nil
	}
	var b block
	for u := 0; u < len(dst)/blockValues; u++ {
		f.readBlock(raw, u, &b)
		b.dequant(f, dst[u*blockValues:][:blockValues])
	}
	return nil
}

// floatAt is value i of a row of floats.
func (f *form) floatAt(raw []byte, i int) float32 {
	switch f.id {
	case formF32:
		return math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	case formF16:
		return halfAt(raw[2*i:])
	}
	return bfloat(binary.LittleEndian.Uint16(raw[2*i:]))
}

// block is 32 weights of one row, unpacked but not yet multiplied out.
type block struct {
	q      [blockValues]byte // 0..2^bits-1; 8 bits: the signed byte's bits, top bit flipped
	d, m   [2]byte           // float16 (or bfloat16) scale and minimum (of the super-block)
	sc, mn byte              // the sub-block's scale, signed, and minimum
	sc16   [2]byte           // of halves: the two scales, signed; with mins the scales below the minimums
}

// finite says whether the scale and the minimum are.
func (b *block) finite(f *form) bool {
	if f.bfloat {
		return le.Uint16(b.d[:]) < overflowMXFP4
	}
	return finiteHalf(b.d[:]) && (!f.mins || finiteHalf(b.m[:]))
}

// scales are the scale and the minimum of each half of the block, multiplied out as ggml rounds them. The minimum is to be
// added.
func (b *block) scales(f *form) (d, m [2]float32) {
	base := halfAt(b.d[:])
	if f.bfloat {
		base = bfloat(le.Uint16(b.d[:]))
	}
	d, m = [2]float32{base, base}, [2]float32{}
	if f.mins {
		m[0] = halfAt(b.m[:])
	}
	switch {
	case f.halves && f.mins:
		m[1] = m[0]
		for h, v := range b.sc16 {
			d[h], m[h] = base*float32(v&15), -float32(m[h]*float32(v>>4))
		}
		return d, m
	case f.halves:
		for h, v := range b.sc16 {
			d[h] = base * float32(int8(v))
		}
	case f.super:
		d[0], m[0] = base*float32(int8(b.sc)), -float32(m[0]*float32(b.mn))
		d[1] = d[0]
	}
	m[1] = m[0]
	return d, m
}

// weight is what the bits q mean, before the scale.
func (f *form) weight(q byte) int32 {
	if f.table != nil {
		return int32(f.table[q])
	}
	return int32(q) - f.zero
}

// dequant multiplies a block out with ggml's roundings.
func (b *block) dequant(f *form, dst []float32) {
	d, m := b.scales(f)
	for i, q := range b.q {
		dst[i] = float32(d[i/16] * float32(f.weight(q)))
		if f.mins {
			dst[i] += m[i/16]
		}
	}
}
