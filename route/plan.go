package route

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

const (
	// hopMicros is what a hop costs beside link and layers: 120 µs were measured on
	// one machine (3 hops of a tiny model, 0.53 ms a token of which 0.17 computing;
	// 2 cores of Zen 5, 2026-11-30). The rest is for what no round trip shows, its
	// noise and one more peer that can fail: a hop for a single layer is not worth it.
	hopMicros = 300
	// unknownMicros is the round trip assumed for a link that nobody measured and
	// that can't be bounded by measured ones: an ordinary distance inside a country.
	unknownMicros = 10_000
	// layerMicros is assumed where an offer does not say how fast its peer is.
	layerMicros = 2_000
	// doubtMicros is more than any step that somebody would wait for: peers in doubt
	// are taken only where there is no way without them.
	doubtMicros = 60e6
	maxDoubt    = 16
	// maxOnce bounds the search, which doubles with each peer of its kind.
	maxOnce = 4
)

// Plan finds the route with the least predicted time of one decode step: for
// every hop the way to it, a fixed cost, and its layers; at the end the way
// back. Equal times go to fewer hops, then to the smaller peer id. It fails with
// a *GapError, or for a Query that makes no sense.
func Plan(q Query) (Route, error) {
	if q.Layers <= 0 {
		return Route{}, fmt.Errorf("plan a route: a model of %d layers", q.Layers)
	}
	usable, near := sortOffers(q)
	if missing := uncovered(q.Layers, usable); len(missing) > 0 {
		return Route{}, gap(q, missing, near)
	}
	g := &graph{layers: q.Layers, offers: usable, links: newLinks(q, usable)}
	// The search lays layer on layer and forgets how it came to a peer, so its best
	// path may use a peer, another one for layers between, and the first again. That
	// is no route; the search then remembers for such peers whether they were left.
	var once []int
	for {
		path := g.search(once)
		twice := visitedTwice(path)
		if twice < 0 {
			return g.route(path), nil
		}
		if len(once) == maxOnce {
			return g.route(collapse(path)), nil
		}
		once = append(once, twice)
	}
}

// collapse gives a peer that the path enters twice the layers between as well,
// which it holds, since an offer is one range. Only a mesh made to be strange
// needs it.
func collapse(path []int) []int {
	path = slices.Clone(path)
	for l := 0; l < len(path); l++ {
		for k := len(path) - 1; k > l; k-- {
			if path[k] == path[l] {
				for ; l < k; l++ {
					path[l] = path[k]
				}
				break
			}
		}
	}
	return path
}

// offer is a usable offer, clipped to the model.
type offer struct {
	peer       p2p.Peer
	start, end int
	micros     float64 // a layer, one row
	doubt      float64 // what entering it costs beside its time
}

// sortOffers splits the offers of this model into usable ones, sorted by peer,
// and the rest with their reasons.
func sortOffers(q Query) (usable []offer, near []Near) {
	latest := map[string]wire.Offer{}
	for _, o := range q.Offers {
		if o.Model != q.Model || o.Start >= o.End || int64(o.End) > int64(q.Layers) || int64(o.Layers) != int64(q.Layers) {
			continue // another model, or one that contradicts ours
		}
		if was, ok := latest[o.Peer]; !ok || o.Seq > was.Seq {
			latest[o.Peer] = o
		}
	}
	for _, o := range latest {
		id := p2p.PeerID(o.Peer)
		why := ""
		switch {
		case id == q.Head:
			continue
		case o.RelayOnly:
			why = "reached only through a limited relay"
		case o.State == wire.Draining:
			why = "draining"
		case o.State != wire.Online:
			why = "joining"
		case !o.CacheTypes.Has(q.cache()):
			why = fmt.Sprintf("not keeping caches of type %v", q.cache())
		case q.Banned[id]:
			why = "resting after a failure"
		}
		if why != "" {
			near = append(near, Near{Peer: id, Start: int(o.Start), End: int(o.End), Why: why})
			continue
		}
		n := float64(o.End - o.Start)
		u := offer{peer: p2p.Peer{ID: id, Addrs: o.Addrs}, start: int(o.Start), end: int(o.End), micros: layerMicros}
		if o.DecodeMicros > 0 {
			u.micros = float64(o.DecodeMicros) / n
		}
		u.doubt = doubtMicros * float64(min(q.Doubts[id], maxDoubt))
		usable = append(usable, u)
	}
	slices.SortFunc(usable, func(a, b offer) int { return strings.Compare(string(a.peer.ID), string(b.peer.ID)) })
	slices.SortFunc(near, func(a, b Near) int { return strings.Compare(string(a.Peer), string(b.Peer)) })
	return usable, near
}

