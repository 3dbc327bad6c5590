package route

import (
	"slices"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

const (
	// leaveWait is how long a leaving hop is kept for its standby to be filled: it
	// serves on for 30 s.
	leaveWait = 20 * time.Second
	// leaveLag is how many rows a standby may lack when it takes a leaving hop's place.
	leaveLag = 8
	// maxWarm bounds the peers that a session makes its standbys in its life.
	maxWarm = 256
	// roomShare: a standby must have this part of its cache free, so that it takes
	// nobody's place.
	roomShare = 4
)

// warmth is what is known of a standby.
type warmth struct {
	start, end, rows int
	// stale: tokens were taken back since it was told of. It may hold rows of those.
	stale bool
}

// warmed notes what a standby holds now. Of a hop of the route the caches are known
// by what READY says.
func (s *Session) warmed(w Warm) {
	if s.route.Index(w.Peer) >= 0 {
		return
	}
	stale := s.warm[w.Peer].stale && w.Rows == 0 // what it was given may linger there
	s.warm[w.Peer] = warmth{start: w.Start, end: w.End, rows: w.Rows, stale: stale}
}

// takenBack: whatever a standby holds may be of tokens that are none any more.
func (s *Session) takenBack() {
	for id, w := range s.warm {
		w.stale = true
		s.warm[id] = w
	}
}

// distrustStale has a hop that may hold rows of tokens that were taken back compute
// all of them again: a refill would leave them there.
func (s *Session) distrustStale() {
	for i, h := range s.route.Hops {
		if s.warm[h.Peer.ID].stale && s.held[i] > 0 {
			s.held[i], s.plain = 0, true
		}
	}
}

// warmFor is a standby of a hop's layers that can be used, the one with the most rows.
func (s *Session) warmFor(q Query, h Hop) (best Hop, ok bool) {
	rows := 0
	for id, w := range s.warm {
		fits := w.rows > 0 && !w.stale && w.start == h.Start && w.end == h.End && id != h.Peer.ID && !q.Banned[id] && s.tries[id].bad == 0
		if fits && (w.rows > rows || w.rows == rows && id < best.Peer.ID) {
			best, rows, ok = Hop{Peer: p2p.Peer{ID: id}, Start: w.start, End: w.end}, w.rows, true
		}
	}
	return best, ok
}

// holds is how many tokens of the session a hop holds, as far as is known.
func (s *Session) holds(h Hop) int {
	if w := s.warm[h.Peer.ID]; w.start == h.Start && w.end == h.End && !w.stale {
		return w.rows
	}
	for i, was := range s.stood.Hops {
		if i < len(s.held) && was.Peer.ID == h.Peer.ID && was.Start == h.Start && was.End == h.End {
			return s.held[i]
		}
	}
	return 0
}

// Leaves says whether a hop said that it leaves.
func (s *Session) Leaves(id p2p.PeerID) bool { return s.leaving[id] }

// Standby is who should be filled with the rows of hop i while that serves: of the
// peers that hold all its layers, are not in the route, made no trouble (or, where the hop
// leaves, others than those first), have room and are not refused by not, the one with the
// quickest step; false if there is none.
func (s *Session) Standby(at time.Duration, i int, not func(p2p.PeerID) bool) (Hop, bool) {
	if i < 0 || i >= len(s.route.Hops) {
		return Hop{}, false
	}
	h := s.route.Hops[i]
	before, after := s.cfg.Head, s.cfg.Head
	if i > 0 {
		before = s.route.Hops[i-1].Peer.ID
	}
	if i+1 < len(s.route.Hops) {
		after = s.route.Hops[i+1].Peer.ID
	}
	q := s.query(at, nil)
	usable, _ := sortOffers(q)
	links := newLinks(q, usable)
	var best Hop
	var least float64
	for _, o := range usable {
		id := o.peer.ID
		_, known := s.warm[id]
		switch {
		case o.start > h.Start || o.end < h.End || s.route.Index(id) >= 0:
			continue
		case o.doubt > 0 && !s.leaving[h.Peer.ID]: // who takes a leaving hop's place is the last choice too
			continue
		case !known && len(s.warm) >= maxWarm, not != nil && not(id), !s.room(id):
			continue
		}
		in, _ := links.between(before, id)
		out, _ := links.between(id, after)
		if micros := in + out + o.doubt + o.micros*float64(h.End-h.Start); best.Peer.ID == "" || micros < least {
			best, least = Hop{Peer: o.peer, Start: h.Start, End: h.End}, micros
		}
	}
	return best, best.Peer.ID != ""
}

// room says whether a peer could take a session more without another losing its place.
func (s *Session) room(id p2p.PeerID) bool {
	i := slices.IndexFunc(s.view.Offers, func(o wire.Offer) bool { return o.Peer == string(id) })
	if i < 0 {
		return false
	}
	o := s.view.Offers[i]
	return (o.MaxSessions == 0 || o.Sessions < o.MaxSessions) && o.CacheFree >= o.CacheBytes/roomShare
}

// ripe says whether the leaving hops can be replaced without anybody's waiting for
// it: their standbys are filled, or there are none to wait for.
func (s *Session) ripe(at time.Duration) bool {
	if !s.cfg.Standbys {
		return true
	}
	q := s.query(at, nil)
	for i, h := range s.route.Hops {
		if !s.leaving[h.Peer.ID] || at >= s.left[h.Peer.ID]+leaveWait {
			continue
		}
		w, ok := s.warmFor(q, h)
		if ok && s.warm[w.Peer.ID].rows+leaveLag >= s.step.Past {
			continue
		}
		if _, could := s.Standby(at, i, nil); ok || could {
			return false
		}
	}
	return true
}
