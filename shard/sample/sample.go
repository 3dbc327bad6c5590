// Package sample turns logits into a token.
//
// Invariant: the same parameters, logits and history give the same token on every
// machine. No decision depends on a library function whose last bit differs between
// processors, nor on whether the compiler fuses a multiplication with an addition:
// see math.go. Start reading at Next.
package sample

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Params says how to choose. The zero value is greedy.
type Params struct {
	// Temperature divides the logits; 0 takes the largest one (of equals the
	// lowest id), and TopK, TopP, MinP and Seed have no effect.
	Temperature float32
	// TopK keeps so many of the most likely tokens; 0 keeps all.
	TopK int
	// TopP keeps the fewest most likely tokens that together have this share; 0 and 1 keep all.
	TopP float32
	// MinP keeps the tokens that are at least this share of the likeliest as likely; 0 keeps all.
	MinP float32
	// RepeatPenalty divides the positive and multiplies the negative logits of
	// tokens in the history; 0 and 1 do nothing.
	RepeatPenalty float32
	// FrequencyPenalty is taken off a token's logit once for each time it occurs
	// in the history, PresencePenalty once if it occurs.
	FrequencyPenalty, PresencePenalty float32
	// RepeatLastN is how many of the last accepted tokens are the history for the three
	// penalties; 0 means all.
	RepeatLastN int
	// Seed selects the random numbers. 0 is a seed like any other.
	Seed uint64
	// LogitBias is added to the logits of its tokens before anything else.
	LogitBias map[int32]float32
}

const (
	maxRepeatLastN = 1 << 20
	maxBias        = 1e6
)

// Validate lists all faults at once, one a line.
func (p Params) Validate() error {
	var errs []error
	within := func(name string, v, low, high float32) {
		if !(v >= low && v <= high) { // also catches NaN
			errs = append(errs, fmt.Errorf("%s is %v, not %v to %v", name, v, low, high))
		}
	}
	within("temperature", p.Temperature, 0, 100)
	within("top_p", p.TopP, 0, 1)
	within("min_p", p.MinP, 0, 1)
	within("repeat_penalty", p.RepeatPenalty, 0, 100)
	within("frequency_penalty", p.FrequencyPenalty, -100, 100)
	within("presence_penalty", p.PresencePenalty, -100, 100)
	if p.TopK < 0 {
		errs = append(errs, fmt.Errorf("top_k is %d, less than 0", p.TopK))
	}
	if p.RepeatLastN < 0 || p.RepeatLastN > maxRepeatLastN {
		errs = append(errs, fmt.Errorf("repeat_last_n is %d, not 0 to %d", p.RepeatLastN, maxRepeatLastN))
	}
	for _, id := range sortedKeys(p.LogitBias) {
		within(fmt.Sprintf("logit_bias of token %d", id), p.LogitBias[id], -maxBias, maxBias)
	}
	return errors.Join(errs...)
}

func sortedKeys[V any](m map[int32]V) []int32 {
	keys := make([]int32, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Sampler chooses the tokens of one answer. It is for one goroutine.
type Sampler struct {
	p      Params
	bias   []int32 // the keys of p.LogitBias, ascending
	logits []float32
	cand   []candidate
	state  State
}

// State is what a Sampler carries from token to token.
type State struct {
	drawn  uint64          // random numbers used
	counts map[int32]int32 // occurrences in the history
	recent []int32         // the history in order, when RepeatLastN bounds it
}

// New checks p against a vocabulary of so many tokens.
func New(p Params, vocab int) (*Sampler, error) {
	err := p.Validate()
	s := &Sampler{p: p, bias: sortedKeys(p.LogitBias), logits: make([]float32, max(vocab, 0))}
	if vocab <= 0 || vocab > math.MaxInt32 {
		err = errors.Join(err, fmt.Errorf("a vocabulary of %d tokens", vocab))
	}
	for _, id := range s.bias {
		if id < 0 || int(id) >= vocab {
			err = errors.Join(err, fmt.Errorf("logit_bias names token %d, the vocabulary has %d", id, vocab))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("sampling parameters: %w", err)
	}
	s.state.counts = map[int32]int32{}
	return s, nil
}

// Next chooses a token. logits has one value for each token of the vocabulary, is
// not changed and not kept; -Inf excludes a token, NaN and +Inf are an error, which
// leaves the Sampler as it was. logprob is the natural logarithm of the token's
// probability by the logits as given, before penalties, bias and temperature.
//
// The order is: bias, penalties, temperature, top-k, top-p, min-p, each renormalizing
// what the one before left; then one random number chooses by cumulative
// probability, from the likeliest down (of equals the lowest id first) if top-k or
// top-p cut anything off, else over the ids ascending.
func (s *Sampler) Next(logits []float32) (id int32, logprob float32, err error) {
	if len(logits) != len(s.logits) {
		return 0, 0, fmt.Errorf("sample: %d logits for a vocabulary of %d", len(logits), len(s.logits))
	}
	norm, err := logSum(logits)
	if err != nil {
		return 0, 0, fmt.Errorf("sample: %w", err)
	}
	copy(s.logits, logits)
	s.adjust()
	if s.p.Temperature == 0 {
		id = argmax(s.logits)
	} else {
		id = s.draw()
	}
	if math.IsInf(float64(s.logits[id]), -1) {
		return 0, 0, errors.New("sample: bias and penalties exclude every token")
	}
	return id, float32(float64(logits[id]) - norm), nil
}

// Accept adds a token to the history that the penalties look at.
func (s *Sampler) Accept(id int32) {
	if s.p.RepeatLastN > 0 {
		s.state.recent = append(s.state.recent, id)
		if len(s.state.recent) > s.p.RepeatLastN {
			old := s.state.recent[0]
			s.state.recent = append(s.state.recent[:0], s.state.recent[1:]...)
			if s.state.counts[old]--; s.state.counts[old] == 0 {
				delete(s.state.counts, old)
			}
		}
	}
	s.state.counts[id]++
}

// Snapshot copies the state, so that a step can be taken again.
func (s *Sampler) Snapshot() State { return s.state.clone() }

// Restore goes back to a snapshot of this Sampler or one with equal parameters.
func (s *Sampler) Restore(st State) { s.state = st.clone() }

func (st State) clone() State {
	c := State{drawn: st.drawn, counts: make(map[int32]int32, len(st.counts)), recent: slices.Clone(st.recent)}
	for id, n := range st.counts {
		c.counts[id] = n
	}
	return c
}

// adjust applies bias and penalties to s.logits. Each token is changed on its own, so the
// order of the map does not matter.
func (s *Sampler) adjust() {
	for _, id := range s.bias {
		s.logits[id] += s.p.LogitBias[id]
	}
	repeat := s.p.RepeatPenalty
	if repeat == 0 {
		repeat = 1
	}
	if repeat == 1 && s.p.FrequencyPenalty == 0 && s.p.PresencePenalty == 0 {
		return
	}
	for id, n := range s.state.counts {
		if id < 0 || int(id) >= len(s.logits) {
			continue
		}
		l := s.logits[id]
		if l > 0 {
			l /= repeat
		} else {
			l = float32(l * repeat) // the conversions forbid a fused multiply-add
		}
		l -= float32(float32(n) * s.p.FrequencyPenalty)
		s.logits[id] = l - s.p.PresencePenalty
	}
}

// argmax is the lowest of the ids with the largest logit.
func argmax(logits []float32) int32 {
	best := 0
	for i, l := range logits {
		if l > logits[best] {
			best = i
		}
	}
	return int32(best)
}
