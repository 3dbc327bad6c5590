package head

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/shard"
	"github.com/meshnet/meshnet/shard/chat"
	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/sample"
	"github.com/meshnet/meshnet/shard/tiny"
	"github.com/meshnet/meshnet/shard/token"
)

// played is a Backend and an Output that make the head say given tokens: the
// hidden state of a position is the position itself.
type played struct {
	prompt int
	say    []int32
	vocab  int
	fail   error // after the tokens, instead of the end
	note   string

	maxLen int
	calls  []string
	closed int
	notify Notify
}

func (p *played) Begin(_ context.Context, _ wire.SessionID, maxLen int, n Notify) error {
	p.maxLen, p.notify = maxLen, n
	return nil
}

func (p *played) Forward(ctx context.Context, ids []int32, past, want int) ([]float32, error) {
	p.calls = append(p.calls, fmt.Sprintf("%d+%d want %d", past, len(ids)-past, want))
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if p.note != "" && past > 0 {
		p.notify(Note{Kind: NoteWaiting, Text: p.note})
		p.note = ""
	}
	if p.fail != nil && len(ids)-p.prompt >= len(p.say) {
		return nil, p.fail
	}
	x := make([]float32, want)
	for i := range x {
		x[i] = float32(len(ids) - want + i)
	}
	return x, nil
}

func (p *played) Logits(x []float32, rows int, dst []float32) error {
	clear(dst)
	for i := range rows {
		if at := int(x[i]) - p.prompt + 1; at >= 0 && at < len(p.say) {
			dst[i*p.vocab+int(p.say[at])] = 50
		}
	}
	return nil
}

func (p *played) Settle(context.Context) error { return nil }
func (p *played) Stats() BackendStats          { return BackendStats{Hits: 7} }
func (p *played) Close()                       { p.closed++ }

