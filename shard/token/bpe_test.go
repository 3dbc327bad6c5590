package token

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/testnet/realmodel"
)

// alphabet is the 256 tokens of single bytes, in the order of the bytes.
func alphabet() []string {
	out := make([]string, 256)
	for r, b := range byteAlphabet() {
		out[b] = string(r)
	}
	return out
}

// encodeBytes writes text in the byte alphabet, as files write tokens.
func encodeBytes(text string) string {
	letters := alphabet()
	var b strings.Builder
	for i := range len(text) {
		b.WriteString(letters[text[i]])
	}
	return b.String()
}

type extra struct {
	text string
	kind kind
}

// smallBPE is a vocabulary of the bytes, what merges make, and extra tokens. A merge
// is written "a b" in plain text.
func smallBPE(t testing.TB, preName string, merges []string, extras ...extra) *Tokenizer {
	t.Helper()
	v := vocabulary{model: "gpt2", pre: preName, tokens: alphabet(), bos: none, eos: none}
	have := map[string]bool{}
	for _, m := range merges {
		left, right, _ := strings.Cut(m, " ")
		v.merges = append(v.merges, encodeBytes(left)+" "+encodeBytes(right))
		if joined := encodeBytes(left + right); !have[joined] {
			have[joined] = true
			v.tokens = append(v.tokens, joined)
		}
	}
	for range v.tokens {
		v.kinds = append(v.kinds, int64(normal))
	}
	for _, e := range extras {
		v.tokens = append(v.tokens, e.text)
		v.kinds = append(v.kinds, int64(e.kind))
	}
	tok, err := build(v)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// spelled is text by Encode, its pieces parted by |.
func spelled(t testing.TB, tok *Tokenizer, text string, special bool) string {
	t.Helper()
	ids, err := tok.Encode(text, special)
	if err != nil {
		t.Fatalf("Encode(%q): %v", text, err)
	}
	return joined(tok, ids)
}

func joined(tok *Tokenizer, ids []int32) string {
	pieces := make([]string, len(ids))
	for i, id := range ids {
		pieces[i] = string(tok.Piece(id))
	}
	return strings.Join(pieces, "|")
}

func TestMergeOrder(t *testing.T) {
	tests := []struct {
		name   string
		merges []string
		text   string
		want   string
	}{
		{"best rank first, not leftmost", []string{"b c", "a b"}, "abc", "a|bc"},
		{"equal ranks from the left", []string{"a a"}, "aaaaa", "aa|aa|a"},
		{"equal ranks from the left, long", []string{"a a"}, strings.Repeat("a", 99), strings.Repeat("aa|", 49) + "a"},
		{"a merge makes room for a better one", []string{"ab c", "a b", "c d"}, "abcd", "abc|d"},
		{"a merge of merges", []string{"a b", "c d", "ab cd"}, "abcd", "abcd"},
		{"twice the same merge: the first rank counts", []string{"a b", "b c", "a b"}, "abc", "ab|c"},
		{"never across words", []string{"o b"}, "foo.bar oboe ob", "f|o|o|.|b|a|r| |ob|o|e| |ob"},
		{"bytes of a character", []string{"\xc3 \xa9"}, "é\xc3", "é|\xc3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := spelled(t, smallBPE(t, "gpt-2", tt.merges), tt.text, false); got != tt.want {
				t.Errorf("%q is cut %q, want %q", tt.text, got, tt.want)
			}
		})
	}
}

// slowMerge is BPE as it is told: while any neighbours are in the list, join the
// leftmost of the best-ranked pair.
func slowMerge(ranks map[[2]string]int, word string) []string {
	parts := strings.Split(word, "")
	for {
		best, at := -1, -1
		for i := 0; i+1 < len(parts); i++ {
			if r, ok := ranks[[2]string{parts[i], parts[i+1]}]; ok && (best < 0 || r < best) {
				best, at = r, i
			}
		}
		if at < 0 {
			return parts
		}
		parts = slices.Replace(parts, at, at+2, parts[at]+parts[at+1])
	}
}

