package route

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// failure decides what a failed Open or Send means.
func (s *Session) failure(at time.Duration, f Failure) []Action {
	if f.Code == wire.CodeTooLong {
		return s.fail(fmt.Errorf("hop %d, %s: the session is longer than it accepts (%s)", f.Hop, f.Peer.Short(), codeText(f)))
	}
	filling := s.filling
	s.filling = false
	if filling && f.Code == wire.CodeCacheMiss {
		// Whoever should have fed the hop did not keep enough, or the hop lost its
		// cache once more. What is still under way has a Seq from before the next.
		if f.Hop == s.fill {
			s.held[f.Hop] = min(s.held[f.Hop], max(f.Held, 0))
		} else {
			s.computed(s.held[s.fill] - s.step.Past) // nothing was: it keeps all or none
		}
		s.plain, s.last = true, Send{}
		return s.send(at)
	}
	if filling && f.Silent {
		s.plain = true // who of the two was at fault can't be told: no second time
	}
	if f.Code == wire.CodeCacheMiss && s.phase == sending && !s.cfg.Stateless && f.Hop >= 0 && f.Hop < len(s.held) {
		s.missed++
		if s.misses++; s.misses <= maxMisses {
			s.disturbed(at, f, "cache miss")
			s.held[f.Hop] = min(s.held[f.Hop], max(f.Held, 0))
			// A second hop in one step: most likely all of them lost it.
			s.plain = s.misses > 1
			return s.send(at)
		}
		f.Text = "loses the session's cache again and again"
	}
	if stood := s.phase == sending; stood && (f.Silent || f.Code == wire.CodeDeadline) {
		s.patience++
		s.late[f.Peer]++
		s.wasted += at - s.sentAt
		if s.wasted > lateMost || s.late[f.Peer] >= maxLatePeer {
			return s.fail(fmt.Errorf("gave up after %d deadlines missed within one step, the last of them for %s: %s", s.patience, Ranges([][2]int{s.spanOf(f)}), f.Peer.Short()))
		}
	}
	if filling && s.phase == sending && f.Hop != s.fill {
		s.held[s.fill] = max(s.held[s.fill], s.step.Past/2) // it holds some by now; how much, it says when opened
	}
	cause := s.blame(at, f)
	stood := s.phase == sending
	if stood {
		s.disturbed(at, f, cause)
		// A full peer did nothing wrong: sessions take turns there.
		if f.Code != wire.CodeBusy {
			lost := f.Code == 0 && !f.Silent
			if err := s.spend(at, f, cause, filling && lost); err != nil {
				return s.fail(err)
			}
		}
	}
	s.lose(at)
	said := cause
	if f.Text != "" {
		said += ": " + f.Text
	}
	acts := s.say(SayReroute, fmt.Sprintf("%s (hop %d): %s, looking for another route", f.Peer.Short(), f.Hop, said))
	return append(acts, s.plan(at)...)
}

// blame bans whoever failed, or remembers that a link is down, and names the cause.
func (s *Session) blame(at time.Duration, f Failure) (cause string) {
	ban := func(cause string) string {
		s.disappointed(f.Peer, at)
		if !s.cfg.Bans.Now(at)[f.Peer] {
			s.cfg.Bans.Ban(f.Peer, at)
		}
		return cause
	}
	switch f.Code {
	case 0:
		if f.Silent && s.phase == opening {
			s.disappointed(f.Peer, at)
			s.cfg.Bans.Doubt(f.Peer, at+slowDoubt)
			return "no sign of life"
		}
		if f.Silent {
			return ban("deadline")
		}
		s.disappointed(f.Peer, at)
		var seq uint64
		for _, o := range s.view.Offers {
			if o.Peer == string(f.Peer) {
				seq = max(seq, o.Seq)
			}
		}
		s.cfg.Bans.Lost(f.Peer, seq, at)
		return "peer lost"
	case wire.CodeLinkDown:
		if f.Next != "" && !s.down[[2]p2p.PeerID{f.Peer, f.Next}] {
			s.sever(f.Peer, f.Next, at)
			return "link down"
		}
		return ban("link down")
	case wire.CodeBusy:
		s.cfg.Bans.Rest(f.Peer, at+f.Retry, at)
		t := s.tries[f.Peer]
		if s.phase == sending { // sessions take turns there
			t.n = 0
		}
		s.tries[f.Peer] = t.again(at)
		return "busy"
	case wire.CodeCacheMiss:
		return ban("cache miss")
	case wire.CodeDraining:
		return ban("draining")
	case wire.CodeDeadline:
		// It lives, has work of others before ours, and keeps what it has of ours: asked
		// again with more time it is nearer to the end than anybody else.
		if s.late[f.Peer] == 1 {
			return "deadline"
		}
		return ban("deadline")
	case wire.CodeBadShape, wire.CodeNotFinite:
		return ban("bad data")
	}
	// Codes that call it our own fault come here too. A stranger's word is no
	// proof, so somebody else is asked; if it is true, the budget ends it.
	return ban(fmt.Sprintf("refused (%v)", f.Code))
}

// try is what failed with one peer since a step was answered.
type try struct {
	bad  int           // how often it disappointed: whoever did less comes first
	n    int           // how often it was of no use
	next time.Duration // when it may be asked again in spite of its ban
}

// again counts one more failure.
func (t try) again(at time.Duration) try {
	t.next = at + min(retryMost, retryFirst<<min(t.n, 8))
	t.n++
	return t
}

func (s *Session) disappointed(id p2p.PeerID, at time.Duration) {
	t := s.tries[id].again(at)
	t.bad++
	s.tries[id] = t
}