func (q *Query) cache() wire.CacheType {
	if q.Cache == 0 {
		return wire.DefaultCacheType
	}
	return q.Cache
}

// uncovered lists the ranges of [0, layers) that no offer holds.
func uncovered(layers int, offers []offer) (missing [][2]int) {
	for l := 0; l < layers; l++ {
		if slices.ContainsFunc(offers, func(o offer) bool { return o.start <= l && l < o.end }) {
			continue
		}
		if n := len(missing); n > 0 && missing[n-1][1] == l {
			missing[n-1][1] = l + 1
		} else {
			missing = append(missing, [2]int{l, l + 1})
		}
	}
	return missing
}

func gap(q Query, missing [][2]int, near []Near) *GapError {
	e := &GapError{First: missing[0][0], Missing: missing}
	for _, n := range near {
		if slices.ContainsFunc(missing, func(m [2]int) bool { return n.Start < m[1] && m[0] < n.End }) {
			e.Near = append(e.Near, n)
		}
	}
	if len(q.Banned) > 0 {
		q.Banned = nil
		all, _ := sortOffers(q)
		e.Banned = len(uncovered(q.Layers, all)) == 0
	}
	return e
}

// links answers what the way between two peers costs, in µs one way.
type links struct {
	head  p2p.PeerID
	known map[[2]p2p.PeerID]Link
}

func newLinks(q Query, offers []offer) *links {
	l := &links{head: q.Head, known: map[[2]p2p.PeerID]Link{}}
	used := map[string]bool{}
	for _, o := range offers {
		used[string(o.peer.ID)] = true
	}
	for _, o := range q.Offers {
		if !used[o.Peer] {
			continue
		}
		for _, r := range o.RTT {
			l.add(Link{From: p2p.PeerID(o.Peer), To: p2p.PeerID(r.Peer), Micros: r.Micros})
		}
	}
	for _, k := range q.Links {
		l.add(k)
	}
	return l
}

func (l *links) add(k Link) {
	was := l.known[[2]p2p.PeerID{k.From, k.To}]
	if k.Micros == 0 {
		k.Micros = was.Micros
	}
	l.known[[2]p2p.PeerID{k.From, k.To}] = k
}

// rtt is the measured round trip, in either direction's statement.
func (l *links) rtt(a, b p2p.PeerID) (float64, bool) {
	if k := l.known[[2]p2p.PeerID{a, b}]; k.Micros > 0 {
		return float64(k.Micros), true
	}
	if k := l.known[[2]p2p.PeerID{b, a}]; k.Micros > 0 {
		return float64(k.Micros), true
	}
	return 0, false
}

// direct is the time of one way from a to b.
func (l *links) direct(a, b p2p.PeerID) float64 {
	if r, ok := l.rtt(a, b); ok {
		return r / 2
	}
	// Unmeasured: two peers are at most as far apart as the way over the head.
	ra, okA := l.rtt(l.head, a)
	rb, okB := l.rtt(l.head, b)
	if okA && okB {
		return max(ra, rb) / 2
	}
	return unknownMicros / 2
}

// between is the time from hop a to hop b, and whether the head forwards.
func (l *links) between(a, b p2p.PeerID) (micros float64, star bool) {
	if l.known[[2]p2p.PeerID{a, b}].Down {
		return l.direct(a, l.head) + l.direct(l.head, b) + hopMicros, true
	}
	return l.direct(a, b), false
}

// graph is the search: a node is (layer done, peer that did it, which of the
// once-only peers were left).
type graph struct {
	layers int
	offers []offer
	links  *links
}

type label struct {
	micros float64
	hops   int
	prev   int32 // state at the layer before; -1 at the start
}

func (a label) better(b label) bool {
	if d := a.micros - b.micros; math.Abs(d) > 1e-6 {
		return d < 0
	}
	return a.hops < b.hops
}

