package vec

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// eachSet runs fn for every assembly set that this CPU has, and says which it
// has not.
func eachSet(t *testing.T, fn func(t *testing.T, k *Kernels)) {
	for _, name := range Names() {
		if name == "generic" {
			continue
		}
		k, err := For(name)
		if err != nil {
			t.Logf("not tested here: %v", err)
			continue
		}
		t.Run(name, func(t *testing.T) { fn(t, k) })
	}
}

func noise(r *rand.Rand, n int, scale float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64()) * scale
	}
	return x
}

func same(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: [%d] is %g (%#x), the twin has %g (%#x)", what, i,
				got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

func clone(x []float32) []float32 { return append([]float32(nil), x...) }

func TestKernelsEqualTheirTwins(t *testing.T) {
	g := twin()
	eachSet(t, func(t *testing.T, k *Kernels) {
		r := rand.New(rand.NewPCG(1, 2))
		for _, n := range []int{16, 32, 48, 64, 96, 576, 1536} {
			for _, scale := range []float32{1e-20, 1e-3, 1, 30, 1e4} {
				at := fmt.Sprintf("n=%d scale=%g", n, scale)
				x, w, up := noise(r, n, scale), noise(r, n, 1), noise(r, n, 1)
				a, b := make([]float32, n), make([]float32, n)

				k.RMSNorm(a, x, w, 1e-5)
				g.RMSNorm(b, x, w, 1e-5)
				same(t, "RMSNorm "+at, a, b)
				k.SiLUMul(a, x, up)
				g.SiLUMul(b, x, up)
				same(t, "SiLUMul "+at, a, b)
				k.GELUMul(a, x, up)
				g.GELUMul(b, x, up)
				same(t, "GELUMul "+at, a, b)
				for _, m := range []int{n, n - 1, n - 15} {
					copy(a, x)
					copy(b, x)
					k.SoftCap(a[:m], 30)
					g.SoftCap(b[:m], 30)
					same(t, fmt.Sprint("SoftCap ", m, " ", at), a, b)
				}
				copy(a, w)
				copy(b, w)
				k.Add(a, x)
				g.Add(b, x)
				same(t, "Add "+at, a, b)
				k.Scale(a, scale)
				g.Scale(b, scale)
				same(t, "Scale "+at, a, b)
				copy(a, w)
				copy(b, w)
				k.ScaleAdd(a, a, scale, x)
				g.ScaleAdd(b, b, scale, x)
				same(t, "ScaleAdd "+at, a, b)
				k.ScaleAdd(a, up, 0.3, a)
				g.ScaleAdd(b, up, 0.3, b)
				same(t, "ScaleAdd in place "+at, a, b)
				for _, m := range []int{n, n - 1, n - 15} {
					copy(a, x)
					copy(b, x)
					peakA, sumA := k.Softmax(a, m)
					peakB, sumB := g.Softmax(b, m)
					same(t, "Softmax "+at, append(a, peakA, sumA), append(b, peakB, sumB))
					a, b = a[:n], b[:n]
				}
			}
		}
	})
}

func TestRopeEqualsItsTwin(t *testing.T) {
	g := twin()
	eachSet(t, func(t *testing.T, k *Kernels) {
		r := rand.New(rand.NewPCG(3, 4))
		for _, dims := range []int{16, 32, 48, 64, 80, 128} {
			angles := NewAngles(dims, 10000, 1, nil)
			cos, sin := make([]float32, dims/2), make([]float32, dims/2)
			angles.At(r.IntN(5000), cos, sin)
			x := noise(r, dims+16, 1)
			a, b := clone(x), clone(x)
			k.RopePairs(a, cos, sin)
			g.RopePairs(b, cos, sin)
			same(t, fmt.Sprint("RopePairs ", dims), a, b)
			same(t, "RopePairs beyond its dims", a[dims:], x[dims:])
			k.RopeHalves(a, cos, sin)
			g.RopeHalves(b, cos, sin)
			same(t, fmt.Sprint("RopeHalves ", dims), a, b)
			same(t, "RopeHalves beyond its dims", a[dims:], x[dims:])
		}
	})
}

// parts is a key chunk and a value chunk of noise. One key and one value are such as nothing real is.
func parts(r *rand.Rand, c CacheType, dim int) (keys, values []byte) {
	keys, values = make([]byte, c.PartBytes(dim)), make([]byte, c.PartBytes(dim))
	for slot := range Chunk {
		scale := float32(math.Ldexp(1, r.IntN(20)-10))
		if slot == 41 {
			scale = 1e7
		}
		c.PutKey(keys, slot, noise(r, dim, scale))
		c.PutValue(values, slot, noise(r, dim, scale))
	}
	return keys, values
}

func TestAttentionPiecesEqualTheirTwins(t *testing.T) {
	g := twin()
	eachSet(t, func(t *testing.T, k *Kernels) {
		r := rand.New(rand.NewPCG(5, 6))
		for _, c := range CacheTypes() {
			for _, dim := range []int{16, 32, 48, 64, 80, 96, 112, 128, 256} {
				keys, values := parts(r, c, dim)
				for rows := 1; rows <= Tile; rows++ {
					for _, stride := range []int{Chunk, 3*Chunk + 16} {
						at := fmt.Sprintf("%v dim=%d rows=%d stride=%d", c, dim, rows, stride)
						q := noise(r, rows*dim, 1)
						a, b := noise(r, rows*stride, 1), make([]float32, rows*stride)
						copy(b, a)
						k.Scores(c, a, stride, q, rows, keys, dim)
						g.Scores(c, b, stride, q, rows, keys, dim)
						same(t, "Scores "+at, a, b)
						for _, some := range [][2]int{{0, 0}, {0, 1}, {5, 15}, {47, 16}, {3, 17}, {1, 63}, {0, Chunk}, {63, 1}} {
							slot, n := some[0], some[1]
							accA := noise(r, rows*dim, 1)
							accB := clone(accA)
							k.Mix(c, accA, a, stride, rows, values, dim, slot, n)
							g.Mix(c, accB, b, stride, rows, values, dim, slot, n)
							same(t, fmt.Sprintf("Mix %s slot=%d n=%d", at, slot, n), accA, accB)
						}
					}
				}
			}
		}
	})
}

// A tile must give each of its rows the bits that the row has alone.
func TestTileEqualsSingleRows(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	const dim = 48
	for _, c := range CacheTypes() {
		keys, values := parts(r, c, dim)
		q := noise(r, Tile*dim, 1)
		for _, name := range Names() {
			k, err := For(name)
			if err != nil {
				continue
			}
			out, acc := make([]float32, Tile*Chunk), make([]float32, Tile*dim)
			k.Scores(c, out, Chunk, q, Tile, keys, dim)
			k.Mix(c, acc, out, Chunk, Tile, values, dim, 3, 50)
			for row := range Tile {
				one, oneAcc, oneQ := make([]float32, Chunk), make([]float32, dim), make([]float32, dim)
				for d := range dim {
					oneQ[d] = q[d*Tile+row]
				}
				k.Scores(c, one, Chunk, oneQ, 1, keys, dim)
				same(t, fmt.Sprint(name, c, " Scores"), out[row*Chunk:(row+1)*Chunk], one)
				k.Mix(c, oneAcc, one, Chunk, 1, values, dim, 3, 50)
				same(t, fmt.Sprint(name, c, " Mix"), acc[row*dim:(row+1)*dim], oneAcc)
			}
		}
	}
}

// The scores are those of the keys that were put, and the mean that of the values, as
// near as their type keeps them: half a unit of binary16, half a step of the largest of 32.
func TestAttentionAgainstFloat64(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	g := twin()
	for _, dim := range []int{16, 48, 64, 112} {
		for c, near := range map[CacheType]float64{CacheF32: 1e-6, CacheF16: 1.0 / (1 << 11), CacheQ8: 0.51 / 127} {
			keys, values := make([]byte, c.PartBytes(dim)), make([]byte, c.PartBytes(dim))
			q, out, mean := noise(r, dim, 1), make([]float32, Chunk), make([]float32, dim)
			score, room := make([]float64, Chunk), make([]float64, Chunk)
			sum, slack := make([]float64, dim), make([]float64, dim)
			var weights []float32
			for j := range Chunk {
				key, value, w := noise(r, dim, 1), noise(r, dim, 1), r.Float32()
				c.PutKey(keys, j, key)
				c.PutValue(values, j, value)
				weights = append(weights, w)
				for d := range dim {
					largest := func(x []float32) float64 {
						if c != CacheQ8 {
							return math.Abs(float64(x[d]))
						}
						most := 0.0
						for _, v := range x[d/32*32 : min(d/32*32+32, dim)] {
							most = max(most, math.Abs(float64(v)))
						}
						return most
					}
					score[j] += float64(key[d]) * float64(q[d])
					room[j] += math.Abs(float64(q[d])) * (near*largest(key) + 1e-6)
					sum[d] += float64(w) * float64(value[d])
					slack[d] += float64(w) * (near*largest(value) + 1e-6)
				}
			}
			g.Scores(c, out, Chunk, q, 1, keys, dim)
			g.Mix(c, mean, weights, Chunk, 1, values, dim, 0, Chunk)
			for j := range Chunk {
				if math.Abs(float64(out[j])-score[j]) > room[j] {
					t.Errorf("%v, dim %d, key %d: %g, want %g ± %g", c, dim, j, out[j], score[j], room[j])
				}
			}
			for d := range dim {
				if math.Abs(float64(mean[d])-sum[d]) > slack[d] {
					t.Errorf("%v, dim %d, value %d: %g, want %g ± %g", c, dim, d, mean[d], sum[d], slack[d])
				}
			}
		}
	}
}

// What a cache gives back for one value, put as the largest of its block beside a smaller one.
func TestCacheRounding(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		t       CacheType
		x, want float32
	}{
		{CacheF32, 1e30, 1e30}, {CacheF32, nan, nan},
		{CacheF16, 65504, 65504}, {CacheF16, 65519.9, 65504}, {CacheF16, 65520, 65504}, {CacheF16, -1e30, -65504}, {CacheF16, math.MaxFloat32, 65504},
		{CacheF16, inf, inf}, {CacheF16, -inf, -inf}, {CacheF16, nan, nan},
		{CacheF16, 2049, 2048}, {CacheF16, 2051, 2052}, {CacheF16, 0x1p-24, 0x1p-24}, {CacheF16, 0x1p-25, 0}, {CacheF16, 1e-30, 0},
		{CacheQ8, 127, 127}, {CacheQ8, -1e30, -1e30}, {CacheQ8, 0, 0}, {CacheQ8, 0x1p-101, 0}, {CacheQ8, 1e-44, 0},
		{CacheQ8, inf, nan}, {CacheQ8, -inf, nan}, {CacheQ8, nan, nan},
	} {
		const dim, slot = 48, 21
		for _, at := range []int{0, 31, 32, 47} { // the last block is half a block
			x := make([]float32, dim)
			x[at], x[at^1] = c.x, c.x/500
			part := make([]byte, c.t.PartBytes(dim))
			var keys, values [Lanes]float32
			c.t.PutKey(part, slot, x)
			c.t.loadKeys(&keys, part, dim, slot/Lanes, at)
			clear(part)
			c.t.PutValue(part, slot, x)
			c.t.loadValue(&values, part, dim, slot, at/Lanes*Lanes)
			for what, got := range map[string]float32{"key": keys[slot%Lanes], "value": values[at%Lanes]} {
				off := math.Abs(float64(got-c.want)) > 1e-6*math.Abs(float64(c.want)) && got != c.want
				if c.want != c.want {
					off = got == got
				}
				if off {
					t.Errorf("%v %s at %d: %g comes back as %g, want %g", c.t, what, at, c.x, got, c.want)
				}
			}
		}
	}
}

// Codes are the nearest integers to x times 127 over the block's largest magnitude; ties go to the even one.
func TestCacheCodes(t *testing.T) {
	for x, want := range map[float32]int8{127: 127, -127: -127, 0.5: 0, 1.5: 2, -0.5: 0, -2.5: -2, 63.5: 64, 0.49: 0, 126.6: 127} {
		values := make([]float32, 32)
		values[3], values[9] = 127, x
		part := make([]byte, CacheQ8.PartBytes(32))
		CacheQ8.PutValue(part, 0, values)
		if got := int8(part[9]); got != want || part[3] != 127 {
			t.Errorf("the code of %g is %d, want %d", x, got, want)
		}
	}
}

func TestCacheTypeNames(t *testing.T) {
	for _, c := range CacheTypes() {
		if got, err := ParseCacheType(c.String()); err != nil || got != c {
			t.Errorf("%v reads back as %v, %v", c, got, err)
		}
	}
	if _, err := ParseCacheType(""); err == nil || CacheType(0).Known() || CacheType(9).Known() {
		t.Error("a type without a name is known")
	}
}

func TestExpAgainstFloat64(t *testing.T) {
	for i := range 400000 {
		x := float32(-87 + float64(i)*175/400000)
		want := math.Exp(float64(x))
		if e := math.Abs(float64(Exp(x))/want - 1); e > 2.4e-7 {
			t.Fatalf("Exp(%g) = %g, want %g: off by %g", x, Exp(x), want, e)
		}
	}
	for _, c := range []struct{ x, want float32 }{
		{0, 1}, {-87.01, 0}, {-1e30, 0}, {float32(math.Inf(-1)), 0}, {1e30, Exp(88)}, {float32(math.Inf(1)), Exp(88)},
	} {
		if got := Exp(c.x); got != c.want {
			t.Errorf("Exp(%g) = %g, want %g", c.x, got, c.want)
		}
	}
	if x := Exp(float32(math.NaN())); x == x {
		t.Errorf("Exp(NaN) = %g", x)
	}
}

// Where branches and ranges end: every kernel must take the twin's turn there.
func TestActivationsAtTheirEdges(t *testing.T) {
	g := twin()
	inf := float32(math.Inf(1))
	x := []float32{0, float32(math.Copysign(0, -1)), 0.625, math.Nextafter32(0.625, 0), -0.625, math.Nextafter32(-0.625, 0),
		44, -44, math.Nextafter32(44, 100), 1e19, -1e19, math.MaxFloat32, -math.MaxFloat32, inf, -inf, math.SmallestNonzeroFloat32}
	one := make([]float32, len(x))
	for i := range one {
		one[i] = 1
	}
	eachSet(t, func(t *testing.T, k *Kernels) {
		a, b := make([]float32, len(x)), make([]float32, len(x))
		k.GELUMul(a, x, one)
		g.GELUMul(b, x, one)
		same(t, "GELUMul", a, b)
		copy(a, x)
		copy(b, x)
		k.SoftCap(a, 1)
		g.SoftCap(b, 1)
		same(t, "SoftCap", a, b)
		nan := make([]float32, Lanes)
		for i := range nan {
			nan[i] = float32(math.NaN())
		}
		k.SoftCap(nan, 1)
		if nan[0] == nan[0] {
			t.Errorf("SoftCap(NaN) = %g", nan[0])
		}
	})
}

func TestTanhAgainstFloat64(t *testing.T) {
	for i := range 400001 {
		x := float32(-10 + float64(i)*20/400000)
		want := math.Tanh(float64(x))
		if e := math.Abs(float64(Tanh(x)) - want); e > 1.8e-7*math.Abs(want) {
			t.Fatalf("Tanh(%g) = %g, want %g: off by %g of it", x, Tanh(x), want, e/math.Abs(want))
		}
	}
	for _, c := range []struct{ x, want float32 }{{1e30, 1}, {-1e30, -1}, {float32(math.Inf(-1)), -1}, {1e-30, 1e-30}} {
		if got := Tanh(c.x); got != c.want {
			t.Errorf("Tanh(%g) = %g, want %g", c.x, got, c.want)
		}
	}
}

// The bound is relative even where GELU all but vanishes.
func TestGELUAgainstFloat64(t *testing.T) {
	g := twin()
	x, one := make([]float32, Lanes), make([]float32, Lanes)
	for i := range one {
		one[i] = 1
	}
	for i := range 40000 {
		v := float32(-6 + float64(i)*16/40000)
		x[0] = v
		g.GELUMul(x, x, one)
		u := math.Sqrt(2/math.Pi) * (float64(v) + 0.044715*math.Pow(float64(v), 3))
		want := float64(v) / (1 + math.Exp(-2*u)) // the tanh form is the same number, but cancels even in float64
		if far := math.Abs(want - float64(v)/2*(1+math.Tanh(u))); far > 1e-14 {
			t.Fatalf("the two forms differ by %g at %g", far, v)
		}
		if e := math.Abs(float64(x[0]) - want); e > 5e-6*math.Abs(want) {
			t.Fatalf("gelu(%g) = %g, want %g", v, x[0], want)
		}
	}
}

// A set without a function of its own gets the twin's.
func TestSetsAreCompleted(t *testing.T) {
	k := Kernels{Name: "bare"}
	k.complete()
	x := []float32{40}
	k.SoftCap(x, 30)
	if want := 30 * Tanh(float32(40)/30); x[0] != want {
		t.Errorf("SoftCap(40, 30) = %g, want %g", x[0], want)
	}
	k.GELUMul(make([]float32, Lanes), make([]float32, Lanes), make([]float32, Lanes))
}

// The reference is exact rational arithmetic, rounded once.
func TestFMAIsRoundedOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	check := func(x, y, z float32) {
		t.Helper()
		sum := new(big.Rat).SetFloat64(float64(x) * float64(y))
		sum.Add(sum, new(big.Rat).SetFloat64(float64(z)))
		want, _ := sum.Float32()
		if got := FMA(x, y, z); got != want {
			t.Fatalf("FMA(%x, %x, %x) = %x, want %x", x, y, z, got, want)
		}
	}
	rounds := 200000
	if testing.Short() { // under emulation
		rounds = 10000
	}
	for range rounds {
		x, y := float32(r.NormFloat64()), float32(r.NormFloat64())
		// z far above or below the product makes midpoints likely.
		z := float32(math.Ldexp(r.NormFloat64(), r.IntN(80)-40))
		check(x, y, z)
		// Sums that sit on a float32 midpoint but for a far smaller part.
		m := math.Float32frombits(0x3f800000 | r.Uint32()&0x7fffff)
		tiny := math.Float32frombits(r.Uint32()&0x807fffff | 0x0c800000)
		check(math.Float32frombits(0x33800000), 1, m)                 // exactly half a unit
		check(math.Float32frombits(0x33800000|r.Uint32()&3), 1, m)    // nearly
		check(math.Float32frombits(0x33800001), 1+tiny, m)            // nearly
		check(float32(1<<12+1)/(1<<30), float32(1<<12+1)/(1<<18), -m) // cancels
		// Subnormal results.
		check(x*1e-20, y*1e-20, z*1e-40)
		check(x*1e-23, y*1e-22, float32(math.Ldexp(float64(r.IntN(1<<20)), -149)))
	}
	// 2^-24 + 2^-70 above 1: to nearest in float64 first would give 1.
	check(math.Float32frombits(0x33800001), math.Float32frombits(0x3f7fffff), 1)
	inf := float32(math.Inf(1))
	if FMA(inf, 1, 1) != inf || FMA(math.MaxFloat32, 2, 0) != inf {
		t.Error("FMA and infinity")
	}
	if x := FMA(inf, 1, -inf); x == x {
		t.Errorf("FMA(Inf, 1, -Inf) = %g", x)
	}
}

