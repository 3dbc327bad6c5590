package tensor

import "math"

// fma32 is a*b+c in float32 with one rounding, as the vector units do it.
func fma32(a, b, c float32) float32 {
	s := float64(a)*float64(b) + float64(c) // the product is exact, the sum is rounded to 53 bits
	// Rounding s again is right unless s lies exactly between two float32 (or is subnormal there) by its own rounding.
	if math.Float64bits(s)&0x1fffffff != 0x10000000 && (s >= minNormal32 || s <= -minNormal32) {
		return float32(s)
	}
	return fmaExact(a, b, c)
}

const minNormal32 = 0x1p-126

// fmaExact rounds the 53-bit sum to odd, which keeps the last rounding honest.
func fmaExact(a, b, c float32) float32 {
	p, q := float64(a)*float64(b), float64(c)
	s := p + q
	if math.IsInf(s, 0) || math.IsNaN(s) {
		return float32(s)
	}
	t := s - p
	if err := (p - (s - t)) + (q - t); err != 0 {
		u := math.Float64bits(s)
		if u&1 == 0 {
			if (err > 0) == (s > 0) {
				u++
			} else {
				u--
			}
			s = math.Float64frombits(u)
		}
	}
	return float32(s)
}

// half converts a float16, given as its bits, exactly.
func half(h uint16) float32 {
	sign, exp, man := uint32(h&0x8000)<<16, uint32(h>>10&31), uint32(h&0x3ff)
	switch exp {
	case 0:
		f := float32(man) * 0x1p-24
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}

func halfAt(b []byte) float32 { return half(uint16(b[0]) | uint16(b[1])<<8) }

// finiteHalf says whether a float16 is neither infinite nor NaN.
func finiteHalf(b []byte) bool { return b[1]&0x7c != 0x7c }

func bfloat(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }
