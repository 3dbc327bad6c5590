// Package route decides, purely: offers and measured links become a route, and
// a session is a machine that turns events into actions. It has no clock, no
// goroutine, no random source and no I/O; whatever it must know arrives as an
// argument, so the same inputs give the same decisions on every machine.
//
// Invariant: a Route covers the layers [0, n) once and in order, no peer twice.
// Start reading at Plan; Session.Step is the other half, and testdata/ shows
// both as scripts.
package route

import (
	"fmt"
	"slices"
	"strings"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// Link is what is known of the way from one peer to another.
type Link struct {
	From, To p2p.PeerID
	Micros   uint32 // measured round trip; 0 = not measured
	Down     bool   // From cannot reach To: between them the head forwards
}

// Hop is one peer of a route with its effective range.
type Hop struct {
	Peer            p2p.Peer
	Start, End      int
	Star            bool   // the output returns to the head, which forwards it
	PredictedMicros uint32 // share of a decode step: the way in, computing, for the last hop also the way back
}

// Route is peers that cover all layers in order.
type Route struct{ Hops []Hop }

// PredictedMicros is the time of one decode step.
func (r Route) PredictedMicros() int64 {
	var sum int64
	for _, h := range r.Hops {
		sum += int64(h.PredictedMicros)
	}
	return sum
}

// Index is the position of a peer in the route, or -1.
func (r Route) Index(id p2p.PeerID) int {
	return slices.IndexFunc(r.Hops, func(h Hop) bool { return h.Peer.ID == id })
}

// String is the form for logs and scripts: "a[0:8) -> b[8:24)", "=>" where the
// head forwards.
func (r Route) String() string {
	var b strings.Builder
	for i, h := range r.Hops {
		if i > 0 {
			if r.Hops[i-1].Star {
				b.WriteString(" => ")
			} else {
				b.WriteString(" -> ")
			}
		}
		fmt.Fprintf(&b, "%s[%d:%d)", h.Peer.ID.Short(), h.Start, h.End)
	}
	return b.String()
}

// Query is everything that Plan looks at.
type Query struct {
	Layers int // of the whole model
	Model  wire.Fingerprint
	Offers []wire.Offer // at most one a peer is used: the one with the highest Seq
	Links  []Link       // the later of two statements about one direction counts
	Banned map[p2p.PeerID]bool
	Doubts map[p2p.PeerID]int // used only where nobody is with less of it
	Cache  wire.CacheType     // of the session: peers that don't keep it are not used; 0: wire.DefaultCacheType
	Head   p2p.PeerID
}

// GapError says that no route exists.
type GapError struct {
	First   int      // first layer that nobody offers
	Missing [][2]int // all ranges [start, end) that nobody offers
	Near    []Near   // peers that hold some of them and can't be used now
	Banned  bool     // the bans alone are the reason: without them a route exists
}

// Near is a peer that would close a gap if it could be used.
type Near struct {
	Peer       p2p.PeerID
	Start, End int
	Why        string // "draining", "joining", "resting after a failure", "reached only through a limited relay", "not keeping caches of type q8"
}

func (e *GapError) Error() string {
	var b strings.Builder
	b.WriteString("nobody offers ")
	b.WriteString(Ranges(e.Missing))
	for i, n := range e.Near {
		if i == 0 {
			b.WriteString(" (")
		} else {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s holds [%d:%d) but is %s", n.Peer.Short(), n.Start, n.End, n.Why)
	}
	if len(e.Near) > 0 {
		b.WriteString(")")
	}
	return b.String()
}

// Ranges is the form for people: "layers 4 to 7 and 12".
func Ranges(rs [][2]int) string {
	parts := make([]string, len(rs))
	single := len(rs) == 1
	for i, r := range rs {
		if r[1]-r[0] == 1 {
			parts[i] = fmt.Sprint(r[0])
		} else {
			parts[i], single = fmt.Sprintf("%d to %d", r[0], r[1]-1), false
		}
	}
	word := "layers "
	if single {
		word = "layer "
	}
	if n := len(parts); n > 1 {
		return word + strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
	return word + strings.Join(parts, "")
}
