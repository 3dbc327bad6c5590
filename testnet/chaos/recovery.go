package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// watch is one client that a fault should disturb.
type watch struct {
	fault fault
	at    time.Time
	chat  *chat
}

// struck is a fault that happened.
type struck struct {
	fault fault
	at    time.Time
}

// watch remembers the chats that a fault hits and says how many they are.
func (r *run) watch(f fault, at time.Time, uses map[*chat][]string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.struck = append(r.struck, struck{f, at})
	n := 0
	for c, route := range uses {
		if f.Kind == join || on(f, c.head, route) {
			r.watched = append(r.watched, watch{f, at, c})
			n++
		}
	}
	return n
}

// askHead notes what the API's head says of a chat that has just ended.
func (r *run) askHead(ctx context.Context, c *chat) {
	h, err := r.mesh.Head(c.head)
	if err != nil {
		return
	}
	s, err := h.Status(ctx)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rec := range s.Recoveries {
		if c.session != "" && strings.HasPrefix(c.session, rec.Session) {
			c.mended = append(c.mended, rec)
		}
	}
}

const (
	// afterFault are the silences among which the one is that the fault made: a
	// token or two may have been on their way already.
	afterFault = 3
	// calm is how long a fault that should disturb nobody is watched.
	calm = 10 * time.Second
)

// goals are how long a chat may be silent, beside computing rows again; for those
// that should disturb nobody, in all.
var goals = map[string]time.Duration{
	kill: 500 * time.Millisecond, restart: 500 * time.Millisecond, evict: 500 * time.Millisecond,
	freeze: 3500 * time.Millisecond, suspend: 3500 * time.Millisecond, cut: 3500 * time.Millisecond, hole: 3500 * time.Millisecond,
	drain: time.Second, join: time.Second,
}

func (w watch) gentle() bool { return w.fault.Kind == drain || w.fault.Kind == join }

// silence is the time from a fault to the token that ends the silence it made; for
// one that should disturb nobody, the longest silence after it. It is false for an
// answer that ended or failed without one more token.
func (w watch) silence() (from, to time.Time, ok bool) {
	c := w.chat
	c.mu.Lock()
	defer c.mu.Unlock()
	i, _ := slices.BinarySearchFunc(c.tokens, w.at, time.Time.Compare)
	later := c.tokens[i:]
	if len(later) == 0 {
		return from, to, false
	}
	last, longest := w.at, time.Duration(-1)
	if w.gentle() && i > 0 {
		last = c.tokens[i-1]
	}
	for k, t := range later {
		if w.gentle() && last.Sub(w.at) > calm || !w.gentle() && k == afterFault {
			break
		}
		if t.Sub(last) > longest {
			longest, from, to = t.Sub(last), last, t
		}
		last = t
	}
	if !w.gentle() {
		from = w.at
	}
	return from, to, true
}

// answering says that the chat had a token before the fault.
func (w watch) answering() bool {
	w.chat.mu.Lock()
	defer w.chat.mu.Unlock()
	return len(w.chat.tokens) > 0 && w.chat.tokens[0].Before(w.at)
}

// mended is what the head says of a span of time: when it first knew, how much of it
// went into computing rows again, and what it did.
func (w watch) mended(from, to time.Time) (noticed time.Time, replay time.Duration, what []string) {
	w.chat.mu.Lock()
	defer w.chat.mu.Unlock()
	for _, rec := range w.chat.mended {
		if rec.At.Before(from) || rec.At.After(to) {
			continue
		}
		if noticed.IsZero() || rec.At.Before(noticed) {
			noticed = rec.At
		}
		if !slices.Contains(what, rec.Trace) { // those of one step share it, and its replay
			what = append(what, rec.Trace)
			replay += time.Duration(rec.ReplayMs * float64(time.Millisecond))
		}
	}
	return noticed, replay, what
}

// others are the faults that struck in a span of time, beside this one, and those
// from which the chat had not recovered when it began.
func (w watch) others(from, to time.Time, watched []watch, all []struck) (names []string) {
	for _, o := range watched {
		if f, t, ok := o.silence(); o.chat == w.chat && o.at != w.at && ok && f.Before(from) && from.Before(t) && o.at.Before(from) {
			names = append(names, o.fault.name())
		}
	}
	for _, o := range all {
		if o.at != w.at && !o.at.Before(from) && o.at.Before(to) {
			names = append(names, o.fault.name())
		}
	}
	return names
}

const keptOver = 50

// measure fills in the recoveries.
func (rep *Report) measure(watched []watch, all []struck, began time.Time) {
	alone, bare, noticed, overlapping, prompt := tally{}, tally{}, tally{}, tally{}, tally{}
	told := map[string]bool{}
	for _, w := range watched {
		from, to, ok := w.silence()
		if !ok {
			continue
		}
		took, kind := to.Sub(from), w.fault.Kind
		knew, replay, what := w.mended(from, to)
		others := w.others(from, to, watched, all)
		switch {
		case !w.answering():
			prompt.add(kind, took)
		case len(others) > 0:
			overlapping.add(kind, took)
		default:
			alone.add(kind, took)
			if !w.gentle() {
				bare.add(kind, max(took-replay, 0))
				if !knew.IsZero() {
					noticed.add(kind, knew.Sub(from))
				}
			}
		}
		over := took
		if !w.gentle() {
			over -= replay
		}
		if over > goals[kind] && w.answering() && len(rep.OverGoal) < keptOver {
			for i, trace := range what {
				if told[trace] {
					what[i] = "as above"
				}
				told[trace] = true
			}
			rep.OverGoal = append(rep.OverGoal, w.line(began, took, replay, knew.Sub(from), others, what))
		}
	}
	rep.Recovery, rep.WithoutReplay, rep.Noticed, rep.Overlapping, rep.Prompt = alone.times(), bare.times(), noticed.times(), overlapping.times(), prompt.times()
}

// line tells a developer where the time went.
func (w watch) line(began time.Time, took, replay, noticed time.Duration, others, what []string) string {
	s := fmt.Sprintf("%8.3fs %s, %s %.8s: %d ms", w.at.Sub(began).Seconds(), w.fault.name(), w.chat.head, w.chat.session, took.Milliseconds())
	if replay > 0 {
		s += fmt.Sprintf(", %d of them computing again", replay.Milliseconds())
	}
	if len(others) > 0 {
		s += ", with " + strings.Join(others, " and ")
	}
	if len(what) == 0 {
		return s + "; the head mended nothing"
	}
	return s + fmt.Sprintf("; noticed after %d ms; %s", noticed.Milliseconds(), strings.Join(what, " | "))
}

// tally is times by kind, in ms.
type tally map[string][]float64

func (t tally) add(kind string, d time.Duration) {
	t[kind] = append(t[kind], float64(d.Microseconds())/1000)
}

func (t tally) times() map[string]Times {
	out := map[string]Times{}
	for kind, ms := range t {
		slices.Sort(ms)
		at := func(p int) float64 { return ms[(len(ms)*p+99)/100-1] }
		out[kind] = Times{N: len(ms), P50: at(50), P99: at(99), Max: ms[len(ms)-1], Each: ms}
	}
	return out
}
