package route

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// Mend is Plan where some hops, in order, stay with their layers, because they hold
// what a session has computed; what lies between them is planned anew. It fails like
// Plan, also where only a peer that stays holds a layer between.
func Mend(q Query, stay []Hop) (Route, error) {
	usable, _ := sortOffers(q)
	index := func(id p2p.PeerID) (int, bool) {
		return slices.BinarySearchFunc(usable, id, func(o offer, id p2p.PeerID) int { return strings.Compare(string(o.peer.ID), string(id)) })
	}
	path, used := make([]int, q.Layers), map[p2p.PeerID]bool{}
	for _, h := range stay {
		used[h.Peer.ID] = true
	}
	lay := func(hops []Hop, from int) error {
		for _, h := range hops {
			i, ok := index(h.Peer.ID)
			if !ok || h.Start+from < usable[i].start || h.End+from > usable[i].end {
				return fmt.Errorf("mend a route: %s does not serve layers %d to %d", h.Peer.ID.Short(), h.Start+from, h.End+from-1)
			}
			used[h.Peer.ID] = true
			for l := h.Start + from; l < h.End+from; l++ {
				path[l] = i
			}
		}
		return nil
	}
	at := 0
	for _, h := range append(slices.Clone(stay), Hop{Start: q.Layers, End: q.Layers}) {
		if h.Start < at || h.End > q.Layers {
			return Route{}, fmt.Errorf("mend a route: layer %d after layer %d of %d", h.Start, at, q.Layers)
		}
		if at < h.Start {
			part, err := Plan(q.part(at, h.Start, used))
			if err != nil {
				return Route{}, err
			}
			if err := lay(part.Hops, at); err != nil {
				return Route{}, err
			}
		}
		if h.Start < h.End {
			if err := lay([]Hop{h}, 0); err != nil {
				return Route{}, err
			}
		}
		at = h.End
	}
	g := &graph{layers: q.Layers, offers: usable, links: newLinks(q, usable)}
	return g.route(path), nil
}

// part is the query for the layers [start, end), counted from start, without some peers.
func (q Query) part(start, end int, without map[p2p.PeerID]bool) Query {
	var offers []wire.Offer
	for _, o := range q.Offers {
		s, e := max(int(o.Start), start), min(int64(o.End), int64(end))
		if without[p2p.PeerID(o.Peer)] || o.Layers != uint32(q.Layers) || int64(s) >= e || o.End > o.Layers {
			continue
		}
		o.DecodeMicros = uint32(uint64(o.DecodeMicros) * uint64(e-int64(s)) / uint64(o.End-o.Start))
		o.Start, o.End, o.Layers = uint32(s-start), uint32(e-int64(start)), uint32(end-start)
		offers = append(offers, o)
	}
	q.Offers, q.Layers = offers, end-start
	return q
}

// horizon is for how many tokens to come a quicker route has to pay for what its new
// hops compute again.
const horizon = 100

// best is the plan that has a session wait least: hops of its last route that hold
// rows stay, and standbys take the places of the others, unless without them it is so
// much quicker that computing those again pays.
func (s *Session) best(q Query) (Route, error) {
	r, err := Plan(q)
	if err != nil || s.cfg.Stateless || s.answered == 0 {
		return r, err
	}
	var stay, filled []Hop // the second with standbys
	for i, h := range s.stood.Hops {
		if i < len(s.held) && s.held[i] > 0 && s.tries[h.Peer.ID].bad == 0 && !q.Banned[h.Peer.ID] {
			stay, filled = append(stay, h), append(filled, h)
			delete(q.Doubts, h.Peer.ID) // it does what it is asked
		} else if w, ok := s.warmFor(q, h); ok {
			filled = append(filled, w)
		}
	}
	least := s.price(q, r)
	for _, hops := range [][]Hop{stay, filled} {
		if len(hops) == 0 {
			continue
		}
		if m, err := Mend(q, hops); err == nil && s.price(q, m) <= least {
			r, least = m, s.price(q, m)
		}
	}
	return r, nil
}

// price is the time that a route costs: computing again what its hops lack, and some
// steps.
func (s *Session) price(q Query, r Route) time.Duration {
	micros := float64(r.PredictedMicros()) * horizon
	for _, h := range r.Hops {
		micros += float64(max(s.answered-s.holds(h), 0))*s.rowMicros(h) + doubtMicros*float64(q.Doubts[h.Peer.ID])
	}
	return time.Duration(micros) * time.Microsecond
}