func TestMergeAgainstSlowTwin(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 11))
		// Words over three letters; merges join earlier words, as training makes them.
		words := []string{"a", "b", "c"}
		ranks := map[[2]string]int{}
		var merges []string
		for range 1 + r.IntN(25) {
			l, m := words[r.IntN(len(words))], words[r.IntN(len(words))]
			if _, again := ranks[[2]string{l, m}]; again || len(l+m) > 12 {
				continue
			}
			ranks[[2]string{l, m}] = len(merges)
			merges = append(merges, l+" "+m)
			words = append(words, l+m)
		}
		tok := smallBPE(t, "gpt-2", merges)
		for range 40 {
			b := make([]byte, 1+r.IntN(200))
			for i := range b {
				b[i] = "abc"[r.IntN(3)]
			}
			want := strings.Join(slowMerge(ranks, string(b)), "|")
			if got := spelled(t, tok, string(b), false); got != want {
				t.Fatalf("case %d: merges %q cut %q\n into %q\n want %q", seed, merges, b, got, want)
			}
			// Both ways, whatever the length.
			few, many := word{bpe: tok.model.(*bpe)}, word{bpe: tok.model.(*bpe)}
			for _, c := range b {
				few.ids, many.ids = append(few.ids, int32(c)), append(many.ids, int32(c))
			}
			few.mergeFew()
			many.mergeMany()
			if !slices.Equal(few.ids, many.ids) {
				t.Fatalf("case %d: merges %q on %q: without a heap %v, with %v", seed, merges, b, few.ids, many.ids)
			}
		}
	}
}

// llama-bpe takes a word that is a token without looking at merges.
func TestWholeWords(t *testing.T) {
	extras := []extra{{encodeBytes(" hello"), normal}, {"world", control}}
	for pre, want := range map[string]string{"llama-bpe": " hello|w|o|r|l|d", "gpt-2": " |h|e|l|l|o|w|o|r|l|d"} {
		tok := smallBPE(t, pre, nil, extras...)
		ids1, err1 := tok.Encode(" hello", false)
		ids2, err2 := tok.Encode("world", false) // a control token is not for ordinary text
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if got := joined(tok, append(ids1, ids2...)); got != want {
			t.Errorf("%s: %q, want %q", pre, got, want)
		}
	}
}

func TestSpecialTokens(t *testing.T) {
	tok := smallBPE(t, "gpt-2", []string{"[ :"}, extra{"[:x:]", control}, extra{"[:x:][:y:]", control}, extra{":][", control},
		extra{"<u>", defined}, extra{"<unk>", unknown})
	tests := []struct {
		text    string
		special bool
		guards  []int
		want    string
	}{
		{"a[:x:]b", true, nil, "a|[:x:]|b"},
		{"a[:x:]b", false, nil, "a|[:|x|:|]|b"},  // text like any other, merges and all
		{"[:x:][:y:]", true, nil, "[:x:][:y:]"},  // the longest
		{"[:x:][:x:]", true, nil, "[:x:]|[:x:]"}, // the leftmost, so not ":]["
		{"<u><unk>", true, nil, "<u>|<unk>"},
		{"<u>", false, nil, "<u>"}, // user-defined: always
		{"<unk>", false, nil, "<|u|n|k|>"},
		{"", true, nil, ""},
		{"[:x:][:x:]<u>", true, []int{0}, "[:|x|:][|:|x|:|]|<u>"}, // ":][" begins after the guard
		{"[:x:][:x:]<u>", true, []int{4}, "[:|x|:|]|[:x:]|<u>"},   // and here it would reach across
		{"[:x:][:x:]<u>", true, []int{5}, "[:x:]|[:|x|:|]|<u>"},
		{"[:x:][:x:]<u>", true, []int{0, 3, 5, 10}, "[:|x|:|]|[:|x|:|]|<u>"}, // no control token; <u> is none
	}
	for _, tt := range tests {
		ids, err := tok.encode(tt.text, tt.special, tt.guards)
		if err != nil {
			t.Fatal(err)
		}
		if got := joined(tok, ids); got != tt.want {
			t.Errorf("%q, special %v, guards %v: %q, want %q", tt.text, tt.special, tt.guards, got, tt.want)
		}
	}
}

func TestEndOfGeneration(t *testing.T) {
	v := vocabulary{model: "gpt2", pre: "gpt-2", tokens: append(alphabet(), "<|im_end|>", "</s>", "<|eot_id|>", "x1", "x2"), bos: none, eos: 259,
		ends: []int32{260, none}}
	for range v.tokens {
		v.kinds = append(v.kinds, int64(normal))
	}
	v.kinds[256] = int64(control)
	tok, err := build(v)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[int32]bool{256: true, 257: false, 258: false, 259: true, 260: true, 0: false, -1: false, 999: false} {
		if got := tok.EOG(id); got != want {
			t.Errorf("EOG(%d %q) = %v, want %v", id, tok.Text(id), got, want)
		}
	}
	if !tok.Control(257) {
		t.Error("</s> is a control token by its name")
	}
}

