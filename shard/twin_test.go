package shard

import (
	"fmt"
	"math"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/tensor"
)

// twin is the forward pass written for reading: float64, whole matrices, loops,
// straight from the file's keys and tensors. Of the engine's roundings it makes
// the one that matters, that of activations to int8 where weights are quantized.
type twin struct {
	f                                     *gguf.File
	read                                  map[string]matrix
	arch                                  string
	layers, hidden, heads, kv, dim, turns int
	eps, base                             float64

	// gemma3
	window                    int // 0: all layers see everything
	baseLocal, stretch, limit float64
}

type matrix struct {
	rows      [][]float64
	quantized bool
}

func newTwin(t *testing.T, f *gguf.File) *twin {
	w := &twin{f: f, read: map[string]matrix{}}
	w.arch, _ = f.String("general.architecture")
	get := func(key string, def int) int {
		if v, ok := f.Uint(w.arch + "." + key); ok {
			return int(v)
		}
		return def
	}
	w.layers, w.hidden, w.heads = get("block_count", 0), get("embedding_length", 0), get("attention.head_count", 0)
	w.kv = get("attention.head_count_kv", w.heads)
	w.dim = get("attention.key_length", w.hidden/w.heads)
	w.turns = get("rope.dimension_count", w.dim)
	w.eps, _ = f.Float(w.arch + ".attention.layer_norm_rms_epsilon")
	w.base = 10000
	if v, ok := f.Float(w.arch + ".rope.freq_base"); ok {
		w.base = v
	}
	w.baseLocal, w.stretch = 10000, 1
	if w.arch == "gemma3" {
		w.window = get("attention.sliding_window", 0)
		if v, ok := f.Float("gemma3.rope.scaling.factor"); ok {
			w.stretch = v
		}
		w.limit, _ = f.Float("gemma3.final_logit_softcapping")
	}
	return w
}

// get reads a matrix, or a vector as its only row; no rows if there is none.
func (w *twin) get(name string) (m matrix) {
	if m, ok := w.read[name]; ok {
		return m
	}
	defer func() { w.read[name] = m }()
	t, ok := w.f.Tensor(name)
	if !ok {
		return m
	}
	row := make([]float32, t.Dims[0])
	for i := range t.Rows() {
		if err := tensor.DequantRow(t, i, row); err != nil {
			panic(err)
		}
		wide := make([]float64, len(row))
		for j, v := range row {
			wide[j] = float64(v)
		}
		m.rows = append(m.rows, wide)
	}
	m.quantized = t.Type.BlockSize() > 1
	return m
}

// mul is m · x, with x rounded to blocks of 32 int8 where the engine does so.
func (m matrix) mul(x []float64) []float64 {
	if m.quantized {
		x = append([]float64(nil), x...)
		for b := 0; b < len(x); b += 32 {
			top := float32(0)
			for _, v := range x[b : b+32] {
				top = max(top, float32(math.Abs(v)))
			}
			d := top / 127
			for i := b; i < b+32; i++ {
				x[i] = math.RoundToEven(float64(float32(x[i])*(1/d))) * float64(d)
			}
		}
	}
	y := make([]float64, len(m.rows))
	for r, row := range m.rows {
		for i, v := range row {
			y[r] += v * x[i]
		}
	}
	return y
}

func (w *twin) rms(x []float64, name string) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	y := make([]float64, len(x))
	for i, v := range w.get(name).rows[0] {
		y[i] = x[i] / math.Sqrt(sum/float64(len(x))+w.eps) * v
	}
	return y
}

func (w *twin) linear(x []float64, name string) []float64 {
	y := w.get(name + ".weight").mul(x)
	for _, bias := range w.get(name + ".bias").rows {
		addTo(y, bias)
	}
	return y
}

func addTo(x, y []float64) {
	for i, v := range y {
		x[i] += v
	}
}

// local says whether a layer sees only the window.
func (w *twin) local(layer int) bool { return w.window > 0 && layer%6 != 5 }

