package head

import (
	"slices"
	"strings"

	"github.com/meshnet/meshnet/shard/sample"
	"github.com/meshnet/meshnet/shard/token"
)

// answer is one answer while it grows: ids, the text of whole characters that
// was emitted, and what decides the next token.
type answer struct {
	req     Request
	tok     *token.Tokenizer
	ids     []int32 // prompt, then what was generated
	prompt  int     // of ids
	max     int     // tokens to generate at most
	logits  []float32
	sampler *sample.Sampler
	decoder *token.Decoder
	stops   *sample.Stops
	text    strings.Builder
	emit    func(Delta) error
	emitErr error // of a note
	stopped bool  // a stop string came
	waiting Delta // ids and logprobs whose text is not out yet
}

func (h *Head) newAnswer(req Request, prompt []int32, maxTokens int, emit func(Delta) error) (*answer, error) {
	if len(req.Stop) > 16 || req.TopLogprobs < 0 || req.TopLogprobs > 20 {
		return nil, badRequest("%d stop strings and %d top logprobs: at most 16 and 20", len(req.Stop), req.TopLogprobs)
	}
	sampler, err := sample.New(req.Sampling, h.cfg.Vocab)
	if err != nil {
		return nil, badRequest("sampling: %v", err)
	}
	for _, id := range prompt {
		sampler.Accept(id)
	}
	stops := req.Stop
	if len(req.Messages) > 0 {
		stops = append(slices.Clone(stops), h.cfg.Template.Stop...)
	}
	if emit == nil {
		emit = func(Delta) error { return nil }
	}
	return &answer{
		req:     req,
		tok:     h.cfg.Tokenizer,
		ids:     append(make([]int32, 0, len(prompt)+maxTokens), prompt...),
		prompt:  len(prompt),
		max:     maxTokens,
		logits:  make([]float32, h.cfg.Vocab),
		sampler: sampler,
		decoder: h.cfg.Tokenizer.NewDecoder(),
		stops:   sample.NewStops(stops),
		emit:    emit,
	}, nil
}

func (a *answer) generated() []int32 { return a.ids[a.prompt:] }

// note passes a word of the backend on. It can't fail there; next sees it.
func (a *answer) note(n Note) {
	if err := a.emit(Delta{Note: &n}); err != nil && a.emitErr == nil {
		a.emitErr = err
	}
}

// next chooses a token from logits and emits what text is then complete. finish
// is empty while the answer goes on.
func (a *answer) next(logits []float32) (finish string, err error) {
	if a.emitErr != nil {
		return "", a.emitErr
	}
	id, logprob, err := a.sampler.Next(logits)
	if err != nil {
		return "", err
	}
	if a.tok.EOG(id) && !a.req.IgnoreEOG {
		return FinishStop, nil
	}
	a.sampler.Accept(id)
	a.ids = append(a.ids, id)
	a.waiting.IDs = append(a.waiting.IDs, id)
	if a.req.Logprobs {
		a.waiting.Tokens = append(a.waiting.Tokens, a.logprob(id, logprob, logits))
	}
	var text string
	text, a.stopped = a.stops.Push(a.decoder.Push(id))
	switch {
	case a.stopped:
		finish = FinishStop
	case len(a.generated()) >= a.max:
		finish = FinishLength
	}
	if text == "" && !a.req.Logprobs {
		return finish, nil
	}
	return finish, a.send(text)
}

// flush emits what was held back: an unfinished character, the beginning of a
// stop string that never came.
func (a *answer) flush() error {
	var text string
	if !a.stopped {
		var stopped bool
		if text, stopped = a.stops.Push(a.decoder.Flush()); !stopped {
			text += a.stops.Flush()
		}
	}
	if text == "" && len(a.waiting.Tokens) == 0 {
		return nil
	}
	return a.send(text)
}

func (a *answer) send(text string) error {
	a.text.WriteString(text)
	d := a.waiting
	d.Text = text
	a.waiting = Delta{}
	return a.emit(d)
}

func (a *answer) logprob(id int32, logprob float32, logits []float32) TokenLogprob {
	t := TokenLogprob{ID: id, Bytes: a.tok.Piece(id), Logprob: logprob}
	if a.req.TopLogprobs > 0 {
		for _, alt := range sample.TopLogprobs(logits, a.req.TopLogprobs) {
			t.Top = append(t.Top, TokenLogprob{ID: alt.ID, Bytes: a.tok.Piece(alt.ID), Logprob: alt.Logprob})
		}
	}
	return t
}