// search returns for every layer the index of the offer that does it. Peers of
// once are not entered again after they were left.
func (g *graph) search(once []int) []int {
	n, masks := len(g.offers), 1<<len(once)
	bit := make([]int, n)
	for i, o := range once {
		bit[o] = 1 << i
	}
	cost := make([][]float64, n) // between offers
	for i := range cost {
		cost[i] = make([]float64, n)
		for j := range cost[i] {
			cost[i][j], _ = g.links.between(g.offers[i].peer.ID, g.offers[j].peer.ID)
		}
	}
	unreached := label{micros: math.Inf(1)}
	labels := make([][]label, g.layers)
	for l := range labels {
		labels[l] = slices.Repeat([]label{unreached}, n*masks)
		for i, o := range g.offers {
			if l < o.start || l >= o.end {
				continue
			}
			if l == 0 {
				labels[0][i*masks] = label{g.links.direct(g.links.head, o.peer.ID) + hopMicros + o.doubt + o.micros, 1, -1}
				continue
			}
			for m := range masks {
				if m&bit[i] != 0 {
					continue
				}
				g.extend(labels[l-1], labels[l], cost, bit, i, m, masks)
			}
		}
	}
	return g.trace(labels, masks)
}

// extend reaches offer i at the next layer from every state of the layer before.
func (g *graph) extend(from, to []label, cost [][]float64, bit []int, i, m, masks int) {
	o := g.offers[i]
	s := i*masks + m
	if was := from[s]; !math.IsInf(was.micros, 1) {
		if c := (label{was.micros + o.micros, was.hops, int32(s)}); c.better(to[s]) {
			to[s] = c
		}
	}
	for j := range g.offers {
		if j == i {
			continue
		}
		// Leaving j sets its bit, so the state to come from either has it set by now
		// or, for j outside once, has the same mask.
		if bit[j]&m != bit[j] {
			continue
		}
		t := j*masks + m&^bit[j]
		was := from[t]
		if math.IsInf(was.micros, 1) {
			continue
		}
		if c := (label{was.micros + cost[j][i] + hopMicros + o.doubt + o.micros, was.hops + 1, int32(t)}); c.better(to[s]) {
			to[s] = c
		}
	}
}

func (g *graph) trace(labels [][]label, masks int) []int {
	best, at := label{micros: math.Inf(1)}, -1
	for s, c := range labels[g.layers-1] {
		if math.IsInf(c.micros, 1) {
			continue
		}
		c.micros += g.links.direct(g.offers[s/masks].peer.ID, g.links.head)
		if c.better(best) {
			best, at = c, s
		}
	}
	path := make([]int, g.layers)
	for l := g.layers - 1; l >= 0; l-- {
		path[l] = at / masks
		at = int(labels[l][at].prev)
	}
	return path
}

// visitedTwice is an offer that the path enters twice, or -1.
func visitedTwice(path []int) int {
	seen := map[int]bool{}
	for l, i := range path {
		if l > 0 && path[l-1] == i {
			continue
		}
		if seen[i] {
			return i
		}
		seen[i] = true
	}
	return -1
}

// route turns a path into hops with their predicted times.
func (g *graph) route(path []int) Route {
	var r Route
	var micros []float64
	for l, i := range path {
		o := g.offers[i]
		if n := len(r.Hops); n > 0 && path[l-1] == i {
			r.Hops[n-1].End = l + 1
			micros[n-1] += o.micros
			continue
		}
		in := g.links.direct(g.links.head, o.peer.ID)
		if n := len(r.Hops); n > 0 {
			in, r.Hops[n-1].Star = g.links.between(r.Hops[n-1].Peer.ID, o.peer.ID)
		}
		r.Hops = append(r.Hops, Hop{Peer: o.peer, Start: l, End: l + 1})
		micros = append(micros, in+hopMicros+o.micros)
	}
	last := len(r.Hops) - 1
	micros[last] += g.links.direct(r.Hops[last].Peer.ID, g.links.head)
	for i := range r.Hops {
		r.Hops[i].PredictedMicros = uint32(min(math.Round(micros[i]), math.MaxUint32))
	}
	return r
}
