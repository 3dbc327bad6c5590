package sample

import (
	"errors"
	"fmt"
	"math"
)

// math.Exp and math.Log are assembly on some processors and differ in the last bit.
// The two below do the same IEEE operations everywhere: each product is rounded
// by a conversion before it is added, so that no compiler may fuse the two.

const (
	log2e = 1.44269504088896338700
	ln2Hi = 6.93147180369123816490e-01 // ln 2 in two parts: k*ln2Hi is exact for |k| < 2^20
	ln2Lo = 1.90821492927058770002e-10
)

// factorials holds 1/n!, rounded.
var factorials = [...]float64{1, 1, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320, 1. / 362880,
	1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800}

// exp is e^x for x <= 0, within 2 units of the last place; below -700 it is 0.
func exp(x float64) float64 {
	if !(x >= -700) {
		return 0
	}
	k := math.Floor(float64(x*log2e) + 0.5)
	r := float64(x-float64(k*ln2Hi)) - float64(k*ln2Lo) // |r| <= ln(2)/2
	y := factorials[13]
	for n := 12; n >= 0; n-- {
		y = float64(y*r) + factorials[n]
	}
	return float64(y * math.Float64frombits(uint64(int64(k)+1023)<<52))
}

// log is the natural logarithm of x >= 1, within 1e-15 of the value.
func log(x float64) float64 {
	m, k := math.Frexp(x) // exact: it only takes bits apart
	// m in [0.5, 1): ln m = -2 artanh((1-m)/(1+m)); the series needs |z| small.
	if m < math.Sqrt2/2 {
		m, k = m*2, k-1
	}
	z := (m - 1) / (m + 1) // |z| < 0.172
	zz := z * z
	y := 0.0
	for n := 23; n >= 1; n -= 2 {
		y = float64(y*zz) + 1/float64(n)
	}
	return float64(float64(k)*ln2Hi) + (float64(float64(k)*ln2Lo) + float64(2*float64(z*y)))
}

// logSum is the logarithm of the sum of e^logit, added by ascending id.
func logSum(logits []float32) (float64, error) {
	top := float32(math.Inf(-1))
	for id, l := range logits {
		if l != l || l > math.MaxFloat32 {
			return 0, fmt.Errorf("the logit of token %d is %v", id, l)
		}
		top = max(top, l)
	}
	if top < -math.MaxFloat32 {
		return 0, errors.New("every logit is -Inf")
	}
	sum := 0.0
	for _, l := range logits {
		sum += exp(float64(l) - float64(top))
	}
	return float64(top) + log(sum), nil
}

// random is the n-th number of the SplitMix64 sequence of seed, as 53 bits in [0, 1).
// It depends on seed and n alone.
func random(seed, n uint64) float64 {
	return float64(splitMix(seed, n)>>11) * 0x1p-53
}

func splitMix(seed, n uint64) uint64 {
	z := seed + (n+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
