// Package tiny makes the catalogue's model `tiny`: a chat model of random
// weights, a megabyte large, whose text is nonsense. With it a whole mesh runs
// without a network to fetch anything from.
//
// Invariant: a seed gives the same bytes on every machine, since peers compare
// models by their hash. So the weights come from integers, and nothing here is
// computed by a function that may round differently elsewhere.
//
// Start with Write.
package tiny

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/vec"
)

// The geometry: enough layers to be cut into overlapping ranges, heads that
// share keys, and an output matrix of its own.
const (
	layers  = 8
	hidden  = 128
	heads   = 4
	kvHeads = 2
	headDim = 32
	ffn     = 256
	vocab   = 384
	context = 8192
)

const template = `{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// WriteFile writes the model of a seed to a new file at path, which appears
// whole or not at all.
func WriteFile(path string, seed uint64) (err error) {
	f, err := os.CreateTemp(dir(path), ".tiny-*")
	if err != nil {
		return fmt.Errorf("write the tiny model: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write the tiny model: %w", err), os.Remove(f.Name()))
		}
	}()
	w := bufio.NewWriter(f)
	err = errors.Join(Write(w, seed), w.Flush(), f.Chmod(0o644), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func dir(path string) string {
	if i := strings.LastIndexByte(path, os.PathSeparator); i >= 0 {
		return path[:i+1]
	}
	return "."
}

// Write writes the model of a seed as GGUF.
func Write(w io.Writer, seed uint64) error {
	tokens, kinds, merges := vocabulary()
	kv := []gguf.KV{
		{Key: "general.architecture", Value: "llama"},
		{Key: "general.name", Value: fmt.Sprintf("meshnet tiny, seed %d", seed)},
		{Key: "general.license", Value: "apache-2.0"},
		{Key: "general.file_type", Value: uint32(7)}, // mostly Q8_0
		{Key: "llama.block_count", Value: uint32(layers)},
		{Key: "llama.context_length", Value: uint32(context)},
		{Key: "llama.embedding_length", Value: uint32(hidden)},
		{Key: "llama.feed_forward_length", Value: uint32(ffn)},
		{Key: "llama.attention.head_count", Value: uint32(heads)},
		{Key: "llama.attention.head_count_kv", Value: uint32(kvHeads)},
		{Key: "llama.attention.layer_norm_rms_epsilon", Value: float32(1e-5)},
		{Key: "llama.rope.dimension_count", Value: uint32(headDim)},
		{Key: "llama.rope.freq_base", Value: float32(10000)},
		{Key: "llama.vocab_size", Value: uint32(vocab)},
		{Key: "tokenizer.ggml.model", Value: "gpt2"},
		{Key: "tokenizer.ggml.pre", Value: "smollm"},
		{Key: "tokenizer.ggml.tokens", Value: tokens},
		{Key: "tokenizer.ggml.token_type", Value: kinds},
		{Key: "tokenizer.ggml.merges", Value: merges},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)},
		{Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)},
		{Key: "tokenizer.ggml.padding_token_id", Value: uint32(0)},
		{Key: "tokenizer.ggml.add_bos_token", Value: false},
		{Key: "tokenizer.chat_template", Value: template},
	}
	return gguf.Write(w, kv, weights(seed, tokens))
}

// weights makes the tensors. Their sizes keep the residual stream near 1 and
// give logits a spread that neither decides at once nor drowns in rounding.
func weights(seed uint64, tokens []string) []gguf.TensorInfo {
	r := &rng{seed}
	q, kv := heads*headDim, kvHeads*headDim
	ts := []gguf.TensorInfo{r.matrix("token_embd.weight", hidden, vocab, 1, gguf.Q8_0, nil)}
	for i := range layers {
		b := fmt.Sprintf("blk.%d.", i)
		ts = append(ts,
			r.norm(b+"attn_norm.weight"),
			r.matrix(b+"attn_q.weight", hidden, q, 2/math.Sqrt(hidden), gguf.Q8_0, nil),
			r.matrix(b+"attn_k.weight", hidden, kv, 2/math.Sqrt(hidden), gguf.Q8_0, nil),
			r.matrix(b+"attn_v.weight", hidden, kv, 1/math.Sqrt(hidden), gguf.Q8_0, nil),
			r.matrix(b+"attn_output.weight", q, hidden, 1/math.Sqrt(float64(q)), gguf.Q8_0, nil),
			r.norm(b+"ffn_norm.weight"),
			r.matrix(b+"ffn_gate.weight", hidden, ffn, 1.5/math.Sqrt(hidden), gguf.Q8_0, nil),
			r.matrix(b+"ffn_up.weight", hidden, ffn, 1.5/math.Sqrt(hidden), gguf.Q8_0, nil),
			r.matrix(b+"ffn_down.weight", ffn, hidden, 1/math.Sqrt(ffn), gguf.Q8_0, nil),
		)
	}
	return append(ts,
		r.norm("output_norm.weight"),
		r.matrix("output.weight", hidden, vocab, 3/math.Sqrt(hidden), gguf.F32, func(row int) bool { return speaks(tokens[row]) }))
}

// speaks says whether the model may say the token: printable ASCII, never a
// control token. The rows of the others are 0, so their logits are 0 as well
// and one of the hundreds of others is always above them.
func speaks(token string) bool {
	if strings.HasPrefix(token, "<|") && strings.HasSuffix(token, "|>") {
		return false
	}
	for _, c := range token {
		if c != space && (c < '!' || c > '~') {
			return false
		}
	}
	return true
}

// rng is SplitMix64.
type rng struct{ state uint64 }

func (r *rng) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// bell is nearly normal, with deviation 1: the sum of 12 numbers of 16 bits.
func (r *rng) bell() float64 {
	sum := -12 * 65535 / 2
	for range 3 {
		for v, i := r.next(), 0; i < 4; v, i = v>>16, i+1 {
			sum += int(v & 0xffff)
		}
	}
	return float64(sum) / 65536
}

// matrix makes rows of cols values; keep, unless nil, says which are not 0.
func (r *rng) matrix(name string, cols, rows int, scale float64, typ gguf.Type, keep func(row int) bool) gguf.TensorInfo {
	t := gguf.TensorInfo{Name: name, Type: typ, Dims: []uint64{uint64(cols), uint64(rows)}}
	x := make([]float32, cols)
	for row := range rows {
		for i := range x {
			x[i] = float32(float64(r.bell() * scale))
		}
		if keep != nil && !keep(row) {
			clear(x)
		}
		t.Data = appendRow(t.Data, typ, x)
	}
	return t
}

// norm makes weights between 0.75 and 1.25.
func (r *rng) norm(name string) gguf.TensorInfo {
	t := gguf.TensorInfo{Name: name, Type: gguf.F32, Dims: []uint64{hidden}}
	for range hidden {
		w := 0.75 + float32(r.next()>>48)/(1<<17)
		t.Data = appendRow(t.Data, gguf.F32, []float32{w})
	}
	return t
}

// appendRow appends x as F32 or as Q8_0: blocks of a float16 scale and 32 bytes.
func appendRow(b []byte, typ gguf.Type, x []float32) []byte {
	if typ == gguf.F32 {
		for _, v := range x {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		return b
	}
	for ; len(x) > 0; x = x[32:] {
		top := float32(0)
		for _, v := range x[:32] {
			top = max(top, v, -v)
		}
		d := top / 127
		b = binary.LittleEndian.AppendUint16(b, vec.ToF16(d))
		for _, v := range x[:32] {
			q := 0.0
			if d > 0 {
				q = math.RoundToEven(float64(v / d))
			}
			b = append(b, byte(int8(q)))
		}
	}
	return b
}