func TestSincosAgainstMath(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for range 100000 {
		x := r.Float64() * math.Pow(2, float64(r.IntN(20)))
		s, c := sincos(x)
		// The argument itself has an error of half a unit in its last place.
		if math.Abs(s-math.Sin(x)) > 3e-15 || math.Abs(c-math.Cos(x)) > 3e-15 {
			t.Fatalf("sincos(%g) = %g, %g, want %g, %g", x, s, c, math.Sin(x), math.Cos(x))
		}
	}
}

// The values are right, and they are the same bits on every machine: one where
// the hash differs would not agree with the others.
func TestAngles(t *testing.T) {
	bits := fnv.New64a()
	for _, c := range []struct {
		dims, pos int
		base      float64
		factors   []float32
		scale     float64
	}{
		{64, 1, 10000, nil, 1}, {64, 4095, 100000, nil, 1}, {128, 32767, 1e6, nil, 0.125},
		{8, 77, 500000, []float32{1, 2, 4, 32}, 1},
	} {
		a := NewAngles(c.dims, c.base, c.scale, c.factors)
		cos, sin := make([]float32, c.dims/2), make([]float32, c.dims/2)
		a.At(c.pos, cos, sin)
		for i := range cos {
			th := float64(c.pos) * c.scale * math.Pow(c.base, -2*float64(i)/float64(c.dims))
			if c.factors != nil {
				th /= float64(c.factors[i])
			}
			fmt.Fprintf(bits, "%08x%08x", math.Float32bits(cos[i]), math.Float32bits(sin[i]))
			if math.Abs(float64(cos[i])-math.Cos(th)) > 7e-8 || math.Abs(float64(sin[i])-math.Sin(th)) > 7e-8 {
				t.Errorf("dims %d pos %d angle %d: %g %g, want %g %g", c.dims, c.pos, i, cos[i], sin[i], math.Cos(th), math.Sin(th))
			}
		}
	}
	if got, want := bits.Sum64(), uint64(0x7f87f2899ec9e35c); got != want {
		t.Errorf("the angles' bits hash to %#x, want %#x", got, want)
	}
}

