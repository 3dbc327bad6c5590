package tensor

import (
	"math"
	"math/big"
)

// exactFMA rounds a*b+c once, by arithmetic of 1200 bits.
func exactFMA(a, b, c float32) float32 {
	plain := float64(a)*float64(b) + float64(c)
	if math.IsNaN(plain) || math.IsInf(plain, 0) || plain == 0 {
		return float32(plain)
	}
	x := new(big.Float).SetPrec(1200).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
	x.Add(x, big.NewFloat(float64(c)))
	f, _ := x.Float32()
	return f
}
