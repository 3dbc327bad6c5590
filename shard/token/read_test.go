package token

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
)

// file is the bytes of a GGUF with a small BPE vocabulary and changes to its keys; a
// nil value takes a key out.
func file(t testing.TB, changes ...gguf.KV) []byte {
	t.Helper()
	kv := []gguf.KV{
		{Key: "tokenizer.ggml.model", Value: "gpt2"},
		{Key: "tokenizer.ggml.pre", Value: "llama-bpe"},
		{Key: "tokenizer.ggml.tokens", Value: append(alphabet(), "lo", "<s>", "<e>")},
		{Key: "tokenizer.ggml.token_type", Value: slices.Concat(slices.Repeat([]int32{1}, 257), []int32{3, 3})},
		{Key: "tokenizer.ggml.merges", Value: []string{"l o"}},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(257)},
		{Key: "tokenizer.ggml.eos_token_id", Value: uint32(258)},
	}
	for _, c := range changes {
		kv = slices.DeleteFunc(kv, func(k gguf.KV) bool { return k.Key == c.Key })
		if c.Value != nil {
			kv = append(kv, c)
		}
	}
	var b bytes.Buffer
	if err := gguf.Write(&b, kv, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func open(data []byte) (*Tokenizer, error) {
	f, err := gguf.Parse(data)
	if err != nil {
		return nil, err
	}
	return New(f)
}

func TestNew(t *testing.T) {
	tok, err := open(file(t))
	if err != nil {
		t.Fatal(err)
	}
	bos, ok1 := tok.BOS()
	eos, ok2 := tok.EOS()
	if bos != 257 || eos != 258 || !ok1 || !ok2 || tok.Size() != 259 || !tok.EOG(258) {
		t.Errorf("BOS %d %v, EOS %d %v, size %d", bos, ok1, eos, ok2, tok.Size())
	}
	if !tok.AddBOS() {
		t.Error("llama-bpe adds BOS when the file does not say")
	}
	if got := spelled(t, tok, "<s>hello", true); got != "<s>|h|e|l|lo" {
		t.Errorf("<s>hello is cut %q", got)
	}
	if off, err := open(file(t, gguf.KV{Key: "tokenizer.ggml.add_bos_token", Value: false})); err != nil || off.AddBOS() {
		t.Errorf("the file says not to add BOS: %v, %v", off.AddBOS(), err)
	}
	if no, err := open(file(t, gguf.KV{Key: "tokenizer.ggml.bos_token_id"})); err != nil || no.AddBOS() {
		t.Errorf("there is no BOS to add: %v, %v", no.AddBOS(), err)
	}
	for _, tt := range []struct {
		change gguf.KV
		want   string
	}{
		{gguf.KV{Key: "tokenizer.ggml.model"}, "no key tokenizer.ggml.model"},
		{gguf.KV{Key: "tokenizer.ggml.tokens"}, "no list of strings tokenizer.ggml.tokens"},
		{gguf.KV{Key: "tokenizer.ggml.tokens", Value: []uint32{1}}, "no list of strings tokenizer.ggml.tokens"},
		{gguf.KV{Key: "tokenizer.ggml.pre"}, "no key tokenizer.ggml.pre"},
		{gguf.KV{Key: "tokenizer.ggml.bos_token_id", Value: uint32(259)}, "bos_token_id is 259, outside the 259 tokens"},
		{gguf.KV{Key: "tokenizer.ggml.eos_token_id", Value: int32(-7)}, "eos_token_id is -7"},
		{gguf.KV{Key: "tokenizer.ggml.model", Value: "llama"}, "0 scores for 259 tokens"},
	} {
		if _, err := open(file(t, tt.change)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s = %v: %v, want %q", tt.change.Key, tt.change.Value, err, tt.want)
		}
	}
}

// A damaged file gives a tokenizer or an error, and a tokenizer works.
func FuzzNew(f *testing.F) {
	f.Add(file(f))
	f.Add(file(f, gguf.KV{Key: "tokenizer.ggml.model", Value: "llama"}, gguf.KV{Key: "tokenizer.ggml.scores", Value: make([]float32, 259)}))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := open(data)
		if err != nil {
			return
		}
		ids, err := tok.Encode("hello <s> \xff", true)
		if err != nil {
			return
		}
		d := tok.NewDecoder()
		for _, id := range ids {
			if id < 0 || int(id) >= tok.Size() {
				t.Fatalf("id %d of %d", id, tok.Size())
			}
			d.Push(id)
		}
		d.Flush()
	})
}
