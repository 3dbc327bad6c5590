package head

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard/sample"
)

// doubting is a played that has doubts before some of its steps, after which it says
// what is right.
type doubting struct {
	*played
	right   []int32
	steps   int
	doubts  map[int]int // at which step, counted from 0: from which row on
	settles []int       // from which row on, one after the other
}

func (d *doubting) doubt(from int) error {
	d.say = d.right
	return &DistrustError{From: from, Finding: Finding{Peers: []string{"liar"}, Sure: true, Text: "liar computes wrong rows"}}
}

func (d *doubting) Forward(ctx context.Context, ids []int32, past, want int) ([]float32, error) {
	n := d.steps
	d.steps++
	if from, ok := d.doubts[n]; ok {
		return nil, d.doubt(from)
	}
	return d.played.Forward(ctx, ids, past, want)
}

func (d *doubting) Settle(context.Context) error {
	if len(d.settles) == 0 {
		return nil
	}
	from := d.settles[0]
	d.settles = d.settles[1:]
	return d.doubt(from)
}

// TestReview: what was said before a doubt is chosen again from the right rows. The same
// goes on; another ends in an error that names the peer, or is made anew where nothing of it was used.
func TestReview(t *testing.T) {
	tok := vocabulary(t)
	const right = "abcdefghij"
	long, wrong := strings.Repeat("abcdefghij", 5), "abXdefghij"
	for name, c := range map[string]struct {
		said, right string // said: before the first doubt
		doubts      map[int]int
		settles     []int
		whole, eog  bool
		temperature float32
		text        string // what came out, whole or before the error
		tokens      int    // right ones, of the error; -1: none
		calls       int    // steps at least, as each row is computed again
	}{
		"before the first token":      {said: right, doubts: map[int]int{0: 0}, text: right, tokens: -1},
		"nothing was wrong":           {said: right, doubts: map[int]int{5: 0}, text: right, tokens: -1, calls: 12},
		"more than a piece":           {said: long, right: long, doubts: map[int]int{40: 3}, text: long, tokens: -1},
		"twice":                       {said: right, doubts: map[int]int{5: 6, 8: 2}, text: right, tokens: -1},
		"within a review":             {said: long, right: long, doubts: map[int]int{40: 30, 42: 2}, text: long, tokens: -1},
		"with every random number":    {said: long, right: long, doubts: map[int]int{30: 0}, temperature: 1, text: long, tokens: -1},
		"at the end":                  {said: right, settles: []int{0}, text: right, tokens: -1},
		"at the end of turn":          {said: right, settles: []int{0}, eog: true, text: right, tokens: -1},
		"another token":               {said: wrong, doubts: map[int]int{5: 0}, text: "abXde", tokens: 2},
		"another at the end":          {said: wrong, settles: []int{0}, text: wrong, tokens: 2},
		"an end of turn that is none": {said: "abc", settles: []int{0}, eog: true, text: "abc", tokens: 3},
		"anew":                        {said: wrong, doubts: map[int]int{5: 0}, whole: true, text: right, tokens: -1},
		"anew at the end":             {said: wrong, settles: []int{0}, whole: true, text: right, tokens: -1},
	} {
		t.Run(name, func(t *testing.T) {
			if c.right == "" {
				c.right = right
			}
			say, truth := bytesOf(t, tok, c.said), bytesOf(t, tok, c.right)
			most := len(c.right)
			if c.eog {
				say, truth, most = append(say, eog(tok)), append(truth, eog(tok)), most+5
			}
			p := &doubting{played: &played{prompt: 2, say: say, vocab: tok.Size()}, right: truth, doubts: c.doubts, settles: c.settles}
			h, err := New(Config{Tokenizer: tok, Output: p, Hidden: 1, Vocab: tok.Size(), Context: 100, Backend: func() Backend { return p }})
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			res, err := h.Generate(t.Context(), Request{IDs: []int32{1, 2}, MaxTokens: most, Whole: c.whole, Sampling: sample.Params{Temperature: c.temperature, Seed: 5}}, func(d Delta) error {
				if d.Again {
					out.Reset()
				}
				out.WriteString(d.Text)
				return nil
			})
			var wrong *WrongRowsError
			switch {
			case c.tokens < 0 && (err != nil || res.Text != c.text || len(res.IDs) != len(c.text)):
				t.Errorf("%q, %d tokens, %v; want %q", res.Text, len(res.IDs), err, c.text)
			case c.tokens >= 0 && (!errors.As(err, &wrong) || wrong.Tokens != c.tokens || res.FinishReason != FinishError):
				t.Errorf("%v (ended by %q), want an error after %d tokens", err, res.FinishReason, c.tokens)
			case c.tokens >= 0 && !strings.Contains(err.Error(), "liar computes wrong rows"):
				t.Errorf("%v does not name the peer", err)
			}
			if out.String() != c.text {
				t.Errorf("out came %q, want %q", out.String(), c.text)
			}
			if p.steps < c.calls {
				t.Errorf("%d steps: rows that were doubted were not computed again", p.steps)
			}
		})
	}
}

// TestReviewOfLogits: logits that were given out can't be taken back.
func TestReviewOfLogits(t *testing.T) {
	tok := vocabulary(t)
	say := bytesOf(t, tok, "abcdef")
	p := &doubting{played: &played{prompt: 2, say: say, vocab: tok.Size()}, right: say, doubts: map[int]int{3: 0}}
	h, err := New(Config{Tokenizer: tok, Output: p, Hidden: 1, Vocab: tok.Size(), Context: 100, Backend: func() Backend { return p }})
	if err != nil {
		t.Fatal(err)
	}
	res, err := h.Generate(t.Context(), Request{IDs: []int32{1, 2}, MaxTokens: 6, Logits: func(int, []float32) error { return nil }}, nil)
	var wrong *WrongRowsError
	if !errors.As(err, &wrong) || res.FinishReason != FinishError {
		t.Errorf("%v, ended by %q", err, res.FinishReason)
	}
}
