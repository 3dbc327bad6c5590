package quant

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/tensor"
	"github.com/nlpodyssey/safetensors"
)

// golden reads ggml's own quantization of four rows of 256: ordinary; all positive; zeros and an outlier; tiny.
func golden(t *testing.T, typ gguf.Type) (src [4][]float32, raw []byte) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "tensor", "testdata", typ.String()+".safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	st, err := safetensors.Deserialize(data)
	if err != nil {
		t.Fatal(err)
	}
	x, ok := st.Tensor("src")
	r, ok2 := st.Tensor("raw")
	if !ok || !ok2 {
		t.Fatal("no src or raw in the file")
	}
	for i := range src {
		for c := range 256 {
			src[i] = append(src[i], math.Float32frombits(binary.LittleEndian.Uint32(x.Data()[(256*i+c)*4:])))
		}
	}
	return src, r.Data()
}

func TestSameBytesAsGGML(t *testing.T) {
	for _, typ := range []gguf.Type{gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1} {
		src, raw := golden(t, typ)
		size := 256 / typ.BlockSize() * typ.BlockBytes()
		for i, x := range src {
			got, err := Append(nil, typ, x)
			if err != nil {
				t.Fatal(err)
			}
			if want := raw[i*size:][:size]; !bytes.Equal(got, want) {
				t.Errorf("%s row %d:\n%x, ggml has\n%x", typ, i, got, want)
			}
		}
	}
}

// rms is the error of a quantized row against what it was made of.
func rms(t *testing.T, typ gguf.Type, raw []byte, x []float32) float64 {
	t.Helper()
	got := make([]float32, len(x))
	if err := tensor.DequantRow(&gguf.Tensor{Type: typ, Dims: []uint64{uint64(len(x))}, Data: raw}, 0, got); err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for i, v := range x {
		sum += math.Pow(float64(v-got[i]), 2)
	}
	return math.Sqrt(sum / float64(len(x)))
}

// The K types are searched for, so only the error can be compared.
func TestErrorOfKTypesAgainstGGML(t *testing.T) {
	for _, typ := range []gguf.Type{gguf.Q4_K, gguf.Q5_K, gguf.Q6_K} {
		src, raw := golden(t, typ)
		for i, x := range src {
			got, err := Append(nil, typ, x)
			if err != nil {
				t.Fatal(err)
			}
			ours, theirs := rms(t, typ, got, x), rms(t, typ, raw[i*len(got):][:len(got)], x)
			t.Logf("%s row %d: error %.3g, ggml's %.3g", typ, i, ours, theirs)
			if ours > 1.03*theirs {
				t.Errorf("%s row %d: error %g, ggml's is %g", typ, i, ours, theirs)
			}
		}
	}
}

// Whatever the values, a block decodes to something near them, and the extremes of a type are handled.
func TestOddRows(t *testing.T) {
	row := func(fn func(i int) float32) []float32 {
		x := make([]float32, 256)
		for i := range x {
			x[i] = fn(i)
		}
		return x
	}
	for name, x := range map[string][]float32{
		"zeros":          row(func(int) float32 { return 0 }),
		"negative zeros": row(func(int) float32 { return float32(math.Copysign(0, -1)) }),
		"one value":      row(func(int) float32 { return -3.25 }),
		"all positive":   row(func(i int) float32 { return 100 + float32(i%7) }),
		"all negative":   row(func(i int) float32 { return -100 - float32(i%7) }),
		"a ramp":         row(func(i int) float32 { return float32(i-128) / 128 }),
		"denormals":      row(func(i int) float32 { return float32(i-128) * 0x1p-140 }),
		"large":          row(func(i int) float32 { return float32(i-128) * 500 }),
		"one outlier":    row(func(i int) float32 { return map[int]float32{77: 1000}[i] }),
	} {
		for _, typ := range Types() {
			var span float64
			for _, v := range x {
				span = max(span, math.Abs(float64(v)))
			}
			raw, err := Append([]byte("x"), typ, x)
			if err != nil || raw[0] != 'x' {
				t.Errorf("%s as %s: %v", name, typ, err)
				continue
			}
			// Half a step of four bits over the whole span, as a bound that each type meets; K types also round scales.
			if got := rms(t, typ, raw[1:], x); got > span/14+1e-7 {
				t.Errorf("%s as %s: error %g of %g", name, typ, got, span)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	x := make([]float32, 256)
	for _, tc := range []struct {
		typ  gguf.Type
		n    int
		v    float32
		want string
	}{
		{gguf.Q4_K, 255, 0, "not whole blocks of 256"},
		{gguf.Q8_0, 40, 0, "not whole blocks of 32"},
		{gguf.IQ1_S, 256, 0, "cannot be made"},
		{gguf.Q8_0, 256, float32(math.NaN()), "value 3 is NaN"},
		{gguf.F32, 256, float32(math.Inf(-1)), "value 3 is -Inf"},
		{gguf.F16, 256, 65520, "too large for F16"},
		{gguf.BF16, 256, math.MaxFloat32, "too large for BF16"},
		{gguf.Q8_0, 256, 1e8, "too large for Q8_0"},
		{gguf.Q4_0, 256, -1e30, "too large for Q4_0"},
		{gguf.Q4_1, 256, 7e4 * 15, "too large for Q4_1"},
		{gguf.Q4_K, 256, 3e8, "too large for Q4_K"},
		{gguf.Q6_K, 256, 1e30, "too large for Q6_K"},
	} {
		clear(x)
		x[3] = tc.v
		got, err := Append(nil, tc.typ, x[:tc.n])
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", tc.typ, err, tc.want)
		}
		if tc.n == 256 && tc.typ != gguf.F16 && tc.typ != gguf.BF16 && len(got) != 0 {
			t.Errorf("%s: %d bytes with an error", tc.typ, len(got))
		}
	}
	if typ, err := Parse("q4_k"); err != nil || typ != gguf.Q4_K {
		t.Errorf("q4_k is %v, %v", typ, err)
	}
	if _, err := Parse("q4_k_m"); err == nil || !strings.Contains(err.Error(), "Q4_K") {
		t.Errorf("q4_k_m: %v", err)
	}
}

func BenchmarkAppend(b *testing.B) {
	x := make([]float32, 4096)
	for i := range x {
		x[i] = float32(math.Sin(float64(i * i)))
	}
	for _, typ := range Types() {
		b.Run(typ.String(), func(b *testing.B) {
			b.SetBytes(4 * 4096)
			var dst []byte
			for b.Loop() {
				dst, _ = Append(dst[:0], typ, x)
			}
		})
	}
}
