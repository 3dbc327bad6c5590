package quant

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
	"github.com/meshnet/meshnet/shard/tensor"
)

// waves is a tensor of smooth values in some type.
func waves(t testing.TB, name string, typ gguf.Type, dims ...uint64) gguf.TensorInfo {
	t.Helper()
	n := 1
	for _, d := range dims {
		n *= int(d)
	}
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.Sin(float64(i*i%977)) / 8)
	}
	data, err := Append(nil, typ, x)
	if err != nil {
		t.Fatal(err)
	}
	return gguf.TensorInfo{Name: name, Type: typ, Dims: dims, Data: data}
}

func parse(t testing.TB, kv []gguf.KV, ts ...gguf.TensorInfo) *gguf.File {
	t.Helper()
	var b bytes.Buffer
	if err := gguf.Write(&b, kv, ts); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func sample(t testing.TB) *gguf.File {
	return parse(t, []gguf.KV{{Key: "general.architecture", Value: "llama"}, {Key: "general.file_type", Value: uint32(1)}, {Key: "tokenizer.ggml.tokens", Value: []string{"a", "b"}}},
		waves(t, "token_embd.weight", gguf.F16, 256, 70),
		waves(t, "blk.0.attn_q.weight", gguf.F16, 256, 300), // several bands
		waves(t, "blk.0.attn_k.weight", gguf.Q8_0, 256, 5),
		waves(t, "blk.0.ffn_up.weight", gguf.BF16, 96, 3),
		waves(t, "blk.0.ffn_down.weight", gguf.F32, 40, 3),
		waves(t, "blk.0.attn_norm.weight", gguf.F32, 256),
		waves(t, "blk.0.attn_q.bias", gguf.F16, 256),
		waves(t, "blk.0.odd_norm.weight", gguf.F16, 256, 2),
		waves(t, "blk.0.ffn_gate_inp.weight", gguf.F16, 256, 4),
		waves(t, "blk.0.stack.weight", gguf.F32, 256, 2, 3),
		waves(t, "blk.0.scale", gguf.F16, 256, 2),
	)
}

func TestPlan(t *testing.T) {
	for _, tc := range []struct {
		typ  gguf.Type
		pure bool
		want string // of the tensors of sample; ! marks a second loss
	}{
		{gguf.F16, false, "F16 F16 F16 F16 F16 F32 F32 F32 F16 F16 F16"},
		{gguf.Q8_0, false, "Q8_0 Q8_0 Q8_0 Q8_0 F16 F32 F32 F32 F16 Q8_0 F16"},
		{gguf.Q4_K, false, "Q6_K Q4_K Q4_K! Q5_0 F16 F32 F32 F32 F16 Q4_K F16"},
		{gguf.Q4_K, true, "Q4_K Q4_K Q4_K! Q5_0 F16 F32 F32 F32 F16 Q4_K F16"},
		{gguf.Q5_K, false, "Q6_K Q5_K Q5_K! Q5_1 F16 F32 F32 F32 F16 Q5_K F16"},
		{gguf.Q6_K, false, "Q6_K Q6_K Q6_K! Q8_0 F16 F32 F32 F32 F16 Q6_K F16"},
		{gguf.Q4_0, false, "Q6_K Q4_0 Q4_0! Q4_0 F16 F32 F32 F32 F16 Q4_0 F16"},
	} {
		plan, err := Plan(sample(t), tc.typ, tc.pure)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range plan {
			got = append(got, c.To.String()+map[bool]string{true: "!"}[c.Twice])
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%s, pure %v:\n%s, want\n%s", tc.typ, tc.pure, s, tc.want)
		}
	}
	// With an output matrix, the embedding is a matrix like others.
	plan, err := Plan(parse(t, nil, waves(t, "token_embd.weight", gguf.F16, 256, 2), waves(t, "output.weight", gguf.F16, 256, 2)), gguf.Q4_K, false)
	if err != nil || plan[0].To != gguf.Q4_K || plan[1].To != gguf.Q6_K {
		t.Errorf("%v, %v", plan, err)
	}
}

func TestConvert(t *testing.T) {
	f := sample(t)
	var first []byte
	for _, threads := range []int{1, 3} {
		p := pool.New(threads)
		defer p.Close()
		var b bytes.Buffer
		var done, total int64
		plan, err := Convert(t.Context(), &b, f, gguf.Q4_K, Options{Pool: p, Progress: func(n int64) { done = n }})
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b.Bytes()
		} else if !bytes.Equal(first, b.Bytes()) {
			t.Errorf("%d threads write another file", threads)
		}
		g, err := gguf.Parse(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		for i, ts := range f.Tensors() {
			total += int64(len(ts.Data))
			got := g.Tensors()[i]
			if got.Name != ts.Name || fmt.Sprint(got.Dims) != fmt.Sprint(ts.Dims) || got.Type != plan[i].To || int64(len(got.Data)) != plan[i].Bytes {
				t.Errorf("%q %v %s became %q %v %s", ts.Name, ts.Dims, ts.Type, got.Name, got.Dims, got.Type)
			}
			var want []byte
			row := make([]float32, ts.Dims[0])
			for r := range ts.Rows() {
				if err := tensor.DequantRow(ts, r, row); err != nil {
					t.Fatal(err)
				}
				if want, err = Append(want, got.Type, row); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(got.Data, want) {
				t.Errorf("%q: not what its rows give one by one", ts.Name)
			}
		}
		if done != total {
			t.Errorf("progress ends at %d of %d", done, total)
		}
		if n, _ := g.Uint("general.file_type"); n != 14 {
			t.Errorf("file_type is %d, want llama.cpp's 14", n)
		}
		if n, _ := g.Uint("general.quantization_version"); n != 2 {
			t.Errorf("quantization_version is %d", n)
		}
		if s, _ := g.Strings("tokenizer.ggml.tokens"); len(s) != 2 || s[1] != "b" || len(g.Keys()) != 4 {
			t.Errorf("keys are %v, tokens %q", g.Keys(), s)
		}
	}
}

func TestConvertRefuses(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	bad := waves(t, "blk.3.attn_q.weight", gguf.F32, 256, 9)
	binary.LittleEndian.PutUint32(bad.Data[(7*256+2)*4:], math.Float32bits(float32(math.NaN())))
	large := waves(t, "a.weight", gguf.F32, 256, 2)
	binary.LittleEndian.PutUint32(large.Data, math.Float32bits(1e6))
	unread := gguf.TensorInfo{Name: "b.weight", Type: gguf.IQ1_S, Dims: []uint64{256, 2}, Data: make([]byte, 100)}
	unknown := parse(t, nil, unread)
	unknown.Tensors()[0].Type = 77
	unknown.Tensors()[0].Data = nil
	for name, tc := range map[string]struct {
		f    *gguf.File
		typ  gguf.Type
		want string
	}{
		"a NaN":                     {parse(t, nil, bad), gguf.Q8_0, `tensor "blk.3.attn_q.weight": row 7: value 2 is NaN`},
		"a value beyond float16":    {parse(t, nil, large), gguf.F16, `tensor "a.weight": row 0: values near 0 are too large for F16: the largest is 1e+06`},
		"a type that is not read":   {parse(t, nil, unread), gguf.Q8_0, `tensor "b.weight" is of type IQ1_S, which cannot be read here`},
		"a type that nobody knows":  {unknown, gguf.Q8_0, `type 77`},
		"a type that is not made":   {sample(t), gguf.IQ1_S, "IQ1_S cannot be made"},
		"a part of a split model":   {parse(t, []gguf.KV{{Key: "split.count", Value: uint16(3)}}), gguf.F16, "one of 3 parts"},
		"the same, but of one part": {parse(t, []gguf.KV{{Key: "split.count", Value: uint16(1)}}), gguf.F16, ""},
	} {
		_, err := Convert(t.Context(), &bytes.Buffer{}, tc.f, tc.typ, Options{Pool: p})
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Convert(ctx, &bytes.Buffer{}, sample(t), gguf.Q4_0, Options{Pool: p}); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	full := errors.New("disk full")
	if _, err := Convert(t.Context(), writer{full}, sample(t), gguf.F32, Options{Pool: p}); !errors.Is(err, full) {
		t.Errorf("a full disk: %v", err)
	}
}

type writer struct{ err error }

func (w writer) Write([]byte) (int, error) { return 0, w.err }

func TestCounts(t *testing.T) {
	plan, err := Plan(sample(t), gguf.Q4_K, false)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range Counts(plan) {
		got = append(got, fmt.Sprintf("%s>%s:%d/%d/%d", c.From, c.To, c.Tensors, c.Fallback, c.Twice))
	}
	if s, want := strings.Join(got, " "), "F16>Q6_K:1/0/0 F16>Q4_K:1/0/0 Q8_0>Q4_K:1/0/1 BF16>Q5_0:1/1/0 F32>F16:1/1/0 F32>F32:1/0/0 F16>F32:2/0/0 F16>F16:2/0/0 F32>Q4_K:1/0/0"; s != want {
		t.Errorf("%s, want\n%s", s, want)
	}
}