func (w *twin) rope(x []float64, layer, pos int) {
	factors := w.get("rope_freqs.weight").rows
	base, stretch := w.base, w.stretch
	if w.local(layer) {
		base, stretch = w.baseLocal, 1
	}
	for i := range w.turns / 2 {
		th := float64(pos) / stretch * math.Pow(base, -2*float64(i)/float64(w.turns))
		if factors != nil {
			th /= factors[0][i]
		}
		a, b := 2*i, 2*i+1
		if w.arch != "llama" {
			a, b = i, i+w.turns/2
		}
		s, c := math.Sincos(th)
		x[a], x[b] = x[a]*c-x[b]*s, x[b]*c+x[a]*s
	}
}

// logits runs all ids from position 0.
func (w *twin) logits(ids []int32) (out []float64) {
	embed := w.get("token_embd.weight").rows
	var xs [][]float64
	for _, id := range ids {
		x := append([]float64(nil), embed[id]...)
		if w.arch == "gemma3" {
			for i := range x {
				x[i] *= math.Sqrt(float64(w.hidden))
			}
		}
		xs = append(xs, x)
	}
	for l := range w.layers {
		blk := fmt.Sprintf("blk.%d.", l)
		var keys, values [][]float64
		for pos, x := range xs {
			h := w.rms(x, blk+"attn_norm.weight")
			q, k := w.linear(h, blk+"attn_q"), w.linear(h, blk+"attn_k")
			w.normHeads(q, blk+"attn_q_norm.weight")
			w.normHeads(k, blk+"attn_k_norm.weight")
			for i := 0; i < len(q); i += w.dim {
				w.rope(q[i:i+w.dim], l, pos)
			}
			for i := 0; i < len(k); i += w.dim {
				w.rope(k[i:i+w.dim], l, pos)
			}
			keys, values = append(keys, k), append(values, w.linear(h, blk+"attn_v"))
			seen := 0
			if w.local(l) && pos >= w.window {
				seen = pos - w.window + 1
			}
			y := w.linear(w.attend(q, keys[seen:], values[seen:]), blk+"attn_output")
			addTo(x, w.post(y, blk+"post_attention_norm.weight"))
		}
		for _, x := range xs {
			h := w.rms(x, blk+"ffn_norm.weight")
			g, u := w.linear(h, blk+"ffn_gate"), w.linear(h, blk+"ffn_up")
			for i := range g {
				if w.arch == "gemma3" {
					g[i] = g[i] / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g[i]+0.044715*g[i]*g[i]*g[i]))) * u[i]
				} else {
					g[i] = g[i] / (1 + math.Exp(-g[i])) * u[i]
				}
			}
			addTo(x, w.post(w.linear(g, blk+"ffn_down"), blk+"post_ffw_norm.weight"))
		}
	}
	output := w.get("output.weight")
	if output.rows == nil {
		output = w.get("token_embd.weight")
	}
	for _, x := range xs {
		out = append(out, output.mul(w.rms(x, "output_norm.weight"))...)
	}
	if w.limit > 0 {
		for i := range out {
			out[i] = w.limit * math.Tanh(out[i]/w.limit)
		}
	}
	return out
}

// normHeads norms each head of x, and post all of it, where there is such a norm.
func (w *twin) normHeads(x []float64, name string) {
	if w.get(name).rows != nil {
		for i := 0; i < len(x); i += w.dim {
			copy(x[i:], w.rms(x[i:i+w.dim], name))
		}
	}
}

func (w *twin) post(x []float64, name string) []float64 {
	if w.get(name).rows == nil {
		return x
	}
	return w.rms(x, name)
}

func (w *twin) attend(q []float64, keys, values [][]float64) []float64 {
	o := make([]float64, len(q))
	for h := range w.heads {
		at := h / (w.heads / w.kv) * w.dim
		p, sum := make([]float64, len(keys)), 0.0
		for j, k := range keys {
			for d := range w.dim {
				p[j] += q[h*w.dim+d] * k[at+d]
			}
			p[j] = math.Exp(p[j] / math.Sqrt(float64(w.dim)))
			sum += p[j]
		}
		for j, v := range values {
			for d := range w.dim {
				o[h*w.dim+d] += p[j] / sum * v[at+d]
			}
		}
	}
	return o
}

// rms64 is the root of the mean square of a - b.
func rms64(a []float32, b []float64) float64 {
	sum := 0.0
	for i := range a {
		sum += (float64(a[i]) - b[i]) * (float64(a[i]) - b[i])
	}
	return math.Sqrt(sum / float64(len(a)))
}

