package model

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
)

// file is a model under construction: a valid one of two layers, which a test
// then breaks.
type file struct {
	kv      map[string]any
	tensors map[string][]int
	types   map[string]gguf.Type // F32 unless said otherwise
}

const (
	hidden, heads, kvHeads, headDim, ffn, vocab = 32, 4, 2, 16, 48, 20
)

func valid(arch string) *file {
	f := &file{kv: map[string]any{
		"general.architecture":                     arch,
		"general.name":                             "test",
		arch + ".block_count":                      uint32(2),
		arch + ".context_length":                   uint32(128),
		arch + ".embedding_length":                 uint32(hidden),
		arch + ".feed_forward_length":              uint32(ffn),
		arch + ".attention.head_count":             uint32(heads),
		arch + ".attention.head_count_kv":          uint32(kvHeads),
		arch + ".attention.key_length":             uint32(headDim),
		arch + ".attention.layer_norm_rms_epsilon": float32(1e-5),
	}, tensors: map[string][]int{
		"token_embd.weight":  {hidden, vocab},
		"output_norm.weight": {hidden},
		"output.weight":      {hidden, vocab},
	}, types: map[string]gguf.Type{}}
	for i := range 2 {
		b := fmt.Sprintf("blk.%d.", i)
		for name, dims := range map[string][]int{
			"attn_norm.weight": {hidden}, "ffn_norm.weight": {hidden},
			"attn_q.weight": {hidden, heads * headDim}, "attn_k.weight": {hidden, kvHeads * headDim}, "attn_v.weight": {hidden, kvHeads * headDim},
			"attn_output.weight": {heads * headDim, hidden},
			"ffn_gate.weight":    {hidden, ffn}, "ffn_up.weight": {hidden, ffn}, "ffn_down.weight": {ffn, hidden},
		} {
			f.tensors[b+name] = dims
		}
		if arch == "qwen2" {
			f.tensors[b+"attn_q.bias"] = []int{heads * headDim}
			f.tensors[b+"attn_k.bias"] = []int{kvHeads * headDim}
			f.tensors[b+"attn_v.bias"] = []int{kvHeads * headDim}
		}
		if arch == "qwen3" || arch == "gemma3" {
			f.tensors[b+"attn_q_norm.weight"], f.tensors[b+"attn_k_norm.weight"] = []int{headDim}, []int{headDim}
		}
		if arch == "gemma3" {
			f.tensors[b+"post_attention_norm.weight"], f.tensors[b+"post_ffw_norm.weight"] = []int{hidden}, []int{hidden}
			f.kv["gemma3.attention.sliding_window"] = uint32(7)
		}
	}
	return f
}

