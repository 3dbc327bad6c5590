package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kinds of faults.
const (
	kill    = "kill"    // SIGKILL, and started again later
	freeze  = "freeze"  // SIGSTOP for seconds
	suspend = "suspend" // SIGSTOP for minutes: a laptop's lid
	cut     = "cut"     // a link's connections reset, new ones refused
	hole    = "hole"    // a link that lets nothing pass and tells nobody
	drain   = "drain"   // SIGTERM, and started again when it has left
	evict   = "evict"   // the caches of all sessions dropped
	restart = "restart" // SIGKILL, and started again at once
	join    = "join"    // one more peer, which leaves again
)

// weights are how often each kind happens, and for how long: from least to least+more.
var weights = []struct {
	kind        string
	often       int
	least, more time.Duration
}{
	{kill, 4, 2 * time.Second, 6 * time.Second},
	{freeze, 3, time.Second, 9 * time.Second},
	{suspend, 1, 40 * time.Second, 80 * time.Second},
	{cut, 3, 2 * time.Second, 8 * time.Second},
	{hole, 2, 2 * time.Second, 8 * time.Second},
	{drain, 3, time.Second, 3 * time.Second},
	{evict, 4, 0, 0},
	{restart, 2, 0, 0},
	{join, 1, 5 * time.Second, 10 * time.Second},
}

func allKinds() []string {
	var all []string
	for _, w := range weights {
		all = append(all, w.kind)
	}
	return all
}

// fault is one line of a schedule: what happens to whom, when, and for how long.
type fault struct {
	At   time.Duration
	Kind string
	Who  string // a node
	With string // and the other end of the link
	For  time.Duration
}

// name is the kind and whom it hits.
func (f fault) name() string { return f.Kind + " " + f.who() }

func (f fault) who() string {
	if f.With != "" {
		return f.With + "-" + f.Who
	}
	return f.Who
}

func (f fault) String() string {
	s := fmt.Sprintf("%8.3fs %-8s %s", f.At.Seconds(), f.Kind, f.who())
	if f.For > 0 {
		s += fmt.Sprintf(" for %v", f.For.Round(time.Millisecond))
	}
	return s
}

// plan is what a schedule is made from. Equal plans give equal schedules.
type plan struct {
	Seed     uint64
	Duration time.Duration
	Every    time.Duration // between faults, on average
	Kinds    []string
	Nodes    []holder
	Spare    []holder // that join and leave
	Heads    []string // whose links can be cut
	Holes    bool     // a layer may lose its last holder
}

// holder is a node and the layers that it serves.
type holder struct {
	Name       string
	Start, End int
}

// settle is how long a peer that came back is left alone: it has to be heard of.
const settle = 5 * time.Second

// schedule draws the faults. Without Holes no fault takes a peer while a layer of
// its range has no other holder that has been there for a while.
func (p plan) schedule() []fault {
	r := rand.New(rand.NewPCG(p.Seed, 0x63686161))
	away := map[string]time.Duration{}
	var out []fault
	for at := time.Second; ; {
		at += p.Every/4 + time.Duration(r.ExpFloat64()*float64(p.Every)*3/4)
		if at >= p.Duration {
			return out
		}
		f, ok := p.draw(r, at, away)
		if !ok {
			continue
		}
		if f.Kind != evict && !(f.With != "" && p.isNode(f.With)) {
			away[f.Who] = at + f.For + settle
		}
		out = append(out, f)
	}
}

func (p plan) isNode(name string) bool {
	return slices.ContainsFunc(p.Nodes, func(h holder) bool { return h.Name == name })
}

// draw makes one fault, if anybody can take it now. The number of values that it
// takes from r does not depend on the answer.
func (p plan) draw(r *rand.Rand, at time.Duration, away map[string]time.Duration) (fault, bool) {
	sum := 0
	for _, w := range weights {
		if slices.Contains(p.Kinds, w.kind) {
			sum += w.often
		}
	}
	n, length, who, with := r.IntN(max(sum, 1)), r.Float64(), r.Float64(), r.Float64()
	f := fault{At: at}
	for _, w := range weights {
		if !slices.Contains(p.Kinds, w.kind) {
			continue
		}
		if n -= w.often; n < 0 {
			f.Kind, f.For = w.kind, w.least+time.Duration(length*float64(w.more))
			break
		}
	}
	here := func(name string) bool { return at >= away[name] }
	var able []holder
	for _, h := range p.Nodes {
		if f.Kind == join || !here(h.Name) {
			continue
		}
		if f.Kind == evict || p.Holes || p.covered(h, here) {
			able = append(able, h)
		}
	}
	if f.Kind == join {
		able = slices.DeleteFunc(slices.Clone(p.Spare), func(h holder) bool { return !here(h.Name) })
	}
	if len(able) == 0 || f.Kind == "" {
		return f, false
	}
	f.Who = able[int(who*float64(len(able)))].Name
	if f.Kind == cut || f.Kind == hole {
		ends := slices.Clone(p.Heads)
		for _, h := range p.Nodes {
			if h.Name != f.Who && here(h.Name) {
				ends = append(ends, h.Name)
			}
		}
		f.With = ends[int(with*float64(len(ends)))]
	}
	return f, true
}

// covered says that others who are here hold all of h's layers.
func (p plan) covered(h holder, here func(string) bool) bool {
	for l := h.Start; l < h.End; l++ {
		if !slices.ContainsFunc(p.Nodes, func(o holder) bool { return o.Name != h.Name && here(o.Name) && o.Start <= l && l < o.End }) {
			return false
		}
	}
	return true
}

// fingerprint tells schedules apart in a report.
func fingerprint(faults []fault) string {
	h := fnv.New64a()
	for _, f := range faults {
		fmt.Fprintln(h, f)
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// parseKinds reads --kinds.
func parseKinds(s string) ([]string, error) {
	if s == "" {
		return allKinds(), nil
	}
	kinds := strings.Split(s, ",")
	for _, k := range kinds {
		if !slices.Contains(allKinds(), k) {
			return nil, fmt.Errorf("--kinds %q: %q is none of %s", s, k, strings.Join(allKinds(), ","))
		}
	}
	return kinds, nil
}
