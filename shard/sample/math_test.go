package sample

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// number does float64 arithmetic one rounding at a time, in software.
type number struct{ *big.Float }

func num(x float64) number {
	return number{new(big.Float).SetPrec(53).SetMode(big.ToNearestEven).SetFloat64(x)}
}
func (a number) add(b number) number { return number{num(0).Float.Add(a.Float, b.Float)} }
func (a number) sub(b number) number { return number{num(0).Float.Sub(a.Float, b.Float)} }
func (a number) mul(b number) number { return number{num(0).Float.Mul(a.Float, b.Float)} }
func (a number) quo(b number) number { return number{num(0).Float.Quo(a.Float, b.Float)} }
func (a number) float() float64      { f, _ := a.Float64(); return f }

// expTwin is exp with every operation rounded on its own: what a fused
// multiply-add, or an optimizer's other order, would not give.
func expTwin(x float64) float64 {
	k := math.Floor(num(x).mul(num(1.4426950408889634)).add(num(0.5)).float())
	r := num(x).sub(num(k).mul(num(6.93147180369123816490e-01))).sub(num(k).mul(num(1.90821492927058770002e-10)))
	factorial, terms := 1.0, []float64{}
	for n := 0; n <= 13; n++ {
		terms = append(terms, 1/factorial)
		factorial *= float64(n + 1)
	}
	y := num(terms[13])
	for n := 12; n >= 0; n-- {
		y = y.mul(r).add(num(terms[n]))
	}
	return math.Ldexp(y.float(), int(k))
}

func logTwin(x float64) float64 {
	m, k := math.Frexp(x)
	if m < 0.70710678118654752440 {
		m, k = m*2, k-1
	}
	z := num(m).sub(num(1)).quo(num(m).add(num(1)))
	zz := z.mul(z)
	y := num(0)
	for n := 23; n >= 1; n -= 2 {
		y = y.mul(zz).add(num(1).quo(num(float64(n))))
	}
	kk := num(float64(k))
	return kk.mul(num(6.93147180369123816490e-01)).add(kk.mul(num(1.90821492927058770002e-10)).add(num(2).mul(z.mul(y)))).float()
}

func TestExp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	xs := []float64{0, -1, -math.Ln2, -math.Ln2 / 2, -0.5, -1e-300, -1e-17, -699.9, -700}
	for range 5000 {
		xs = append(xs, -40*r.Float64(), -700*r.Float64(), -math.Exp(-30*r.Float64()))
	}
	for _, x := range xs {
		got := exp(x)
		if twin := expTwin(x); got != twin {
			t.Fatalf("exp(%v) = %x, rounded step by step %x", x, got, twin)
		}
		if want := math.Exp(x); math.Abs(got-want) > 4.5e-16*want {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	for _, x := range []float64{-701, math.Inf(-1), math.NaN()} {
		if got := exp(x); got != 0 {
			t.Errorf("exp(%v) = %v, want 0", x, got)
		}
	}
	if exp(0) != 1 {
		t.Errorf("exp(0) = %v: the likeliest token's weight must be 1", exp(0))
	}
}

func TestLog(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	xs := []float64{1, 2, math.Sqrt2, math.E, 1 << 20, 1 + 0x1p-52}
	for range 5000 {
		xs = append(xs, 1+r.Float64(), 1+200000*r.Float64())
	}
	for _, x := range xs {
		got := log(x)
		if twin := logTwin(x); got != twin {
			t.Fatalf("log(%v) = %x, rounded step by step %x", x, got, twin)
		}
		if want := math.Log(x); math.Abs(got-want) > 1e-15*max(1, want) {
			t.Fatalf("log(%v) = %v, want %v", x, got, want)
		}
	}
}

// The published first outputs for the seed 1234567 (Vigna's splitmix64.c).
func TestSplitMix(t *testing.T) {
	for n, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := splitMix(1234567, uint64(n)); got != want {
			t.Errorf("number %d is %d, want %d", n, got, want)
		}
	}
}
