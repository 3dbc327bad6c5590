package token

import (
	"math/rand/v2"
	"slices"
	"testing"
	"unicode/utf8"
)

// The patterns that the hand-written scanners stand for, run by a regular
// expression engine.
func TestScannersAgainstPatterns(t *testing.T) {
	const (
		tail   = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		tail35 = `| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		short  = `(?:'[sSſ]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`
		gpt2RE = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	)
	scanners := []struct {
		name string
		hand []pass
		twin []pass
	}{
		{"gpt-2", []pass{scan(gpt2)}, []pass{regex(gpt2RE)}},
		{"smollm", []pass{digits(1), scan(gpt2)}, []pass{regex(`\p{N}`), regex(gpt2RE)}},
		{"qwen2", []pass{cl100k(1, false)}, []pass{regex(short + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}` + tail)}},
		{"llama-bpe", []pass{cl100k(3, false)}, []pass{regex(short + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}` + tail)}},
		{"qwen35", []pass{cl100k(1, true)}, []pass{regex(short + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}` + tail35)}},
		{"digits", []pass{digits(3)}, []pass{regex(`\p{N}{1,3}`)}},
	}
	texts := []string{"", "don't I'LL we've THEY'RE 'ſ '", "a  b\t\n c \r\n\r\n  d", "x1234567 ½Ⅷ٣", "e\u0301 \u0301x \u0301\u0301 9\u0301", "\u00a0a\u3000\u3000b\u2028c\u0085 d",
		"!!? ?\n\n!\r", "日本語 テスト👍🏽👨‍👩‍👧", " \n\n x", "\n \n", "   ", "'", "''s's", "\ufffd\u200b\u202e"}
	runes := []rune("aZé日ſ'’sStTrevVEmdLl  \t\n\r\u00a0\u2003\u2028\u0085123½٣Ⅷ!?.,-_$<=>\u0301\u0327\u200d👍\U000F0000")
	r := rand.New(rand.NewPCG(31, 0))
	for range 4000 {
		b := make([]rune, r.IntN(24))
		for i := range b {
			b[i] = runes[r.IntN(len(runes))]
		}
		texts = append(texts, string(b))
	}
	for _, s := range scanners {
		for _, text := range texts {
			if got, want := pieces(t, s.hand, text), pieces(t, s.twin, text); !slices.Equal(got, want) {
				t.Fatalf("%s cuts %q into %q, the pattern into %q", s.name, text, got, want)
			}
		}
	}
}

func pieces(t *testing.T, passes []pass, text string) (out []string) {
	t.Helper()
	if err := split(passes, text, func(p string) error { out = append(out, p); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// Every family keeps every byte, also of text that is not UTF-8.
func TestSplitKeepsBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(32, 0))
	for _, fam := range families() {
		p := fam.make()
		for range 300 {
			b := make([]byte, r.IntN(30))
			for i := range b {
				if b[i] = byte(r.Uint32()); r.IntN(2) == 0 {
					b[i] = "a1 \n'!"[r.IntN(6)]
				}
			}
			var back []byte
			for _, piece := range pieces(t, p.passes, string(b)) {
				if piece == "" {
					t.Fatalf("%s: an empty piece of %q", fam.names, b)
				}
				back = append(back, piece...)
			}
			if string(back) != string(b) {
				t.Fatalf("%s: %q comes back as %q (valid UTF-8: %v)", fam.names, b, back, utf8.Valid(b))
			}
		}
	}
}

// Cuts that the models' own pre-tokenizers are known for.
func TestFamilies(t *testing.T) {
	tests := []struct {
		pre, text string
		want      []string
	}{
		{"smollm", "in 2024 I'd", []string{"in", " ", "2", "0", "2", "4", " I", "'d"}},
		{"gpt-2", "in 2024 I'D", []string{"in", " 2024", " I", "'", "D"}},
		{"qwen2", "x=2024\n\n  y", []string{"x", "=", "2", "0", "2", "4", "\n\n", " ", " y"}},
		{"llama-bpe", "x=20245\n\n  y", []string{"x", "=", "202", "45", "\n\n", " ", " y"}},
		{"default", "a+b 12345", []string{"a", "+", "b", " ", "123", "45"}},
		{"falcon", "a.b 1234", []string{"a", ".", "b", " ", "123", "4"}},
		{"deepseek-v3", "x.foo 日本abc 1234", []string{"x", ".foo", " ", "日本", "abc", " ", "123", "4"}},
		{"deepseek-coder", "if x1\n日", []string{"if", " x", "1", "\n", "日"}},
		{"gpt-4o", "helloWorld HTTPServer's 1234/\n", []string{"hello", "World", " HTTPServer's", " ", "123", "4", "/\n"}},
		{"tekken", "helloWorld's 12", []string{"hello", "World", "'s", " ", "1", "2"}},
	}
	for _, tt := range tests {
		p, err := findPre(tt.pre)
		if err != nil {
			t.Fatal(err)
		}
		if got := pieces(t, p.passes, tt.text); !slices.Equal(got, tt.want) {
			t.Errorf("%s cuts %q into %q, want %q", tt.pre, tt.text, got, tt.want)
		}
	}
}
