package node

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
)

// missingLayers are the ranges of [0, layers) that no online peer serves.
func missingLayers(layers int, offers []wire.Offer) (missing [][2]int) {
	have := make([]bool, layers)
	for _, o := range offers {
		if o.State != wire.Online {
			continue
		}
		for i := int(o.Start); i < int(o.End) && i < layers; i++ {
			have[i] = true
		}
	}
	for i := 0; i < layers; i++ {
		if have[i] {
			continue
		}
		start := i
		for i < layers && !have[i] {
			i++
		}
		missing = append(missing, [2]int{start, i})
	}
	return missing
}

// View is what others serve of a model now, without those that leave.
func (d *Discovery) View(model wire.Fingerprint) []wire.Offer { return d.offers.Table().View(model) }

// Changed is closed at the next change of any view. Take it before reading a view.
func (d *Discovery) Changed() <-chan struct{} { return d.offers.Table().Changed() }

// WaitView waits until a view pleases. When ctx ends first, it returns the last view
// and ctx's error.
func (d *Discovery) WaitView(ctx context.Context, model wire.Fingerprint, pleases func([]wire.Offer) bool) ([]wire.Offer, error) {
	for {
		changed := d.Changed()
		v := d.View(model)
		if pleases(v) {
			return v, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}

// RTT is the round trip to a peer, if it was measured lately.
func (d *Discovery) RTT(id p2p.PeerID) (time.Duration, bool) {
	return d.offers.RTT(id)
}

// Links are the round trips that we measured, and those that peers state in their
// offers, in a fixed order; our own come last and so count.
func (d *Discovery) Links() []route.Link {
	var out []route.Link
	for _, o := range d.offers.Table().All() {
		for _, r := range o.RTT {
			out = append(out, route.Link{From: p2p.PeerID(o.Peer), To: p2p.PeerID(r.Peer), Micros: r.Micros})
		}
	}
	var own []route.Link
	for id, rtt := range d.offers.RTTs() {
		m := micros(rtt)
		own = append(own, route.Link{From: d.cfg.Host.Self(), To: id, Micros: m}, route.Link{From: id, To: d.cfg.Host.Self(), Micros: m})
	}
	slices.SortFunc(own, func(a, b route.Link) int {
		if c := strings.Compare(string(a.From), string(b.From)); c != 0 {
			return c
		}
		return strings.Compare(string(a.To), string(b.To))
	})
	return append(out, own...)
}

// Neighbours are measured round trips to peers that serve the model, the nearest
// first, as many as an offer takes.
func (d *Discovery) Neighbours(model wire.Fingerprint) []wire.RTT {
	rtts := d.offers.RTTs()
	var out []wire.RTT
	for _, o := range d.View(model) {
		if rtt, ok := rtts[p2p.PeerID(o.Peer)]; ok {
			out = append(out, wire.RTT{Peer: o.Peer, Micros: micros(rtt)})
		}
	}
	slices.SortFunc(out, func(a, b wire.RTT) int {
		if a.Micros != b.Micros {
			return int(int64(a.Micros) - int64(b.Micros))
		}
		return strings.Compare(a.Peer, b.Peer)
	})
	return out[:min(len(out), wire.MaxRTTs)]
}

// micros is at least 1: 0 would mean that nothing was measured.
func micros(d time.Duration) uint32 {
	return uint32(min(max(d.Microseconds(), 1), 1<<31))
}

// SeenModel is a model that somebody offers.
type SeenModel struct {
	Fingerprint wire.Fingerprint
	Layers      int
	Peers       int
	Missing     [][2]int // ranges that nobody serves now
}

// Models are the models that others offer, those with most peers first.
func (d *Discovery) Models() []SeenModel {
	byModel := map[wire.Fingerprint][]wire.Offer{}
	for _, o := range d.offers.Table().All() {
		if o.State != wire.Draining {
			byModel[o.Model] = append(byModel[o.Model], o)
		}
	}
	var out []SeenModel
	for f, offers := range byModel {
		m := SeenModel{Fingerprint: f, Peers: len(offers)}
		for _, o := range offers {
			m.Layers = max(m.Layers, int(o.Layers))
		}
		m.Missing = missingLayers(m.Layers, offers)
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b SeenModel) int {
		if a.Peers != b.Peers {
			return b.Peers - a.Peers
		}
		return slices.Compare(a.Fingerprint[:], b.Fingerprint[:])
	})
	return out
}