func TestBuildErrors(t *testing.T) {
	base := func() vocabulary {
		return vocabulary{model: "gpt2", pre: "gpt-2", tokens: alphabet(), bos: none, eos: none}
	}
	tests := []struct {
		name   string
		change func(v *vocabulary)
		want   string
	}{
		{"unknown model", func(v *vocabulary) { v.model = "bert" }, `unknown tokenizer "bert"`},
		{"unknown pre", func(v *vocabulary) { v.pre = "quen2" }, `unknown pre-tokenizer "quen2"`},
		{"no pre", func(v *vocabulary) { v.pre = "" }, "no key tokenizer.ggml.pre"},
		{"no tokens", func(v *vocabulary) { v.tokens = nil }, "0 tokens"},
		{"types", func(v *vocabulary) { v.kinds = []int64{1} }, "1 token types for 256 tokens"},
		{"type", func(v *vocabulary) { v.kinds = make([]int64, 256); v.kinds[3] = 9 }, "has type 9"},
		{"merge of one word", func(v *vocabulary) { v.merges = []string{"ab"} }, `merge 0 is "ab"`},
		{"empty merge", func(v *vocabulary) { v.merges = []string{""} }, `merge 0 is ""`},
		{"half a merge", func(v *vocabulary) { v.merges = []string{"a "} }, `merge 0 is "a "`},
		{"merge to nothing", func(v *vocabulary) { v.merges = []string{"a b"} }, `lacks one of "a", "b", "ab"`},
		{"scores", func(v *vocabulary) { v.model = "llama"; v.scores = []float32{1} }, "1 scores for 256 tokens"},
	}
	for _, tt := range tests {
		v := base()
		tt.change(&v)
		if _, err := build(v); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestInputLimits(t *testing.T) {
	tok := smallBPE(t, "gpt-2", []string{"a a", "aa aa"})
	if _, err := tok.Encode(strings.Repeat("a", MaxInput+1), false); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("too long: %v", err)
	}
	ids, err := tok.Encode(strings.Repeat("a", 1<<17), false)
	if err != nil || len(ids) != 1<<15 {
		t.Errorf("one long word: %d ids, %v", len(ids), err)
	}
	v := vocabulary{model: "gpt2", pre: "gpt-2", tokens: alphabet()[:'z'+1], bos: none, eos: none}
	small, err := build(v)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := small.Encode("aé", false); err == nil || !strings.Contains(err.Error(), "0xc3") {
		t.Errorf("a byte that the vocabulary lacks: %v", err)
	}
}

// Every byte comes back, whatever it is.
func FuzzBPE(f *testing.F) {
	for _, s := range []string{"", "Hello world", "don't I'LL", "a\r\n\r\n b", "  x\t", "1234", "\xff\xc3(", "<|x|>", "日本語 👍🏽", "\xed\xa0\x80\xf4\x90\x80\x80"} {
		f.Add(s)
	}
	var toks []*Tokenizer
	for _, fam := range families() {
		toks = append(toks, smallBPE(f, strings.Fields(fam.names)[0], []string{"e l", "l o", "el lo", "\xe6 \x97", "1 2", "\r \n"},
			extra{"<|x|>", control}, extra{"<u>", defined}))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 10000 {
			return
		}
		for i, tok := range toks {
			for _, special := range []bool{false, true} {
				ids, err := tok.Encode(text, special)
				if err != nil {
					t.Fatal(err)
				}
				if back := string(tok.Decode(ids)); back != text {
					t.Fatalf("family %d: %q comes back as %q", i, text, back)
				}
				if special {
					continue
				}
				for _, id := range ids {
					if tok.Control(id) {
						t.Fatalf("family %d: %q became a control token", i, text)
					}
				}
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	for name, path := range map[string]func(testing.TB) string{"smollm2": realmodel.SmolLM2, "qwen2": realmodel.Qwen05} {
		b.Run(name, func(b *testing.B) {
			tok := openModel(b, path(b))
			text := strings.Repeat("The quick brown fox jumps over the lazy dog, 1234 times.\n\tfor i := range n { fmt.Println(\"é 你好\") }\n", 200)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := tok.Encode(text, true); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func ExampleTokenizer_Encode() {
	v := vocabulary{model: "gpt2", pre: "gpt-2", tokens: append(alphabet(), "lo"), merges: []string{"l o"}, bos: none, eos: none}
	tok, err := build(v)
	if err != nil {
		fmt.Println(err)
		return
	}
	ids, err := tok.Encode("hello", false)
	fmt.Println(ids, err)
	// Output: [104 101 108 256] <nil>
}

func TestAtLeast(t *testing.T) {
	tok := smallBPE(t, "gpt-2", []string{"a a", "aa aa", "aaaa aaaa"}, extra{"<|control|>", control})
	for _, text := range []string{"", "a", strings.Repeat("a", 800), strings.Repeat("<|control|>", 9), "abc", "日本"} {
		ids, err := tok.Encode(text, true)
		if least := tok.AtLeast(text); err != nil || least > len(ids) || text != "" && least == 0 {
			t.Errorf("%.20q has %d ids (%v), AtLeast says %d", text, len(ids), err, least)
		}
	}
	if got := tok.AtLeast(strings.Repeat("x", 1100)); got != 100 {
		t.Errorf("1100 bytes, 11 a token at most: %d", got)
	}
}
