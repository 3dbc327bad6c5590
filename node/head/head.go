// Package head is the peer that owns a chat: it turns a conversation into
// tokens, sends them through a Backend (all layers here, or a mesh of peers),
// turns what comes back into the next token, and text.
//
// Invariant: the same model file, prompt and sampling give the same text,
// whatever the Backend and whatever happens to it on the way; an answer that was
// cut short by a failure never ends with FinishStop.
// Start reading at Generate, which is the whole path.
package head

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/shard"
	"github.com/meshnet/meshnet/shard/chat"
	"github.com/meshnet/meshnet/shard/sample"
	"github.com/meshnet/meshnet/shard/token"
)

// MaxSessionLen bounds a session where the model's context is longer.
const MaxSessionLen = 8192

// Output turns hidden states of the last layer into logits: rows x hidden in x,
// rows x vocab in dst. x is not changed. *shard.Head is one.
type Output interface {
	Logits(x []float32, rows int, dst []float32) error
}

// Config is what a Head is made of.
type Config struct {
	Tokenizer *token.Tokenizer
	Output    Output
	Hidden    int
	Vocab     int // logits a row
	Context   int // tokens of the model's context

	Template chat.Template
	Runner   chat.Runner // renders the template; nil: conversations are refused

	Backend   NewBackend
	Stateless NewBackend // of requests that ask for it; nil: refused

	Now func() time.Time // nil: time.Now
}

// Head answers requests. Safe for several goroutines.
type Head struct{ cfg Config }