func sorted[V any](m map[string]V) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (f *file) read(t testing.TB) (*Info, error) {
	t.Helper()
	var kv []gguf.KV
	for _, key := range sorted(f.kv) {
		kv = append(kv, gguf.KV{Key: key, Value: f.kv[key]})
	}
	var ts []gguf.TensorInfo
	for _, name := range sorted(f.tensors) {
		info := gguf.TensorInfo{Name: name, Type: f.types[name]}
		n := 1
		for _, d := range f.tensors[name] {
			info.Dims = append(info.Dims, uint64(d))
			n *= d
		}
		info.Data = make([]byte, n/info.Type.BlockSize()*info.Type.BlockBytes())
		if name == "rope_freqs.weight" {
			for i := 0; i < len(info.Data); i += 4 {
				info.Data[i+3] = 0x40 // 2.0
			}
		}
		ts = append(ts, info)
	}
	var b bytes.Buffer
	if err := gguf.Write(&b, kv, ts); err != nil {
		t.Fatal(err)
	}
	g, err := gguf.Parse(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return Read(g)
}

func TestReadDescribesTheFile(t *testing.T) {
	f := valid("llama")
	f.kv["llama.rope.freq_base"] = float32(500000)
	f.kv["llama.rope.scaling.type"] = "linear"
	f.kv["llama.rope.scaling.factor"] = float32(4)
	f.tensors["rope_freqs.weight"] = []int{headDim / 2}
	in, err := f.read(t)
	if err != nil {
		t.Fatal(err)
	}
	if in.Layers != 2 || in.Hidden != hidden || in.Heads != heads || in.KVHeads != kvHeads || in.HeadDim != headDim ||
		in.FFN != ffn || in.Vocab != vocab || in.Context != 128 || in.Eps != 1e-5 || in.Tied || in.Name != "test" {
		t.Errorf("info is %+v", in)
	}
	layer := int64(4 * (2*hidden + 2*hidden*heads*headDim + 2*hidden*kvHeads*headDim + 3*hidden*ffn))
	if in.LayerBytes[0] != layer || in.LayerBytes[1] != layer || in.EmbedBytes != 4*hidden*vocab || in.OutputBytes != 4*(hidden*vocab+hidden) {
		t.Errorf("bytes are %v, %d, %d", in.LayerBytes, in.EmbedBytes, in.OutputBytes)
	}
	a := in.Plan[1].Mixer.(*Attention)
	r := a.Rope
	if r.Dims != headDim || r.Base != 500000 || r.Scale != 0.25 || r.Halves || len(r.Factors) != headDim/2 || r.Factors[0] != 2 {
		t.Errorf("rope is %+v", r)
	}
	if vectors, dim := a.StateRow(); a.Q.Name != "blk.1.attn_q.weight" || a.QBias != nil || vectors != 2*kvHeads || dim != headDim {
		t.Errorf("attention is %+v", a)
	}

	f = valid("qwen2")
	delete(f.tensors, "output.weight")
	delete(f.kv, "qwen2.attention.key_length")
	f.kv["qwen2.attention.head_count"] = uint32(2) // head size 16 = 32 / 2
	f.kv["qwen2.attention.head_count_kv"] = uint32(1)
	for i := range 2 {
		b := fmt.Sprintf("blk.%d.", i)
		f.tensors[b+"attn_q.weight"], f.tensors[b+"attn_q.bias"] = []int{hidden, 32}, []int{32}
		f.tensors[b+"attn_output.weight"] = []int{32, hidden}
		for _, n := range []string{"attn_k", "attn_v"} {
			f.tensors[b+n+".weight"], f.tensors[b+n+".bias"] = []int{hidden, 16}, []int{16}
		}
	}
	in, err = f.read(t)
	if err != nil {
		t.Fatal(err)
	}
	a = in.Plan[0].Mixer.(*Attention)
	if !in.Tied || in.Output != in.Embed || in.OutputBytes != 4*(hidden*vocab+hidden) || in.HeadDim != 16 || !a.Rope.Halves || a.QBias == nil {
		t.Errorf("info is %+v, attention %+v", in, a)
	}
}

// grow gives the file n layers like its first two.
func (f *file) grow(arch string, n int) {
	for name, dims := range f.tensors {
		if rest, ok := strings.CutPrefix(name, "blk.0."); ok {
			for i := range n {
				f.tensors[fmt.Sprintf("blk.%d.%s", i, rest)] = dims
			}
		}
	}
	f.kv[arch+".block_count"] = uint32(n)
}

func TestReadQwen3(t *testing.T) {
	in, err := valid("qwen3").read(t)
	if err != nil {
		t.Fatal(err)
	}
	a := in.Plan[1].Mixer.(*Attention)
	if a.QNorm.Name != "blk.1.attn_q_norm.weight" || a.KNorm.Name != "blk.1.attn_k_norm.weight" || !a.Rope.Halves || a.Window != 0 || a.Scale != 0.25 {
		t.Errorf("attention is %+v", a)
	}
	if ly := in.Plan[1]; ly.MixerPost != nil || ly.FFNPost != nil || ly.FFN.(*GLU).Act != SiLU || in.EmbedScale != 0 || in.LogitCap != 0 {
		t.Errorf("layer is %+v of %+v", ly, in)
	}
}

func TestReadGemma3(t *testing.T) {
	f := valid("gemma3")
	f.grow("gemma3", 13)
	f.kv["gemma3.rope.freq_base"] = float32(1e6)
	f.kv["gemma3.rope.scaling.type"] = "linear"
	f.kv["gemma3.rope.scaling.factor"] = float32(8)
	f.kv["gemma3.final_logit_softcapping"] = float32(30)
	in, err := f.read(t)
	if err != nil {
		t.Fatal(err)
	}
	if in.EmbedScale != float32(math.Sqrt(hidden)) || in.LogitCap != 30 {
		t.Errorf("info is %+v", in)
	}
	for i, ly := range in.Plan {
		a, window, base, scale := ly.Mixer.(*Attention), 7, 10000.0, 1.0
		if i == 5 || i == 11 {
			window, base, scale = 0, 1e6, 0.125
		}
		if a.Window != window || a.Rope.Base != base || a.Rope.Scale != scale || !a.Rope.Halves || a.Scale != 0.25 || a.QNorm == nil || a.KNorm == nil {
			t.Errorf("layer %d: attention is %+v, rope %+v", i, a, a.Rope)
		}
		if ly.MixerPost == nil || ly.FFNPost == nil || ly.FFN.(*GLU).Act != GELU {
			t.Errorf("layer %d is %+v", i, ly)
		}
	}

	for _, c := range []struct {
		name  string
		value any
		local []bool
	}{
		{"a number", uint32(2), []bool{true, false, true}},
		{"every layer global", uint32(1), []bool{false, false, false}},
		{"a list", []bool{false, true, true}, []bool{false, true, true}},
	} {
		f := valid("gemma3")
		f.grow("gemma3", 3)
		f.kv["gemma3.attention.sliding_window_pattern"] = c.value
		f.kv["gemma3.rope.freq_base_swa"] = float32(500)
		f.kv["gemma3.final_logit_softcapping"] = float32(0)
		in, err := f.read(t)
		if err != nil {
			t.Fatal(err)
		}
		for i, local := range c.local {
			a := in.Plan[i].Mixer.(*Attention)
			if (a.Window == 7) != local || (a.Rope.Base == 500) != local {
				t.Errorf("pattern as %s: layer %d has the window %d and base %g", c.name, i, a.Window, a.Rope.Base)
			}
		}
		if in.LogitCap != 0 {
			t.Errorf("a limit of 0 became %g", in.LogitCap)
		}
	}

	// The 27B, which its number of layers tells, has heads of 128 but scales as if
	// they were of 5376 / 32.
	f = valid("gemma3")
	f.grow("gemma3", 62)
	if in, err = f.read(t); err != nil {
		t.Fatal(err)
	}
	if s := in.Plan[61].Mixer.(*Attention).Scale; s != float32(1/math.Sqrt(float64(hidden)/heads)) {
		t.Errorf("62 layers: scores are scaled by %g", s)
	}
}

func TestReadRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		arch   string
		damage func(f *file)
		says   string
	}{
		{"no architecture", "llama", func(f *file) { delete(f.kv, "general.architecture") }, "general.architecture"},
		{"unknown architecture", "llama", func(f *file) { f.kv["general.architecture"] = "mamba" }, `"mamba" is not supported; the supported ones are [gemma3 llama qwen2 qwen3]`},
		{"key missing", "llama", func(f *file) { delete(f.kv, "llama.block_count") }, `"llama.block_count" is missing`},
		{"key of another kind", "llama", func(f *file) { f.kv["llama.embedding_length"] = "big" }, "want a whole number"},
		{"zero", "llama", func(f *file) { f.kv["llama.attention.head_count"] = uint32(0) }, "is 0, want 1 to"},
		{"negative", "llama", func(f *file) { f.kv["llama.block_count"] = int32(-1) }, "block_count"},
		{"absurd layers", "llama", func(f *file) { f.kv["llama.block_count"] = uint32(1 << 20) }, "has only 21 tensors"},
		{"absurd width", "llama", func(f *file) { f.kv["llama.embedding_length"] = uint32(1<<32 - 1) }, "embedding_length"},
		{"epsilon", "llama", func(f *file) { f.kv["llama.attention.layer_norm_rms_epsilon"] = float32(0) }, "above 0"},
		{"heads do not share", "llama", func(f *file) { f.kv["llama.attention.head_count_kv"] = uint32(3) }, "cannot share 3"},
		{"width not in lanes", "llama", func(f *file) { f.kv["llama.feed_forward_length"] = uint32(40) }, "multiple of 16"},
		{"values of another size", "llama", func(f *file) { f.kv["llama.attention.value_length"] = uint32(32) }, "unequal sizes"},
		{"experts", "llama", func(f *file) { f.kv["llama.expert_count"] = uint32(8) }, "mixture of experts"},
		{"layer missing", "llama", func(f *file) { f.kv["llama.block_count"] = uint32(3) }, `"blk.2.attn_norm.weight" is missing`},
		{"fewer layers than the file has", "llama", func(f *file) { f.kv["llama.block_count"] = uint32(1) }, "has no place"},
		{"tensor missing", "llama", func(f *file) { delete(f.tensors, "blk.1.ffn_up.weight") }, `"blk.1.ffn_up.weight" is missing`},
		{"embedding missing", "llama", func(f *file) { delete(f.tensors, "token_embd.weight") }, `"token_embd.weight" is missing`},
		{"dims", "llama", func(f *file) { f.tensors["blk.0.attn_q.weight"] = []int{hidden, 63} }, "has dims [32 63], want [32 64]"},
		{"transposed", "llama", func(f *file) { f.tensors["blk.0.attn_q.weight"] = []int{64, hidden} }, "has dims [64 32], want [32 64]"},
		{"one dim more", "llama", func(f *file) { f.tensors["blk.0.attn_norm.weight"] = []int{hidden, 2} }, "has dims"},
		{"type of a matrix", "llama", func(f *file) { f.types["blk.0.attn_q.weight"] = gguf.I32 }, "not supported for matrices"},
		{"type of a norm", "llama", func(f *file) { f.types["output_norm.weight"] = gguf.F16 }, "want F32"},
		{"norms of q and k", "llama", func(f *file) { f.tensors["blk.0.attn_q_norm.weight"] = []int{headDim} }, `"blk.0.attn_q_norm.weight" has no place`},
		{"bias of the output", "qwen2", func(f *file) { f.tensors["blk.0.attn_output.bias"] = []int{hidden} }, "has no place"},
		{"norm of q missing", "qwen3", func(f *file) { delete(f.tensors, "blk.1.attn_q_norm.weight") }, `"blk.1.attn_q_norm.weight" is missing`},
		{"norm of k for all heads at once", "qwen3", func(f *file) { f.tensors["blk.0.attn_k_norm.weight"] = []int{kvHeads * headDim} }, "has dims [32], want [16]"},
		{"norm after the mixer missing", "gemma3", func(f *file) { delete(f.tensors, "blk.0.post_attention_norm.weight") }, `"blk.0.post_attention_norm.weight" is missing`},
		{"norm after the mixer elsewhere", "qwen3", func(f *file) { f.tensors["blk.0.post_attention_norm.weight"] = []int{hidden} }, "has no place"},
		{"window missing", "gemma3", func(f *file) { delete(f.kv, "gemma3.attention.sliding_window") }, `"gemma3.attention.sliding_window" is missing`},
		{"window of nothing", "gemma3", func(f *file) { f.kv["gemma3.attention.sliding_window"] = uint32(0) }, "is 0, want 1 to"},
		{"pattern of 0", "gemma3", func(f *file) { f.kv["gemma3.attention.sliding_window_pattern"] = uint32(0) }, "is 0, want 1 to"},
		{"pattern of another length", "gemma3", func(f *file) { f.kv["gemma3.attention.sliding_window_pattern"] = []bool{true} }, "has 1 values, want one for each of 2 layers"},
		{"pattern of numbers", "gemma3", func(f *file) { f.kv["gemma3.attention.sliding_window_pattern"] = []uint32{1, 0} }, "array of uint32"},
		{"negative limit of logits", "gemma3", func(f *file) { f.kv["gemma3.final_logit_softcapping"] = float32(-30) }, "above 0"},
		{"limit of logits in words", "gemma3", func(f *file) { f.kv["gemma3.final_logit_softcapping"] = "30" }, "want a number"},
		{"bias missing", "qwen2", func(f *file) { delete(f.tensors, "blk.1.attn_v.bias") }, "blk.1.attn_q.bias"},
		{"yarn", "llama", func(f *file) { f.kv["llama.rope.scaling.type"] = "yarn" }, `"yarn" is not supported`},
		{"linear without factor", "llama", func(f *file) { f.kv["llama.rope.scaling.type"] = "linear" }, "scaling.factor"},
		{"rope dims", "llama", func(f *file) { f.kv["llama.rope.dimension_count"] = uint32(24) }, "dimension_count"},
		{"rope factors", "llama", func(f *file) { f.tensors["rope_freqs.weight"] = []int{3} }, "has dims [3], want [8]"},
		{"all at once", "llama", func(f *file) { clear(f.tensors); f.tensors["a"], f.tensors["b"] = []int{1}, []int{1} }, "more faults"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := valid(c.arch)
			c.damage(f)
			_, err := f.read(t)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want something with %q", err, c.says)
			}
			if err != nil && strings.Count(err.Error(), "\n") > 12 {
				t.Errorf("the error has too many lines:\n%v", err)
			}
		})
	}
}

