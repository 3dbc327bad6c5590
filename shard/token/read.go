package token

import (
	"errors"
	"fmt"
	"strings"

	"github.com/meshnet/meshnet/shard/gguf"
)

const maxVocabulary = 1 << 22

// vocabulary is what a model file says of its tokenizer.
type vocabulary struct {
	model, pre string
	tokens     []string
	kinds      []int64   // empty: all normal
	scores     []float32 // SentencePiece only
	merges     []string  // BPE only: "left right", best first
	bos, eos   int32
	ends       []int32 // further tokens that end a turn: eot, eom
	addBOS     *bool   // nil: the family's default
	addSpace   *bool
}

// New reads the tokenizer of a model file. The error names a missing key, or a
// tokenizer or pre-tokenizer that this program does not know.
func New(f *gguf.File) (*Tokenizer, error) {
	v, err := read(f)
	if err == nil {
		var t *Tokenizer
		if t, err = build(v); err == nil {
			return t, nil
		}
	}
	return nil, fmt.Errorf("read tokenizer: %w", err)
}

func read(f *gguf.File) (vocabulary, error) {
	const p = "tokenizer.ggml."
	v := vocabulary{bos: none, eos: none}
	var ok bool
	if v.model, ok = f.String(p + "model"); !ok {
		return v, errors.New("the file has no key tokenizer.ggml.model: it holds no tokenizer")
	}
	v.pre, _ = f.String(p + "pre")
	if v.tokens, ok = f.Strings(p + "tokens"); !ok {
		return v, errors.New("the file has no list of strings tokenizer.ggml.tokens")
	}
	v.kinds, _ = f.Ints(p + "token_type")
	v.scores, _ = f.Floats(p + "scores")
	v.merges, _ = f.Strings(p + "merges")
	id := func(key string) (int32, error) {
		n, ok := f.Int(p + key)
		if !ok || n == -1 {
			return none, nil
		}
		if n < 0 || n >= int64(len(v.tokens)) {
			return none, fmt.Errorf("%s%s is %d, outside the %d tokens", p, key, n, len(v.tokens))
		}
		return int32(n), nil
	}
	var errs [4]error
	var eot, eom int32
	v.bos, errs[0] = id("bos_token_id")
	v.eos, errs[1] = id("eos_token_id")
	eot, errs[2] = id("eot_token_id")
	eom, errs[3] = id("eom_token_id")
	v.ends = []int32{eot, eom}
	if b, ok := f.Bool(p + "add_bos_token"); ok {
		v.addBOS = &b
	}
	if b, ok := f.Bool(p + "add_space_prefix"); ok {
		v.addSpace = &b
	}
	return v, errors.Join(errs[:]...)
}

func build(v vocabulary) (*Tokenizer, error) {
	n := len(v.tokens)
	switch {
	case n == 0 || n > maxVocabulary:
		return nil, fmt.Errorf("%d tokens, not 1 to %d", n, maxVocabulary)
	case len(v.kinds) != 0 && len(v.kinds) != n:
		return nil, fmt.Errorf("%d token types for %d tokens", len(v.kinds), n)
	}
	t := &Tokenizer{texts: v.tokens, bos: v.bos, eos: v.eos}
	if err := t.classify(v); err != nil {
		return nil, err
	}
	var err error
	switch v.model {
	case "gpt2":
		err = t.buildBPE(v)
	case "llama":
		err = t.buildSPM(v)
	default:
		err = fmt.Errorf("unknown tokenizer %q; known are \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece)", v.model)
	}
	if err != nil {
		return nil, err
	}
	if v.addBOS != nil {
		t.addBOS = *v.addBOS
	}
	t.special = newSpecials(t.texts, t.kinds)
	return t, nil
}

// classify fills kinds and eog. Tokens with a well-known name of a turn's end are
// control tokens even where the file forgot to say so (llama.cpp does the same),
// but end a turn only if the file agrees: in a vocabulary that lists "</s>" among
// HTML tags it is a piece of text that a model may write.
func (t *Tokenizer) classify(v vocabulary) error {
	t.kinds = make([]kind, len(v.tokens))
	t.eog = map[int32]bool{}
	for id, text := range v.tokens {
		k := normal
		if len(v.kinds) != 0 {
			if v.kinds[id] < 0 || v.kinds[id] > int64(byteTok) {
				return fmt.Errorf("token %d %q has type %d, not 0 to 6", id, text, v.kinds[id])
			}
			k = max(kind(v.kinds[id]), normal)
		}
		if turnEnds[text] {
			if k == control {
				t.eog[int32(id)] = true
			}
			k = control
		}
		t.kinds[id] = k
	}
	for _, id := range append(v.ends, v.eos) {
		if id != none {
			t.eog[id] = true
		}
	}
	return nil
}

var turnEnds = set("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<end_of_turn>", "<|endoftext|>", "</s>",
	"<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>",
	"<｜end▁of▁sentence｜>", "<|fim_pad|>", "<fim_pad>", "<|repo_name|>", "<|file_sep|>")

func set(words ...string) map[string]bool {
	m := make(map[string]bool, len(words))
	for _, w := range words {
		m[w] = true
	}
	return m
}

// setPieces stores the bytes of every token.
func (t *Tokenizer) setPieces(piece func(dst []byte, id int) []byte) error {
	t.ends = make([]uint32, len(t.texts))
	t.longest = 4 // the unknown token may stand for any character
	for id := range t.texts {
		before := len(t.pieces)
		t.pieces = piece(t.pieces, id)
		t.longest = max(t.longest, len(t.pieces)-before)
		if len(t.pieces) > 1<<30 {
			return fmt.Errorf("the vocabulary's texts exceed 1 GiB")
		}
		t.ends[id] = uint32(len(t.pieces))
	}
	t.pieces = t.pieces[:len(t.pieces):len(t.pieces)]
	return nil
}

// byteValue parses the name of a byte token, "<0x0A>".
func byteValue(text string) (byte, bool) {
	const hex = "0123456789ABCDEF"
	if len(text) != 6 || text[:3] != "<0x" || text[5] != '>' {
		return 0, false
	}
	hi, lo := strings.IndexByte(hex, text[3]), strings.IndexByte(hex, text[4])
	if hi < 0 || lo < 0 {
		return 0, false
	}
	return byte(hi<<4 | lo), true
}
