package vec

import "math"

// ToF16 rounds x to IEEE 754 binary16, ties to even. Too large is infinity.
func ToF16(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000: // NaN: keep the top of its payload, made quiet
		return sign | 0x7e00 | uint16(b>>13&0x1ff)
	case b >= 0x477ff000: // rounds past 65504
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: units of 2^-24, by adding 0.5 whose unit that is
		h := math.Float32frombits(b) + 0.5
		return sign | uint16(math.Float32bits(h)-0x3f000000)
	}
	b += 0xfff + b>>13&1
	return sign | uint16((b-0x38000000)>>13)
}

// FromF16 widens a binary16 value. It is exact.
func FromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	e, m := uint32(h>>10&31), uint32(h&0x3ff)
	switch {
	case e == 31 && m != 0:
		return math.Float32frombits(sign | 0x7fc00000 | m<<13)
	case e == 31:
		return math.Float32frombits(sign | 0x7f800000)
	case e == 0:
		v := float32(m) * (1.0 / (1 << 24))
		return math.Float32frombits(sign | math.Float32bits(v))
	}
	return math.Float32frombits(sign | (e+112)<<23 | m<<13)
}
