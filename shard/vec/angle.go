package vec

import "math"

// Angles computes the angles of a rotary embedding. The functions of package
// math differ in the last bits from machine to machine, so these are made of
// additions, multiplications and divisions alone, each rounded by an explicit
// conversion that keeps compilers from fusing two.
type Angles struct {
	freq []float64
}

// NewAngles returns the angles p * scale * base^(-2i/dims) / factors[i] for i <
// dims/2. factors may be nil.
func NewAngles(dims int, base, scale float64, factors []float32) *Angles {
	a := &Angles{freq: make([]float64, dims/2)}
	lb := ln(base)
	for i := range a.freq {
		f := exp(float64(float64(float64(-2*i)/float64(dims)) * lb))
		if factors != nil {
			f = float64(f / float64(factors[i]))
		}
		a.freq[i] = float64(f * scale)
	}
	return a
}

// At writes the cosines and sines of position pos. Both have dims/2 values.
func (a *Angles) At(pos int, cos, sin []float32) {
	for i, f := range a.freq {
		s, c := sincos(float64(float64(pos) * f))
		cos[i], sin[i] = float32(c), float32(s)
	}
}

// sincos is within 1e-15 for |x| < 1e8.
func sincos(x float64) (sin, cos float64) {
	const (
		twoOverPi = 0.63661977236758134308
		pio2a     = 1.57079632673412561417e+00 // the first 33 bits of pi/2
		pio2b     = 6.07710050630396597660e-11 // the next 33
		pio2c     = 2.02226624879595063154e-21 // the rest
	)
	n := math.RoundToEven(float64(x * twoOverPi))
	r := float64(float64(x-float64(n*pio2a)) - float64(n*pio2b))
	r = float64(r - float64(n*pio2c))
	z := float64(r * r)
	// Taylor series, enough terms for |r| <= pi/4: the next is below 2e-19.
	s, c := 1.0, 1.0
	for k := 20; k > 0; k -= 2 {
		c = float64(1 - float64(float64(c*z)/float64(k*(k-1))))
		s = float64(1 - float64(float64(s*z)/float64(k*(k+1))))
	}
	s = float64(s * r)
	switch int64(n) & 3 {
	case 0:
		return s, c
	case 1:
		return c, -s
	case 2:
		return -s, -c
	}
	return -c, s
}

const ln2 = 0.69314718055994530942

// ln is the natural logarithm of a positive, finite x, within 1e-15 relative.
func ln(x float64) float64 {
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = m*2, e-1
	}
	u := float64(float64(m-1) / float64(m+1))
	z := float64(u * u)
	sum := 0.0
	for k := 29; k > 0; k -= 2 { // 2 atanh(u), |u| < 0.172
		sum = float64(float64(sum*z) + float64(1/float64(k)))
	}
	return float64(float64(float64(2*u)*sum) + float64(float64(e)*ln2))
}

// exp is e to the x for |x| < 700, within 1e-15 relative for small x.
func exp(x float64) float64 {
	n := math.RoundToEven(float64(x / ln2))
	r := float64(x - float64(n*ln2))
	sum := 1.0
	for k := 20; k > 0; k-- {
		sum = float64(1 + float64(float64(sum*r)/float64(k)))
	}
	return math.Ldexp(sum, int(n))
}
