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
	d, m   [2]byte           // float16 scale and minimum (of the super-block)
	sc, mn byte              // the sub-block's scale and minimum
	sc16   [2]byte           // the two signed scales of a Q6_K sub-block
}

// dequant multiplies a block out with ggml's roundings.
func (b *block) dequant(f *form, dst []float32) {
	d, m := halfAt(b.d[:]), float32(0)
	switch {
	case f.halves:
		dl, dh := d*float32(int8(b.sc16[0])), d*float32(int8(b.sc16[1]))
		for i := range 16 {
			dst[i] = dl * float32(int32(b.q[i])-f.zero)
			dst[i+16] = dh * float32(int32(b.q[i+16])-f.zero)
		}
		return
	case f.super:
		d, m = d*float32(b.sc), -float32(halfAt(b.m[:])*float32(b.mn))
	case f.mins:
		m = halfAt(b.m[:])
	}
	for i, q := range b.q {
		dst[i] = d * float32(int32(q)-f.zero)
		if f.mins {
			dst[i] = float32(d*float32(q)) + m
		}
	}
}