// vocabulary is the tiny model's: every byte is a token.
func vocabulary(t *testing.T) *token.Tokenizer {
	t.Helper()
	var b bytes.Buffer
	if err := tiny.Write(&b, 1); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	tok, err := token.New(f)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func eog(tok *token.Tokenizer) int32 {
	for id := range int32(tok.Size()) {
		if tok.EOG(id) {
			return id
		}
	}
	panic("the vocabulary has no end of turn")
}

// bytesOf are the tokens of single bytes.
func bytesOf(t *testing.T, tok *token.Tokenizer, s string) (ids []int32) {
	t.Helper()
	for i := range len(s) {
		found := false
		for id := range int32(tok.Size()) {
			if string(tok.Piece(id)) == s[i:i+1] && !tok.Control(id) {
				ids, found = append(ids, id), true
				break
			}
		}
		if !found {
			t.Fatalf("no token for byte %#x", s[i])
		}
	}
	return ids
}

// TestAnswers: what is said, byte by byte, and what comes out and why it ends.
func TestAnswers(t *testing.T) {
	tok := vocabulary(t)
	end := string(rune(0))
	for name, c := range map[string]struct {
		say    string // end: the model's end of turn
		stop   []string
		max    int
		ignore bool
		text   string
		ids    int
		finish string
		pieces []string
	}{
		"the model ends":                      {say: "Hi!" + end, text: "Hi!", ids: 3, finish: FinishStop, pieces: []string{"H", "i", "!"}},
		"at once":                             {say: end, text: "", ids: 0, finish: FinishStop},
		"max tokens":                          {say: "Hello", max: 3, text: "Hel", ids: 3, finish: FinishLength, pieces: []string{"H", "e", "l"}},
		"a character is never cut":            {say: "né€" + end, text: "né€", ids: 6, finish: FinishStop, pieces: []string{"n", "é", "€"}},
		"a character that stays incomplete":   {say: "a\xe2\x82" + end, text: "a\uFFFD\uFFFD", ids: 3, finish: FinishStop, pieces: []string{"a", "\uFFFD\uFFFD"}},
		"incomplete at max tokens":            {say: "a\xe2\x82\xac", max: 2, text: "a\uFFFD", ids: 2, finish: FinishLength, pieces: []string{"a", "\uFFFD"}},
		"a stop string over tokens":           {say: "one two three" + end, stop: []string{"tw"}, text: "one ", ids: 6, finish: FinishStop},
		"the beginning of one comes out late": {say: "a tx" + end, stop: []string{"tw"}, text: "a tx", ids: 4, finish: FinishStop, pieces: []string{"a", " ", "tx"}},
		"the beginning of one at the end":     {say: "at" + end, stop: []string{"tw"}, text: "at", ids: 2, finish: FinishStop, pieces: []string{"a", "t"}},
		"the first of two":                    {say: "abcd" + end, stop: []string{"cd", "bc"}, text: "a", ids: 3, finish: FinishStop},
		"stop string with the last token":     {say: "ab", stop: []string{"b"}, max: 2, text: "a", ids: 2, finish: FinishStop, pieces: []string{"a"}},
		"past the end of turn":                {say: "a" + end + "b", ignore: true, max: 3, text: "ab", ids: 3, finish: FinishLength},
	} {
		t.Run(name, func(t *testing.T) {
			var say []int32
			for i := range len(c.say) {
				if c.say[i] == 0 {
					say = append(say, eog(tok))
				} else {
					say = append(say, bytesOf(t, tok, c.say[i:i+1])...)
				}
			}
			p := &played{prompt: 2, say: say, vocab: tok.Size()}
			h := newHead(t, tok, p, 100)
			var pieces []string
			ids := 0
			res, err := h.Generate(t.Context(), Request{IDs: []int32{1, 2}, MaxTokens: c.max, Stop: c.stop, IgnoreEOG: c.ignore}, func(d Delta) error {
				pieces = append(pieces, d.Text)
				ids += len(d.IDs)
				return nil
			})
			if err != nil || res.Text != c.text || res.FinishReason != c.finish || len(res.IDs) != c.ids {
				t.Errorf("%q, %d tokens, ended by %q, %v; want %q, %d, %q", res.Text, len(res.IDs), res.FinishReason, err, c.text, c.ids, c.finish)
			}
			if !slices.Equal(res.IDs, say[:c.ids]) {
				t.Errorf("ids %v, said %v", res.IDs, say)
			}
			if got := strings.Join(pieces, ""); got != c.text || c.pieces != nil && !slices.Equal(pieces, c.pieces) {
				t.Errorf("pieces %q, want %q", pieces, c.pieces)
			}
			if p.closed != 1 || res.Stats.Hits != 7 {
				t.Errorf("closed %d times, stats %+v", p.closed, res.Stats)
			}
		})
	}
}

func newHead(t *testing.T, tok *token.Tokenizer, p *played, context int) *Head {
	t.Helper()
	h, err := New(Config{Tokenizer: tok, Output: p, Hidden: 1, Vocab: tok.Size(), Context: context, Backend: func() Backend { return p }})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestSteps: each token is sent once, and the session is begun for what may come.
func TestSteps(t *testing.T) {
	tok := vocabulary(t)
	p := &played{prompt: 3, say: bytesOf(t, tok, "abc"), vocab: tok.Size()}
	if _, err := newHead(t, tok, p, 100).Generate(t.Context(), Request{IDs: []int32{1, 2, 3}, MaxTokens: 3}, nil); err != nil {
		t.Fatal(err)
	}
	if want := []string{"0+3 want 1", "3+1 want 1", "4+1 want 1"}; !slices.Equal(p.calls, want) || p.maxLen != 6 {
		t.Errorf("%q for %d tokens, want %q for 6", p.calls, p.maxLen, want)
	}
}

// TestFails: an answer that was cut short says so, with what came before, and
// never that it was finished.
func TestFails(t *testing.T) {
	tok := vocabulary(t)
	lost := errors.New("nobody offers layers 3 to 5")
	leave := errors.New("client gone")
	for name, c := range map[string]struct {
		fail   error
		emit   func(cancel func(), n int) error
		want   error
		finish string
	}{
		"the mesh":   {fail: lost, want: lost, finish: FinishError},
		"the client": {emit: func(_ func(), n int) error { return map[bool]error{true: leave}[n == 2] }, want: leave, finish: FinishError},
		"cancelled": {emit: func(cancel func(), n int) error {
			if n == 2 {
				cancel()
			}
			return nil
		}, want: context.Canceled, finish: FinishCancel},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			say := bytesOf(t, tok, "ab")
			if c.fail == nil {
				say = bytesOf(t, tok, "abcdef")
			}
			p := &played{prompt: 1, say: say, vocab: tok.Size(), fail: c.fail}
			n := 0
			res, err := newHead(t, tok, p, 100).Generate(ctx, Request{IDs: []int32{1}, MaxTokens: 50}, func(d Delta) error {
				n++
				if c.emit != nil {
					return c.emit(cancel, n)
				}
				return nil
			})
			if !errors.Is(err, c.want) || res.FinishReason != c.finish || res.Text != "ab" || p.closed != 1 {
				t.Errorf("%v, %q, %q, closed %d times; want %v, %q after %q", err, res.FinishReason, res.Text, p.closed, c.want, c.finish, "ab")
			}
		})
	}
}