// sever has the head forward between two peers, for this session and, for a while,
// for the head's others.
func (s *Session) sever(from, to p2p.PeerID, at time.Duration) {
	s.down[[2]p2p.PeerID{from, to}] = true
	s.cfg.Bans.Sever(from, to, at)
}

func codeText(f Failure) string {
	if f.Text != "" {
		return f.Code.String() + ": " + f.Text
	}
	return f.Code.String()
}

// spent are the re-routes of one range of layers since a step was answered.
type spent struct {
	n    int           // not forgiven
	last time.Duration // when n changed
}

// spend takes a re-route from the budgets: from that of all ranges alone if a peer was
// lost while rows that were answered before were computed again. They broke nobody then.
func (s *Session) spend(at time.Duration, f Failure, cause string, again bool) error {
	span := s.spanOf(f)
	b := s.spans[span]
	if gone := int((at - b.last) / forgiveAfter); gone > 0 {
		b.n, b.last = max(b.n-gone, 0), at
	}
	if b.n == 0 {
		b.last = at
	}
	if !again {
		b.n++
	}
	s.spans[span] = b
	s.reroutes++
	if s.reroutes > maxReroutes || b.n > maxSpanReroutes {
		return fmt.Errorf("gave up after %d re-routes within one step, the last of them for %s: %s, %s", s.reroutes-1, Ranges([][2]int{span}), f.Peer.Short(), cause)
	}
	return nil
}

// spanOf are the layers of the hop that failed; all if it is not known.
func (s *Session) spanOf(f Failure) [2]int {
	if f.Hop >= 0 && f.Hop < len(s.route.Hops) {
		return [2]int{s.route.Hops[f.Hop].Start, s.route.Hops[f.Hop].End}
	}
	return [2]int{0, s.cfg.Layers}
}

// lose starts the search for a route, and its clock if it does not run.
func (s *Session) lose(at time.Duration) {
	if !s.lost {
		s.lost, s.lostAt = true, at
		s.said = map[string]bool{}
	}
}

// say tells the client what it was not told in this search.
func (s *Session) say(k SayKind, text string) []Action {
	if s.said[text] {
		return nil
	}
	s.said[text] = true
	return []Action{Say{k, text}}
}

func (s *Session) query(at time.Duration, pardon map[p2p.PeerID]bool) Query {
	banned := s.cfg.Bans.Now(at)
	maps.Copy(banned, s.leaving)
	maps.DeleteFunc(banned, func(id p2p.PeerID, _ bool) bool { return pardon[id] })
	links := append(slices.Clone(s.view.Links), s.cfg.Bans.Severed(at)...)
	for pair := range s.down {
		links = append(links, Link{From: pair[0], To: pair[1], Down: true})
	}
	doubts := s.cfg.Bans.Doubts(at)
	for id, t := range s.tries {
		doubts[id] += t.bad
	}
	return Query{Layers: s.cfg.Layers, Model: s.cfg.Model, Offers: s.view.Offers, Links: links, Banned: banned, Doubts: doubts, Head: s.cfg.Head, Cache: s.cfg.Cache}
}

// plan opens the best route, or waits for one.
func (s *Session) plan(at time.Duration) []Action {
	r, err := s.best(s.query(at, nil))
	why, until := err, s.lostAt+routeWait
	var gap *GapError
	if errors.As(err, &gap) && gap.Banned {
		// The last holders of a layer are banned. They are asked again, those that
		// failed in this step ever more rarely: without them there is no answer at all.
		pardon := map[p2p.PeerID]bool{}
		for _, n := range gap.Near {
			if s.cfg.Bans.Liar(n.Peer, at) {
				continue // no answer is better than another one
			}
			if next := s.tries[n.Peer].next; next > at {
				until = min(until, next)
			} else {
				pardon[n.Peer] = true
			}
		}
		if len(pardon) > 0 {
			r, err = s.best(s.query(at, pardon))
		}
	}
	if why == nil {
		why = errors.New("no route held")
	}
	switch {
	case at >= s.lostAt+routeWait:
		return s.fail(fmt.Errorf("no route for %v: %w", routeWait, why))
	case err == nil:
		return []Action{s.open(at, r)}
	}
	s.phase = waiting
	return append(s.say(SayWaiting, why.Error()+": waiting"), Wait{until})
}

func (s *Session) open(at time.Duration, r Route) Action {
	s.epoch++
	s.route, s.phase = r, opening
	return Open{Epoch: s.epoch, Route: r, Within: max(min(openMost, s.lostAt+routeWait-at), 0), Signs: s.signs(at, r)}
}

// signs is how long to wait for a sign of life of each hop. It is short for a peer of
// known distance that others can stand in for: that it was frozen or cut off a moment
// ago nobody may have noticed yet, and to find out takes seconds.
func (s *Session) signs(at time.Duration, r Route) []time.Duration {
	signs := make([]time.Duration, len(r.Hops))
	for i, h := range r.Hops {
		micros := uint32(0)
		for _, l := range s.view.Links {
			if l.From == s.cfg.Head && l.To == h.Peer.ID && !l.Down {
				micros = l.Micros
			}
		}
		if micros == 0 || s.tries[h.Peer.ID].n > 0 {
			continue
		}
		q := s.query(at, nil)
		q.Banned[h.Peer.ID] = true
		if _, err := Plan(q); err == nil {
			signs[i] = signLeast + 4*time.Duration(micros)*time.Microsecond // to dial takes that many round trips
		}
	}
	return signs
}