func TestF16(t *testing.T) {
	for h := range 1 << 16 {
		x := FromF16(uint16(h))
		want := math.Ldexp(float64(h&0x3ff), -24)
		if e := h >> 10 & 31; e > 0 {
			want = math.Ldexp(float64(h&0x3ff|0x400), e-25)
		}
		if h>>10&31 == 31 {
			want = math.Inf(1)
		}
		if h&0x8000 != 0 {
			want = -want
		}
		nan := h&0x7fff > 0x7c00
		if nan != (x != x) || !nan && float64(x) != want {
			t.Fatalf("FromF16(%#04x) = %g, want %g", h, x, want)
		}
		if back := ToF16(x); !nan && back != uint16(h) {
			t.Fatalf("ToF16(FromF16(%#04x)) = %#04x", h, back)
		}
		if h&0x7fff >= 0x7c00 || h&0x8000 != 0 {
			continue
		}
		// Between two neighbours: the middle goes to the even one, the rest to the nearer.
		next := float64(FromF16(uint16(h + 1)))
		if h+1 == 0x7c00 {
			next = 65536
		}
		mid := float32((float64(x) + next) / 2)
		for _, c := range []struct {
			x    float32
			want int
		}{{mid, h + h&1}, {math.Nextafter32(mid, 0), h}, {math.Nextafter32(mid, 1e9), h + 1}} {
			if got := ToF16(c.x); int(got) != c.want {
				t.Fatalf("ToF16(%g) = %#04x, want %#04x", c.x, got, c.want)
			}
		}
	}
}

func TestForRefusesUnknown(t *testing.T) {
	if _, err := For("sse9"); err == nil {
		t.Error("For(sse9) succeeded")
	}
}

func BenchmarkAttentionChunk(b *testing.B) {
	const dim = 64
	r := rand.New(rand.NewPCG(1, 1))
	q, out, acc := noise(r, Tile*dim, 1), make([]float32, Tile*Chunk), make([]float32, Tile*dim)
	for _, name := range Names() {
		k, err := For(name)
		if err != nil {
			continue
		}
		for _, c := range CacheTypes() {
			keys, values := parts(r, c, dim)
			for _, rows := range []int{1, Tile} {
				b.Run(fmt.Sprintf("%s/%v/rows=%d", name, c, rows), func(b *testing.B) {
					for b.Loop() {
						k.Scores(c, out, Chunk, q, rows, keys, dim)
						k.Mix(c, acc, out, Chunk, rows, values, dim, 0, Chunk)
					}
					b.ReportMetric(float64(4*rows*Chunk*dim)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "Gflop/s")
				})
			}
		}
		x := noise(r, 4096, 1)
		b.Run(name+"/silu4096", func(b *testing.B) {
			for b.Loop() {
				k.siluMul(x, x, x)
			}
		})
	}
}
