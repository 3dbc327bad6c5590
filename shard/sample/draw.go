package sample

import (
	"cmp"
	"math"
	"slices"
)

// candidate is a token and its weight.
type candidate struct {
	id     int32
	logit  float32
	weight float64
}

// likelier orders candidates from the likeliest down, of equals the lowest id first.
func likelier(a, b candidate) int {
	if a.logit != b.logit {
		return cmp.Compare(b.logit, a.logit)
	}
	return cmp.Compare(a.id, b.id)
}

// weight is e^((logit-top)/temperature): the likeliest token has weight 1.
func (s *Sampler) weight(logit, top float32) float64 {
	return exp((float64(logit) - float64(top)) / float64(s.p.Temperature))
}

// draw chooses by the adjusted logits and one random number.
func (s *Sampler) draw() int32 {
	best := argmax(s.logits)
	top := s.logits[best]
	if math.IsInf(float64(top), -1) {
		return best // nothing is left; Next says so
	}
	u := random(s.p.Seed, s.state.drawn)
	s.state.drawn++
	k, p := s.p.TopK, float64(s.p.TopP)
	cutK, cutP := k > 0 && k < len(s.logits), p > 0 && p < 1
	var kept []candidate
	switch {
	case cutK:
		kept = s.likeliest(top, func(n int, _ float64) bool { return n >= k })
		kept = kept[:min(k, len(kept))]
		if cutP {
			kept = nucleus(kept, float64(p*total(kept)))
		}
	case cutP:
		all := 0.0
		for _, l := range s.logits {
			all += s.weight(l, top)
		}
		need := float64(p * all)
		// A group's sum is taken in another order than the one that decides: hence the margin.
		kept = nucleus(s.likeliest(top, func(_ int, sum float64) bool { return sum >= float64(need*(1+1e-9)) }), need)
	default:
		return s.drawAll(best, top, u)
	}
	kept = slices.DeleteFunc(kept, func(c candidate) bool { return c.weight < float64(s.p.MinP) })
	target, sum := float64(u*total(kept)), 0.0
	for _, c := range kept {
		if sum += c.weight; sum > target {
			return c.id
		}
	}
	return kept[len(kept)-1].id // rounding: the sum may end at the target
}

// drawAll chooses among all tokens that min-p allows, by ascending id.
func (s *Sampler) drawAll(best int32, top float32, u float64) int32 {
	all := 0.0
	for _, l := range s.logits {
		if w := s.weight(l, top); w >= float64(s.p.MinP) {
			all += w
		}
	}
	target, sum := float64(u*all), 0.0
	for id, l := range s.logits {
		if w := s.weight(l, top); w >= float64(s.p.MinP) {
			if sum += w; sum > target {
				return int32(id)
			}
		}
	}
	return best // u < 1 and the sums are equal, so this is not reached
}

func total(c []candidate) float64 {
	sum := 0.0
	for i := range c {
		sum += c[i].weight
	}
	return sum
}

// nucleus is the shortest beginning of c that weighs need.
func nucleus(c []candidate, need float64) []candidate {
	sum := 0.0
	for i := range c {
		if sum += c[i].weight; sum >= need {
			return c[:i+1]
		}
	}
	return c
}

// likeliest returns, in order, at least as many of the likeliest tokens as enough asks for, told
// their number and weight. Sorting a whole vocabulary would cost more than all the
// rest, and most of it has next to no weight: so they come in groups of a factor e^3.
func (s *Sampler) likeliest(top float32, enough func(n int, weight float64) bool) []candidate {
	c, sum := s.cand[:0], 0.0
	ceiling := math.Inf(1)
	for step := 1.0; step <= 9; step++ {
		floor := float64(top) - float64(3*step*float64(s.p.Temperature))
		if step == 9 {
			floor = -math.MaxFloat64 // the rest, without those at -Inf
		}
		from := len(c)
		for id, l := range s.logits {
			if x := float64(l); x >= floor && x < ceiling {
				w := s.weight(l, top)
				c = append(c, candidate{int32(id), l, w})
				sum += w
			}
		}
		slices.SortFunc(c[from:], likelier)
		if enough(len(c), sum) {
			break
		}
		ceiling = floor
	}
	s.cand = c
	return c
}