// The engine computes in float32, so now and then a value on the edge between
// two int8 falls to the other side than in the twin: one step of one of
// thousands of values, which moves logits of deviation 2.5 by up to 0.02.
// Without the rounding, as against PyTorch, all of them are off, by 0.2 to 0.4.
func TestQuantizedEqualsTwin(t *testing.T) {
	ids := readGolden(t, "testdata/llama/golden.safetensors").ints["tokens_17"]
	for _, c := range []struct {
		name, path, golden string
		layers             int // how many of them, from 0: random deep models amplify a step
	}{
		{"q41 q50 q51", "testdata/llama_q/mix_q41_q50_q51.gguf", "testdata/llama_q/golden-mix_q41_q50_q51.safetensors", 1},
		{"q4_k", "testdata/llama_q/q4_k.gguf", "testdata/llama_q/golden-q4_k.safetensors", 1},
		{"q2_k q3_k", "testdata/llama_q/mix_q2k_q3k.gguf", "testdata/llama_q/golden-mix_q2k_q3k.safetensors", 1},
		{"iq4_nl iq4_xs mxfp4", "testdata/llama_q/mix_iq4_mxfp4.gguf", "testdata/llama_q/golden-mix_iq4_mxfp4.safetensors", 1},
		{"q8_0 and f32", tinyFile(t), "", 1},
		{"f16, no rounding", "testdata/llama3_tied/model-f16.gguf", "testdata/llama3_tied/golden.safetensors", 4},
		{"f16, biases", "testdata/qwen2/model-f16.gguf", "testdata/qwen2/golden.safetensors", 4},
		{"bf16, head norms", "testdata/qwen3/model-bf16.gguf", "testdata/qwen3/golden.safetensors", 4},
		{"f16, gemma3", "testdata/gemma3/model-f16.gguf", "testdata/gemma3/golden.safetensors", 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := open(t, c.path)
			ids := clampIDs(ids, m.Info().Vocab)
			e, h := load(t, m, 0, c.layers, Options{Threads: 2}), loadHead(t, m, Options{Threads: 2})
			x := embed(t, h, ids)
			feed(t, e, newState(t, e, 0, c.layers), x, len(ids))
			got := logits(t, h, x)
			slow := newTwin(t, m.File())
			slow.layers = c.layers
			want := slow.logits(ids)
			far, rms := farthest(t, got, want), rms64(got, want)
			t.Logf("from the twin: at most %.2g, rms %.2g", far, rms)
			if far > 2e-2 || rms > 1e-3 {
				t.Errorf("logits are off by %g, rms %g", far, rms)
			}
			if c.golden == "" || c.layers < m.Info().Layers {
				return
			}
			torch := readGolden(t, c.golden).floats["logits_17"]
			far = farthest(t, got, torch)
			t.Logf("from PyTorch on the dequantized weights: %.2g", far)
			if far > 0.5 {
				t.Errorf("logits are off PyTorch's by %g", far)
			}
		})
	}
}

// clampIDs folds ids of a vocabulary of 512 into a smaller one.
func clampIDs(ids []int32, vocab int) []int32 {
	out := make([]int32, len(ids))
	for i, id := range ids {
		out[i] = id % int32(vocab)
	}
	return out
}

// The goldens' windows and texts all lie in the first chunk of keys. Windows that
// reach over several, or begin far behind the first, are the twin's to judge.
func TestWindowsEqualTwin(t *testing.T) {
	var ids []int32
	for i := range 150 {
		ids = append(ids, int32(i*i*31+7*i)%512)
	}
	for _, window := range []int{1, 3, 16, 63, 64, 65, 130} {
		path := withKeys(t, "testdata/gemma3/model-f16.gguf", map[string]any{"gemma3.attention.sliding_window": uint32(window)})
		m := open(t, path)
		layers := m.Info().Layers
		e, h := load(t, m, 0, layers, Options{Threads: 2}), loadHead(t, m, Options{Threads: 2})
		x := embed(t, h, ids)
		feed(t, e, newState(t, e, 0, layers), x, len(ids))
		far := farthest(t, logits(t, h, x), newTwin(t, m.File()).logits(ids))
		t.Logf("window %d: at most %.2g from the twin", window, far)
		if far > goldenTolerance {
			t.Errorf("window %d: logits are off by %g", window, far)
		}
	}
}
