package token

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/testnet/realmodel"
)

// openModel opens the tokenizer of a real model. Such vocabularies are too large to
// keep here.
func openModel(t testing.TB, path string) *Tokenizer {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := New(f)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

type goldenLine struct {
	Text       *string `json:"text"`
	Hex        string  `json:"hex"`
	Special    bool    `json:"special"`
	AddSpecial bool    `json:"add_special"`
	IDs        []int32 `json:"ids"`
}

// checkGolden compares with llama.cpp's ids for valid text (for SmolLM2 the Hugging
// Face tokenizers library gave the same). Of bytes that are not UTF-8, llama.cpp
// makes U+FFFD or crashes; here they must come back as they were.
func checkGolden(t *testing.T, tok *Tokenizer, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	valid := 0
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		var g goldenLine
		if err := json.Unmarshal(lines.Bytes(), &g); err != nil {
			t.Fatal(err)
		}
		var text string
		if g.Text != nil {
			text = *g.Text
		} else {
			raw, err := hex.DecodeString(g.Hex)
			if err != nil {
				t.Fatal(err)
			}
			text = string(raw)
		}
		ids, err := tok.Encode(text, g.Special)
		if err != nil {
			t.Errorf("Encode(%q, %v): %v", text, g.Special, err)
			continue
		}
		if back := tok.Decode(ids); string(back) != text && string(back) != missing(tok, text) &&
			!strings.Contains(text, meta) {
			t.Errorf("Decode(Encode(%q, %v)) = %q", text, g.Special, back)
		}
		if !utf8.ValidString(text) {
			continue
		}
		if g.AddSpecial && tok.AddBOS() {
			bos, _ := tok.BOS()
			ids = append([]int32{bos}, ids...)
		}
		if !slices.Equal(ids, g.IDs) {
			t.Errorf("Encode(%q, %v)\n got %v\nwant %v", text, g.Special, ids, g.IDs)
		}
		valid++
	}
	if valid < 100 {
		t.Errorf("only %d lines of valid text in %s", valid, path)
	}
}

// missing writes U+FFFD for bytes that a BPE vocabulary lacks, as SmolLM2's lacks
// 0xff.
func missing(tok *Tokenizer, text string) string {
	b, ok := tok.model.(*bpe)
	if !ok {
		return text
	}
	var out []byte
	for i := range len(text) {
		if b.bytes[text[i]] == none {
			out = append(out, "\uFFFD"...)
		} else {
			out = append(out, text[i])
		}
	}
	return string(out)
}

func TestGoldenSmolLM2(t *testing.T) {
	checkGolden(t, openModel(t, realmodel.SmolLM2(t)), "testdata/smollm2.jsonl")
}

func TestGoldenQwen2(t *testing.T) {
	checkGolden(t, openModel(t, realmodel.Qwen05(t)), "testdata/qwen2.jsonl")
}

// Gemma's vocabulary and whatever is made of it stay out of the repository: its
// terms are not open source. Two variables name the model and its ids.
func TestGoldenGemma(t *testing.T) {
	path, golden := os.Getenv("MESHNET_TEST_GEMMA"), os.Getenv("MESHNET_TEST_GEMMA_GOLDEN")
	if path == "" || golden == "" {
		t.Skip("MESHNET_TEST_GEMMA and MESHNET_TEST_GEMMA_GOLDEN are not set")
	}
	checkGolden(t, openModel(t, path), golden)
}