// TestNotes: words for whoever waits come between the pieces; a client that is
// gone is noticed there too.
func TestNotes(t *testing.T) {
	tok := vocabulary(t)
	p := &played{prompt: 1, say: bytesOf(t, tok, "abc"), vocab: tok.Size(), note: "waiting"}
	var got []string
	h := newHead(t, tok, p, 100)
	_, err := h.Generate(t.Context(), Request{IDs: []int32{1}, MaxTokens: 3}, func(d Delta) error {
		if d.Note != nil {
			got = append(got, "("+d.Note.Text+")")
		} else {
			got = append(got, d.Text)
		}
		return nil
	})
	if want := []string{"a", "(waiting)", "b", "c"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	gone := errors.New("gone")
	p.note, p.calls = "waiting", nil
	_, err = h.Generate(t.Context(), Request{IDs: []int32{1}, MaxTokens: 3}, func(d Delta) error {
		if d.Note != nil {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) || len(p.calls) != 2 {
		t.Errorf("%v after %d steps, want %v after 2", err, len(p.calls), gone)
	}
}

func TestLimits(t *testing.T) {
	tok := vocabulary(t)
	for name, c := range map[string]struct {
		prompt, max, context int
		room                 int // tokens begun for, less the prompt
		long                 bool
	}{
		"default":         {prompt: 10, context: 8192, room: DefaultMaxTokens},
		"less fits":       {prompt: 10, context: 50, room: 40},
		"asked for less":  {prompt: 10, max: 5, context: 50, room: 5},
		"asked for more":  {prompt: 10, max: 500, context: 50, room: 40},
		"one fits":        {prompt: 49, max: 5, context: 50, room: 1},
		"none fits":       {prompt: 50, max: 5, context: 50, long: true},
		"far too long":    {prompt: 9000, max: 5, context: 50, long: true},
		"session's bound": {prompt: MaxSessionLen - 3, context: 100000, room: 3},
	} {
		t.Run(name, func(t *testing.T) {
			p := &played{prompt: c.prompt, say: []int32{eog(tok)}, vocab: tok.Size()}
			_, err := newHead(t, tok, p, c.context).Generate(t.Context(), Request{IDs: make([]int32, c.prompt), MaxTokens: c.max}, nil)
			var long *TooLongError
			if errors.As(err, &long) != c.long || errors.Is(err, ErrBadRequest) != c.long || !c.long && (err != nil || p.maxLen != c.prompt+c.room) {
				t.Errorf("%v, begun for %d, want room for %d", err, p.maxLen, c.room)
			}
		})
	}
}

func TestBadRequests(t *testing.T) {
	tok := vocabulary(t)
	h := newHead(t, tok, &played{vocab: tok.Size()}, 100)
	for name, req := range map[string]Request{
		"no prompt":        {},
		"unknown id":       {IDs: []int32{1, int32(tok.Size())}},
		"negative id":      {IDs: []int32{-1}},
		"negative max":     {IDs: []int32{1}, MaxTokens: -1},
		"bad sampling":     {IDs: []int32{1}, Sampling: sample.Params{Temperature: -1}},
		"stateless":        {IDs: []int32{1}, Stateless: true},
		"no conversations": {Messages: []chat.Message{{Role: "user", Content: "Hi"}}},
		"top logprobs":     {IDs: []int32{1}, TopLogprobs: 21},
		"many stops":       {IDs: []int32{1}, Stop: make([]string, 17)},
	} {
		res, err := h.Generate(t.Context(), req, nil)
		if !errors.Is(err, ErrBadRequest) || res.FinishReason != FinishError {
			t.Errorf("%s: %v, %q", name, err, res.FinishReason)
		}
	}
}

// TestLogprobs: one entry a token, in step with the pieces.
func TestLogprobs(t *testing.T) {
	tok := vocabulary(t)
	say := bytesOf(t, tok, "né")
	p := &played{prompt: 1, say: append(say, eog(tok)), vocab: tok.Size()}
	var got []TokenLogprob
	_, err := newHead(t, tok, p, 100).Generate(t.Context(), Request{IDs: []int32{1}, Logprobs: true, TopLogprobs: 2}, func(d Delta) error {
		if len(d.Tokens) != len(d.IDs) {
			t.Errorf("%d tokens, %d ids", len(d.Tokens), len(d.IDs))
		}
		got = append(got, d.Tokens...)
		return nil
	})
	if err != nil || len(got) != 3 {
		t.Fatalf("%d tokens, %v", len(got), err)
	}
	for i, g := range got {
		// One logit is 50, all others 0: its probability is 1 as far as float32 sees.
		if g.ID != say[i] || string(g.Bytes) != "né"[i:i+1] || g.Logprob != 0 || len(g.Top) != 2 || g.Top[0].ID != g.ID || g.Top[1].Logprob > -49 {
			t.Errorf("token %d: %+v", i, g)
		}
	}
}

// engine is a shard.Engine as package hop wants it.
type engine struct{ *shard.Engine }

func (e engine) CacheTypes() wire.CacheTypes { return wire.AllCacheTypes }

func (e engine) NewState(start, end int, t wire.CacheType) (cache.State, error) {
	return e.Engine.NewState(start, end, shard.CacheType(t))
}

func (e engine) StateBytes(start, end int, t wire.CacheType, maxLen int) int64 {
	return e.Engine.StateBytes(start, end, shard.CacheType(t), maxLen)
}

func (e engine) Forward(ctx context.Context, batch []hop.Work) error {
	var items []shard.Item
	for _, w := range batch {
		items = append(items, shard.Item{State: w.State.(*shard.State), Rows: w.Rows, X: w.X})
	}
	return e.Engine.Forward(ctx, items)
}

// TestRealModel: a real model gives the same answer cached, stateless, and with
// the logits of every position asked for; and those logits are the ones that the
// tokens were taken from.
func TestRealModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tiny.WriteFile(path, 1); err != nil {
		t.Fatal(err)
	}
	m, err := shard.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	e, err := m.LoadRange(0, m.Info().Layers, shard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	w, err := m.LoadHead(shard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	local := func(stateless bool) NewBackend {
		return NewLocal(engine{e}, w, m.Info().Layers, m.Info().Hidden, wire.DefaultCacheType, stateless).Backend
	}
	h, err := ForModel(m, w, nil, local(false), local(true))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Probe(t.Context()); err != nil {
		t.Errorf("probe: %v", err)
	}
	req := Request{Text: strings.Repeat("The mesh holds. ", 12), MaxTokens: 20}
	plain, err := h.Generate(t.Context(), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	var best []int32
	stateless, all := req, req
	stateless.Stateless = true
	all.Logits = func(position int, logits []float32) error {
		if position != len(best) {
			t.Errorf("position %d, want %d", position, len(best))
		}
		top := 0
		for i, v := range logits {
			if v > logits[top] {
				top = i
			}
		}
		best = append(best, int32(top))
		return nil
	}
	for name, r := range map[string]Request{"stateless": stateless, "all logits": all} {
		got, err := h.Generate(t.Context(), r, nil)
		if err != nil || got.Text != plain.Text || !slices.Equal(got.IDs, plain.IDs) {
			t.Errorf("%s: %q, %v; want %q", name, got.Text, err, plain.Text)
		}
	}
	if n := len(plain.PromptIDs); len(best) != n+19 || !slices.Equal(best[n-1:], plain.IDs) {
		t.Errorf("best tokens %v, generated %v", best, plain.IDs)
	}
	if plain.FirstToken <= 0 || plain.Prefill <= 0 || plain.Decode <= 0 || plain.DecodeRate() <= 0 || plain.PrefillRate() <= 0 {
		t.Errorf("not measured: %+v", plain)
	}
}

// TestReport: the JSON of --json, field for field.
func TestReport(t *testing.T) {
	r := Result{PromptIDs: []int32{1}, Text: "x", FinishReason: FinishStop, Stats: BackendStats{
		Route: []HopStat{{Peer: "p", Start: 0, End: 4, MsPerToken: 1.5}}, BytesPerToken: 100, Hits: 3, Misses: 1,
		Recoveries: []Recovery{{Cause: "cache miss", Hop: 1, Ms: 2, RowsReplayed: 9}},
	}}
	for mesh, want := range map[bool]string{
		false: `{"model":"m","prompt_ids":[1],"ids":[],"text":"x","finish_reason":"stop","first_token_ms":0,"prefill_tokens_per_s":0,"decode_tokens_per_s":0}`,
		true: `{"model":"m","prompt_ids":[1],"ids":[],"text":"x","finish_reason":"stop","first_token_ms":0,"prefill_tokens_per_s":0,"decode_tokens_per_s":0,` +
			`"session":"00000000000000000000000000000000","route":[{"peer":"p","start":0,"end":4,"ms_per_token":1.5}],"bytes_per_token":100,` +
			`"cache":{"hits":3,"misses":1},"recoveries":[{"cause":"cache miss","hop":1,"ms":2,"rows_replayed":9}]}`,
	} {
		if diff := cmp.Diff(want, marshal(t, NewReport("m", &r, mesh))); diff != "" {
			t.Errorf("mesh %v (-want +got):\n%s", mesh, diff)
		}
	}
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
