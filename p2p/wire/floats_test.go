package wire

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"sort"
	"testing"
)

// slow16 is what the 16 bits mean by the definition of IEEE binary16.
func slow16(h uint16) float64 {
	sign, exp, frac := 1.0, int(h>>10)&31, float64(h&1023)
	if h>>15 == 1 {
		sign = -1
	}
	switch exp {
	case 0:
		return sign * frac * math.Pow(2, -24)
	case 31:
		if frac != 0 {
			return math.NaN()
		}
		return sign * math.Inf(1)
	}
	return sign * (1 + frac/1024) * math.Pow(2, float64(exp-15))
}

func TestF16ReadsAllValues(t *testing.T) {
	for h := range 1 << 16 {
		got, want := float64(f16to32(uint16(h))), slow16(uint16(h))
		if math.IsNaN(want) && math.IsNaN(got) {
			continue
		}
		if math.Float64bits(got) != math.Float64bits(want) {
			t.Fatalf("%#04x is %v, not %v", h, got, want)
		}
		if back := f32to16(float32(want)); back != uint16(h) {
			t.Fatalf("%#04x came back as %#04x", h, back)
		}
	}
}

var halves = func() []float64 {
	all := make([]float64, 0x7c00)
	for h := range all {
		all[h] = slow16(uint16(h))
	}
	return all
}()

// nearest16 looks the nearest of all finite halves up, ties to the even one.
func nearest16(v float32) uint16 {
	x := math.Abs(float64(v))
	h := uint16(sort.SearchFloat64s(halves, x))
	if h == 0x7c00 && x >= 65520 {
		// half of a step above the largest rounds to infinity
	} else if h == 0x7c00 {
		h--
	} else if h > 0 {
		below, above := x-halves[h-1], halves[h]-x
		if below < above || below == above && h&1 == 1 {
			h--
		}
	}
	if math.Signbit(float64(v)) {
		h |= 0x8000
	}
	return h
}

func TestF16RoundsToNearestEven(t *testing.T) {
	check := func(v float32) {
		t.Helper()
		if got, want := f32to16(v), nearest16(v); got != want {
			t.Fatalf("%v (%#08x) became %#04x, not %#04x", v, math.Float32bits(v), got, want)
		}
	}
	for h := range uint16(0x7bff) { // both sides of the middle between neighbours
		mid := float32((slow16(h) + slow16(h+1)) / 2)
		for _, v := range []float32{mid, math.Nextafter32(mid, 0), math.Nextafter32(mid, 1e9)} {
			check(v)
			check(-v)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		if v := math.Float32frombits(r.Uint32()); v == v {
			check(v)
		}
	}
	for _, v := range []float32{0, 65504, 65519.996, 65520, 1e30, 1e-40, float32(math.Inf(1))} {
		check(v)
		check(-v)
	}
}

func TestFloatsRoundTrip(t *testing.T) {
	x := []float32{0, float32(math.Copysign(0, -1)), 1, -2.5, 65504, 1.0 / 1024}
	for _, dt := range []DType{F32, F16} {
		p, err := AppendFloats([]byte{9}, x, dt)
		if err != nil || len(p) != 1+len(x)*dt.Size() {
			t.Fatalf("%v: %d bytes, %v", dt, len(p), err)
		}
		got := make([]float32, len(x))
		if err := Floats(got, p[1:], dt); err != nil { // p[1:] is not aligned
			t.Fatal(err)
		}
		for i := range x {
			if math.Float32bits(got[i]) != math.Float32bits(x[i]) {
				t.Errorf("%v: value %d is %v, not %v", dt, i, got[i], x[i])
			}
		}
		if err := Floats(got, p, dt); err == nil {
			t.Errorf("%v: a payload of the wrong length was taken", dt)
		}
	}
	for i, b := range Bytes(x) {
		if want := byte(math.Float32bits(x[i/4]) >> (8 * (i % 4))); b != want {
			t.Fatalf("byte %d is %#x, not %#x", i, b, want)
		}
	}
	if err := Floats(nil, nil, 3); err == nil {
		t.Error("an unknown dtype was taken")
	}
	if _, err := AppendFloats(nil, x, 0); err == nil {
		t.Error("an unknown dtype was taken")
	}
}

// One bad value at any place of any length must be seen, and no good one refused.
func TestNotFiniteIsSeenAnywhere(t *testing.T) {
	bad := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.Float32frombits(0xff800001)}
	good := []float32{math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32, float32(math.Copysign(0, -1)), -1}
	for n := 1; n < 20; n++ {
		x := make([]float32, n)
		for i := range x {
			x[i] = good[i%len(good)]
		}
		if !Finite(x) {
			t.Fatalf("%v refused", x)
		}
		for i := range x {
			for _, b := range bad {
				keep := x[i]
				x[i] = b
				if Finite(x) {
					t.Fatalf("%v at %d of %d not seen", b, i, n)
				}
				if err := Floats(make([]float32, n), Bytes(x), F32); !errors.Is(err, ErrNotFinite) {
					t.Fatal(err)
				}
				x[i] = keep
			}
		}
	}
	if err := Floats(make([]float32, 2), binary.LittleEndian.AppendUint32(nil, 0x7c00_3c00), F16); !errors.Is(err, ErrNotFinite) {
		t.Errorf("infinity in f16: %v", err)
	}
	for _, v := range []float32{65520, float32(math.NaN()), -1e9} {
		if b, err := AppendFloats([]byte{7}, []float32{1, v}, F16); !errors.Is(err, ErrNotFinite) || len(b) != 1 {
			t.Errorf("%v in f16: % x, %v", v, b, err)
		}
	}
}

func BenchmarkFloatsF32(b *testing.B) {
	x := make([]float32, 512*896)
	p := Bytes(make([]float32, len(x)))
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if err := Floats(x, p, F32); err != nil {
			b.Fatal(err)
		}
	}
}
