package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// DType is the type of the payload's numbers, little endian.
type DType uint8

const (
	F32 DType = 1 + iota
	F16
)

// Size is bytes a value, 0 for an unknown type.
func (t DType) Size() int {
	switch t {
	case F32:
		return 4
	case F16:
		return 2
	}
	return 0
}

func (t DType) String() string {
	switch t {
	case F32:
		return "f32"
	case F16:
		return "f16"
	}
	return fmt.Sprintf("dtype %d", uint8(t))
}

// ErrNotFinite says that a NaN or an infinity is among the values (CodeNotFinite),
// or, on the way to f16, one over 65504.
var ErrNotFinite = errors.New("a value is not finite")

// Floats decodes a payload into dst, which has exactly as many values. After an
// error dst is garbage.
func Floats(dst []float32, payload []byte, t DType) error {
	if t.Size() == 0 || len(payload) != len(dst)*t.Size() {
		return fmt.Errorf("%d bytes of %v are not %d values", len(payload), t, len(dst))
	}
	if t == F16 {
		return floats16(dst, payload)
	}
	if littleEndian {
		copy(asBytes(dst), payload)
	} else {
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(payload[4*i:]))
		}
	}
	if !Finite(dst) {
		return ErrNotFinite
	}
	return nil
}

// AppendFloats appends x as a payload of type t. f32 is lossless and unchecked;
// f16 rounds to nearest even and fails with ErrNotFinite on what it can't hold.
func AppendFloats(dst []byte, x []float32, t DType) ([]byte, error) {
	switch t {
	case F32:
		return append(dst, Bytes(x)...), nil
	case F16:
		start := len(dst)
		for _, v := range x {
			h := f32to16(v)
			if h&0x7c00 == 0x7c00 {
				return dst[:start], ErrNotFinite
			}
			dst = binary.LittleEndian.AppendUint16(dst, h)
		}
		return dst, nil
	}
	return dst, fmt.Errorf("%v is not known", t)
}

// Bytes is the f32 payload of x: x's own memory where the machine is little endian,
// so x must stay unchanged until the payload is written.
func Bytes(x []float32) []byte {
	if littleEndian {
		return asBytes(x)
	}
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// Finite says that no value is NaN or infinite. Two values a step: adding one to an
// exponent of all ones carries into the sign bit, and into nothing else.
func Finite(x []float32) bool {
	const exp, one, carry = 0x7f800000_7f800000, 0x00800000_00800000, 0x80000000_80000000
	var seen uint64
	for ; len(x) >= 4; x = x[4:] {
		a := uint64(math.Float32bits(x[0])) | uint64(math.Float32bits(x[1]))<<32
		b := uint64(math.Float32bits(x[2])) | uint64(math.Float32bits(x[3]))<<32
		seen |= (a&exp + one) | (b&exp + one)
	}
	for _, v := range x {
		seen |= uint64(math.Float32bits(v))&exp + one
	}
	return seen&carry == 0
}

func floats16(dst []float32, payload []byte) error {
	var bad bool
	for i := range dst {
		h := binary.LittleEndian.Uint16(payload[2*i:])
		bad = bad || h&0x7c00 == 0x7c00
		dst[i] = f16to32(h)
	}
	if bad {
		return ErrNotFinite
	}
	return nil
}

func f16to32(h uint16) float32 {
	sign, exp, frac := uint32(h&0x8000)<<16, uint32(h>>10)&0x1f, uint32(h)&0x3ff
	switch exp {
	case 0: // subnormal: frac x 2^-24, exact in f32
		return math.Float32frombits(sign | math.Float32bits(float32(frac)*0x1p-24))
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

func f32to16(v float32) uint16 {
	u := math.Float32bits(v)
	sign, a := uint16(u>>16)&0x8000, u&0x7fffffff
	switch {
	case a > 0x7f800000:
		return sign | 0x7e00
	case a >= 0x477ff000: // 65520 and above round to infinity
		return sign | 0x7c00
	case a < 0x38800000: // below 2^-14: units of 2^-24, rounded by the float adder
		return sign | uint16(math.Float32bits(math.Float32frombits(a)+0.5)-math.Float32bits(0.5))
	}
	a += 0xfff + a>>13&1 // to nearest, ties to even
	return sign | uint16((a-112<<23)>>13)
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

func asBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
