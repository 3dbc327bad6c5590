package token

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// smallSPM has <unk>, BOS, EOS, the byte tokens if asked, and pieces with scores.
func smallSPM(t testing.TB, withBytes, prefix bool, pieces map[string]float32, extras ...extra) *Tokenizer {
	t.Helper()
	v := vocabulary{model: "llama", bos: 1, eos: 2, addSpace: &prefix,
		tokens: []string{"<unk>", "<s>", "</s>"}, kinds: []int64{2, 3, 3}, scores: []float32{0, 0, 0}}
	add := func(text string, k kind, score float32) {
		v.tokens, v.kinds, v.scores = append(v.tokens, text), append(v.kinds, int64(k)), append(v.scores, score)
	}
	if withBytes {
		for b := range 256 {
			add(fmt.Sprintf("<0x%02X>", b), byteTok, 0)
		}
	}
	for text, score := range pieces {
		add(text, normal, score)
	}
	for _, e := range extras {
		add(e.text, e.kind, 0)
	}
	tok, err := build(v)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestSPM(t *testing.T) {
	pieces := map[string]float32{"▁": -9, "a": -9, "b": -9, "c": -9, "ab": -3, "bc": -2, "▁a": -4, "aa": -5, "cbc": -6, "é": -9, "<s": -1, "<": -9, "s": -9, ">": -9, "<s>x": -1}
	tests := []struct {
		name   string
		prefix bool
		text   string
		want   string
	}{
		{"highest score first", false, "abc", "a|bc"}, // not ab, c
		{"joins of joins", false, "cbc", "cbc"},
		{"equal scores from the left", false, "aaa", "aa|a"},
		{"a space in front", true, "a", " a"},
		{"no space in front", false, "a", "a"},
		{"spaces", false, "a a  b", "a| a| | |b"},
		{"a space after a special token too", true, "a<s>a", " a|<s>| a"},
		{"bytes for what no piece has", false, "é日\xff", "é|\xe6|\x97|\xa5|\xff"},
		{"nothing", true, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := spelled(t, smallSPM(t, true, tt.prefix, pieces), tt.text, true); got != tt.want {
				t.Errorf("%q is cut %q, want %q", tt.text, got, tt.want)
			}
		})
	}
	// Text that spells a control token joins up to it, never into it.
	if got := spelled(t, smallSPM(t, true, false, pieces), "<s>", false); got != "<s|>" {
		t.Errorf("<s> as text: %q", got)
	}
	if got := spelled(t, smallSPM(t, false, false, map[string]float32{"a": -1}), "a日b", false); got != "a|<unk>|<unk>" {
		t.Errorf("without byte tokens: %q", got)
	}
	if tok := smallSPM(t, true, true, nil); !tok.AddBOS() || !tok.EOG(2) {
		t.Error("SentencePiece adds BOS unless the file says otherwise, and </s> ends")
	}
}

// slowSPM joins, over and over, the leftmost of the best-scored neighbours.
func slowSPM(scores map[string]float32, text string) []string {
	parts := strings.Split(text, "")
	for {
		at := -1
		for i := 0; i+1 < len(parts); i++ {
			s, ok := scores[parts[i]+parts[i+1]]
			if ok && (at < 0 || s > scores[parts[at]+parts[at+1]]) {
				at = i
			}
		}
		if at < 0 {
			return parts
		}
		parts = append(parts[:at], append([]string{parts[at] + parts[at+1]}, parts[at+2:]...)...)
	}
}

func TestSPMAgainstSlowTwin(t *testing.T) {
	for seed := range uint64(80) {
		r := rand.New(rand.NewPCG(seed, 21))
		scores := map[string]float32{"a": -50, "b": -50, "é": -50}
		letters := []string{"a", "b", "é"}
		word := func(n int) (w string) {
			for range n {
				w += letters[r.IntN(3)]
			}
			return w
		}
		for range r.IntN(40) {
			scores[word(2+r.IntN(5))] = float32(-r.IntN(8))
		}
		tok := smallSPM(t, true, false, scores)
		for range 40 {
			text := word(1 + r.IntN(60))
			if got, want := spelled(t, tok, text, false), strings.Join(slowSPM(scores, text), "|"); got != want {
				t.Fatalf("case %d: scores %v cut %q\n into %q\n want %q", seed, scores, text, got, want)
			}
		}
	}
}

func FuzzSPM(f *testing.F) {
	for _, s := range []string{"", " ", "a b", "<s>", "\xff\xe6\x97", "日本", "  aé  "} {
		f.Add(s, true)
	}
	pieces := map[string]float32{"▁": -9, "a": -9, "▁a": -3, "aa": -2, "▁▁": -1}
	toks := map[bool]*Tokenizer{true: smallSPM(f, true, true, pieces, extra{"<u>", defined}), false: smallSPM(f, true, false, pieces)}
	f.Fuzz(func(t *testing.T, text string, prefix bool) {
		if len(text) > 10000 {
			return
		}
		ids, err := toks[prefix].Encode(text, false)
		if err != nil {
			t.Fatal(err)
		}
		// ▁ is how a space is written: it can't come back as itself.
		if back, want := string(toks[prefix].Decode(ids)), strings.ReplaceAll(text, meta, " "); back != want {
			t.Fatalf("%q comes back as %q", text, back)
		}
	})
}