// New checks cfg.
func New(cfg Config) (*Head, error) {
	if cfg.Tokenizer == nil || cfg.Output == nil || cfg.Backend == nil || cfg.Hidden <= 0 || cfg.Vocab <= 0 || cfg.Context <= 0 {
		return nil, errors.New("head: tokenizer, output, backend, hidden, vocab and context are all needed")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Head{cfg}, nil
}

// MaxLen is the number of tokens that a session may have, prompt and answer.
func (h *Head) MaxLen() int { return min(h.cfg.Context, MaxSessionLen) }

// Piece is the bytes of a token.
func (h *Head) Piece(id int32) []byte { return h.cfg.Tokenizer.Piece(id) }

// Generate answers req. emit gets the pieces of the answer in order, from the
// calling goroutine; an error from it ends the answer. The Result tells what was
// done up to the error, if there is one; the answer it describes is then not
// finished. Errors that are the asker's fault wrap ErrBadRequest.
func (h *Head) Generate(ctx context.Context, req Request, emit func(Delta) error) (Result, error) {
	res := Result{Session: req.Session, FinishReason: FinishError}
	if res.Session == (wire.SessionID{}) {
		rand.Read(res.Session[:])
	}
	start := h.cfg.Now()

	// Words become tokens.
	prompt, err := h.Prompt(ctx, req)
	if err != nil {
		return res, err
	}
	res.PromptIDs = prompt
	maxTokens, err := h.room(len(prompt), req.MaxTokens)
	if err != nil {
		return res, err
	}
	a, err := h.newAnswer(req, prompt, maxTokens, emit)
	if err != nil {
		return res, err
	}

	// A session begins: its layers are somewhere.
	backend, err := h.backend(req)
	if err != nil {
		return res, err
	}
	defer backend.Close()
	err = backend.Begin(ctx, res.Session, len(prompt)+maxTokens, a.note)

	// Tokens go through the layers, what comes out becomes the next token.
	finish := ""
	for past, anew := 0, 0; err == nil; {
		if finish != "" {
			if err = backend.Settle(ctx); err == nil {
				break
			}
		}
		began := h.cfg.Now()
		var logits []float32
		if finish == "" {
			logits, err = h.step(ctx, backend, a, past)
		}
		var doubt *DistrustError
		if errors.As(err, &doubt) {
			err = h.review(ctx, backend, a, past, doubt)
			var wrong *WrongRowsError
			if req.Whole && anew < maxAnew && errors.As(err, &wrong) {
				anew++
				if a, err = h.newAnswer(req, prompt, maxTokens, emit); err == nil {
					err = a.emit(Delta{Again: true})
				}
				past, finish, res.IDs = 0, "", nil
			}
			continue
		}
		if err != nil {
			break
		}
		finish, err = a.next(logits)
		now := h.cfg.Now()
		if past == 0 {
			res.Prefill, res.FirstToken = now.Sub(began), now.Sub(start)
		} else if len(a.generated()) > len(res.IDs) {
			res.Decode = now.Sub(start) - res.FirstToken
		}
		past = len(prompt) + len(res.IDs)
		res.IDs = a.generated()
	}
	if err == nil {
		err = a.flush()
	}

	res.Text, res.Stats = a.text.String(), backend.Stats()
	switch {
	case err == nil:
		res.FinishReason = finish
	case ctx.Err() != nil:
		res.FinishReason = FinishCancel
		err = fmt.Errorf("answer cut off after %d tokens: %w", len(res.IDs), context.Cause(ctx))
	}
	return res, err
}

// An answer is made anew, or its choices again, at most so often because peers computed
// wrong rows.
const maxAnew = 4

// review computes the rows from d.From on again and chooses from them again: what was
// chosen before must be what is chosen now. past is how many tokens were applied.
// Disturbed once more it begins once more.
func (h *Head) review(ctx context.Context, b Backend, a *answer, past int, d *DistrustError) error {
	if past == 0 {
		return nil // nothing was chosen yet
	}
	if a.req.Logits != nil {
		return &WrongRowsError{Finding: d.Finding} // logits that are out can't be taken back
	}
	for range maxAnew {
		err := h.choose(ctx, b, a, past, d)
		var more *DistrustError
		if !errors.As(err, &more) {
			return err
		}
		more.From = min(more.From, d.From)
		d = more
	}
	return &WrongRowsError{Finding: d.Finding}
}

// choose makes the choices of an answer again, from the applied tokens' rows.
func (h *Head) choose(ctx context.Context, b Backend, a *answer, applied int, d *DistrustError) error {
	s, err := sample.New(a.req.Sampling, h.cfg.Vocab)
	if err != nil {
		return err
	}
	for _, id := range a.ids[:a.prompt] {
		s.Accept(id)
	}
	logits := make([]float32, logitRows*h.cfg.Vocab)
	for at := a.prompt - 1; at < applied; { // the row from which ids[at+1] was chosen
		rows, past := min(logitRows, applied-at), at
		if at == a.prompt-1 {
			past = min(d.From, at) // what is believed comes out of the caches
		}
		hidden, err := b.Forward(ctx, a.ids[:at+rows], past, rows)
		if err != nil {
			return err
		}
		if err := h.cfg.Output.Logits(hidden, rows, logits[:rows*h.cfg.Vocab]); err != nil {
			return err
		}
		for i := range rows {
			id, _, err := s.Next(logits[i*h.cfg.Vocab:][:h.cfg.Vocab])
			if err != nil {
				return err
			}
			next := at + i + 1
			same := next < len(a.ids) && id == a.ids[next] || next == len(a.ids) && a.tok.EOG(id) && !a.req.IgnoreEOG
			if !same {
				return &WrongRowsError{Finding: d.Finding, Tokens: next - a.prompt}
			}
			s.Accept(id)
		}
		at += rows
	}
	return nil
}

// room is how many tokens the answer may have.
func (h *Head) room(prompt, asked int) (int, error) {
	free := h.MaxLen() - prompt
	if free < 1 {
		return 0, &TooLongError{Prompt: prompt, Context: h.MaxLen()}
	}
	if asked < 0 {
		return 0, badRequest("max tokens is %d: at least 1, or 0 for the default", asked)
	}
	if asked == 0 {
		asked = DefaultMaxTokens
	}
	return min(asked, free), nil
}

func (h *Head) backend(req Request) (Backend, error) {
	if !req.Stateless {
		return h.cfg.Backend(), nil
	}
	if h.cfg.Stateless == nil {
		return nil, badRequest("this head does not compute statelessly")
	}
	return h.cfg.Stateless(), nil
}

// logitRows is how many rows become logits at once when all are asked for: with
// 150,000 tokens of vocabulary a row is 600 kB.
const logitRows = 16

// step applies the tokens after past and returns the logits of the last.
func (h *Head) step(ctx context.Context, b Backend, a *answer, past int) ([]float32, error) {
	if a.req.Logits == nil {
		hidden, err := b.Forward(ctx, a.ids, past, 1)
		if err != nil {
			return nil, err
		}
		return a.logits, h.cfg.Output.Logits(hidden, 1, a.logits)
	}
	buf := make([]float32, min(logitRows, len(a.ids)-past)*h.cfg.Vocab)
	for past < len(a.ids) {
		rows := min(logitRows, len(a.ids)-past)
		hidden, err := b.Forward(ctx, a.ids[:past+rows], past, rows)
		if err != nil {
			return nil, err
		}
		if err := h.cfg.Output.Logits(hidden, rows, buf[:rows*h.cfg.Vocab]); err != nil {
			return nil, err
		}
		for i := range rows {
			row := buf[i*h.cfg.Vocab:][:h.cfg.Vocab]
			if err := a.req.Logits(past+i, row); err != nil {
				return nil, err
			}
			copy(a.logits, row)
		}
		past += rows
	}
	return a.logits, nil
}

// Probe runs one real forward of a single token through a whole route.
func (h *Head) Probe(ctx context.Context) error {
	var session wire.SessionID
	rand.Read(session[:])
	b := h.cfg.Backend()
	defer b.Close()
	if err := b.Begin(ctx, session, 1, nil); err != nil {
		return err
	}
	hidden, err := b.Forward(ctx, []int32{0}, 0, 1)
	if err != nil {
		return err
	}
	return h.cfg.Output.Logits(hidden, 1, make([]float32, h.cfg.Vocab))
}

// Prompt turns a request's words into token ids.
func (h *Head) Prompt(ctx context.Context, req Request) ([]int32, error) {
	t := h.cfg.Tokenizer
	switch {
	case len(req.IDs) > 0:
		for i, id := range req.IDs {
			if id < 0 || int(id) >= h.cfg.Vocab {
				return nil, badRequest("token id %d at position %d: this model has ids from 0 to %d", id, i, h.cfg.Vocab-1)
			}
		}
		return req.IDs, nil
	case len(req.Messages) > 0:
		return h.conversation(ctx, req.Messages)
	case req.Text == "":
		return nil, badRequest("the prompt is empty")
	case t.AtLeast(req.Text) > h.MaxLen():
		return nil, &TooLongError{Prompt: t.AtLeast(req.Text), Context: h.MaxLen()}
	}
	ids, err := t.Encode(req.Text, true)
	if err != nil {
		return nil, badRequest("the prompt can't be encoded: %v", err)
	}
	if bos, ok := t.BOS(); ok && t.AddBOS() && ids[0] != bos { // a text may bring its own
		ids = append([]int32{bos}, ids...)
	}
	return ids, nil
}

func (h *Head) conversation(ctx context.Context, msgs []chat.Message) ([]int32, error) {
	if h.cfg.Runner == nil {
		return nil, badRequest("this head takes no conversations, only text and ids")
	}
	least := 0
	for _, m := range msgs {
		least += h.cfg.Tokenizer.AtLeast(m.Content)
	}
	if least > h.MaxLen() {
		return nil, &TooLongError{Prompt: least, Context: h.MaxLen()}
	}
	p, err := chat.Encode(ctx, h.cfg.Runner, h.cfg.Tokenizer, h.cfg.Template, msgs, true)
	switch {
	case errors.Is(err, chat.ErrMessages):
		return nil, badRequest("%v", err)
	case err != nil:
		return nil, fmt.Errorf("write the conversation by the model's template: %w", err)
	}
	return p.IDs, nil
}

// ForModel makes a Head of a model file: its vocabulary, template and dimensions.
// stateless may be nil.
func ForModel(m *shard.Model, out Output, run chat.Runner, backend, stateless NewBackend) (*Head, error) {
	t, err := token.New(m.File())
	if err != nil {
		return nil, fmt.Errorf("read the vocabulary: %w", err)
	}
	info := m.Info()
	return New(Config{
		Tokenizer: t, Output: out, Hidden: info.Hidden, Vocab: info.Vocab, Context: info.Context,
		Template: chat.FromModel(m.File(), t), Runner: run, Backend: backend, Stateless: stateless,
	})
}

// Note is what a person should know about the model's template, or empty.
func (h *Head) Note() string { return h.cfg.Template.Note }
