package vec

import "math"

// FMA returns x*y + z rounded once, as the vector units do.
//
// The product of two float32 is exact in float64 (48 of 53 bits). The sum is
// rounded to float64 and then to float32. Two roundings differ from one only
// if the first lands on a midpoint of the second without being exact, so there
// the float64 sum is rounded to odd instead: its last bit says that something
// was cut off, and 53 bits are more than the 2*24+2 that make the second
// rounding right (Boldo and Melquiond, 2008).
func FMA(x, y, z float32) float32 {
	p := float64(x) * float64(y)
	s := float64(p) + float64(z)
	b := math.Float64bits(s)
	// Midpoints of normal float32 have this pattern in the 29 bits that are cut
	// off. Subnormal results cut more bits, infinities and NaN cut none.
	if b&(1<<29-1) != 1<<28 && b&(1<<63-1) >= 0x3810000000000000 {
		return float32(s)
	}
	return float32(sumToOdd(p, float64(z), s))
}

// sumToOdd returns a + b rounded to odd, given s, the sum rounded to nearest.
func sumToOdd(a, b, s float64) float64 {
	if s-s != 0 {
		return s
	}
	bb := float64(s - a)
	err := float64(a-float64(s-bb)) + float64(b-bb) // exact (Knuth)
	bits := math.Float64bits(s)
	if err == 0 || bits&1 == 1 {
		return s
	}
	if (err > 0) == (s > 0) {
		return math.Float64frombits(bits + 1)
	}
	return math.Float64frombits(bits - 1)
}