func TestKnownIsWhatReadKnows(t *testing.T) {
	doc, err := os.ReadFile("../../docs/adding-a-model.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range Known() {
		if !bytes.Contains(doc, []byte("\n| `"+arch+"` |")) {
			t.Errorf("docs/adding-a-model.md has no row for %q", arch)
		}
	}
	if got := sorted(architectures()); !slices.Equal(got, Known()) {
		t.Errorf("Known() is %v, Read knows %v", Known(), got)
	}
}

// Whatever the numbers of a file are, Read ends with an Info or an error.
func FuzzRead(f *testing.F) {
	f.Add("llama", "block_count", uint64(2), uint32(1))
	f.Add("qwen2", "attention.head_count", uint64(1)<<63, uint32(5))
	f.Add("llama", "rope.dimension_count", uint64(0), uint32(0))
	f.Add("gemma3", "attention.sliding_window_pattern", uint64(1)<<40, uint32(9))
	f.Add("qwen3", "attention.key_length", uint64(48), uint32(0))
	f.Fuzz(func(t *testing.T, arch, key string, value uint64, dim uint32) {
		if !slices.Contains(Known(), arch) {
			arch = "llama"
		}
		m := valid(arch)
		m.kv[arch+"."+key] = value
		names := sorted(m.tensors)
		name := names[int(dim)%len(names)]
		m.tensors[name] = []int{16 * int(1+dim>>8%8), int(1 + dim>>16%8)}
		in, err := m.read(t)
		if (in == nil) == (err == nil) {
			t.Fatalf("info %v and error %v", in, err)
		}
	})
}
