package sim

import (
	"fmt"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
)

// kind is what a strike does.
type kind uint8

const (
	kill    kind = iota // a peer dies and does not come back; its offer is still believed
	restart             // it dies and comes back a moment later, with nothing
	freeze              // it stands still, and so do its streams
	nap                 // it does so until others have taken its place, and then goes on where it was
	evict               // it drops all caches
	leave               // it drains
	cut                 // the link is reset and refuses
	hole                // the link swallows everything and tells nobody
	blink               // it does so until others are used, and then delivers it all
	half                // the stream is reset before, within or after the frame
	kinds
)

func (k kind) String() string {
	return [...]string{"kill", "restart", "freeze", "nap", "evict", "leave", "cut", "hole", "blink", "half"}[k]
}

// while is how long a nap or a blink lasts: a little more than what makes a peer a lost one.
const while = 3300 * time.Millisecond

// ofPeer says that the strike is at a peer, and not at what is between two.
func (k kind) ofPeer() bool { return k < cut }

// border is a place in the traffic: at the nth frame (or Open) from one peer to
// another, counted since the strike was armed.
type border struct {
	from, to p2p.PeerID
	protocol string
	opens    bool
	nth      int
	at       p2ptest.Border
	what     wire.Kind // where it is known: for people
}

// passes says that the strike ends while the chat may still go on.
func (k kind) passes() bool { return k == nap || k == blink }

// strike is one fault.
type strike struct {
	border
	kind   kind
	victim p2p.PeerID // of a kind that is of a peer
}

func (s strike) String() string {
	at := [...]string{p2ptest.After: "after", p2ptest.Middle: "in", p2ptest.Before: "before"}[s.at]
	what := "frame"
	if s.opens {
		what = "open"
	} else if s.what != 0 {
		what = s.what.String() + ", frame"
	}
	return fmt.Sprintf("%v %s %s %s %d of %s to %s (%s)", s.kind, s.victim, at, what, s.nth, s.from, s.to, short(s.protocol))
}

// arm makes a strike wait for its border; those after it wait for it.
func (m *mesh) arm(i int) {
	if i >= len(m.scene.strikes) {
		return
	}
	s := m.scene.strikes[i]
	f := p2ptest.Fault{From: s.from, To: s.to, Protocol: s.protocol, Opens: s.opens, Nth: s.nth, At: s.at}
	if s.kind == half {
		f.Do = [...]p2ptest.Action{p2ptest.After: p2ptest.ResetAfter, p2ptest.Middle: p2ptest.ResetMiddle, p2ptest.Before: p2ptest.ResetBefore}[s.at]
		if s.opens {
			f.Do = p2ptest.ResetBefore
		}
	}
	f.On = func(n *p2ptest.Network, _ p2ptest.Sent) {
		m.mu.Lock()
		m.out.struck++
		m.say(s)
		m.mu.Unlock()
		m.strike(n, s)
		m.arm(i + 1)
	}
	m.Net.Fault(f)
}

// strike strikes, in the goroutine of who sends: whatever waits does so elsewhere. Once
// the mesh is being closed it does nothing.
func (m *mesh) strike(n *p2ptest.Network, s strike) {
	m.mu.Lock()
	if m.over {
		m.mu.Unlock()
		return
	}
	m.later.Add(1)
	m.mu.Unlock()
	defer m.later.Done()
	switch s.kind {
	case kill, restart:
		m.mu.Lock()
		was := m.down[s.victim]
		m.down[s.victim] = true
		m.mu.Unlock()
		if was {
			return
		}
		n.Kill(s.victim)
		m.later.Go(func() {
			m.Kill(s.victim)
			if s.kind == kill {
				return
			}
			time.Sleep(50 * time.Millisecond)
			for _, p := range spans {
				if p.id == s.victim {
					m.Join(p.id, p.start, p.end)
				}
			}
			m.mu.Lock()
			delete(m.down, s.victim)
			m.mu.Unlock()
		})
	case freeze, nap:
		n.Freeze(s.victim)
		if s.kind == nap {
			m.later.Go(func() { time.Sleep(while); n.Thaw(s.victim) })
		}
	case evict:
		if v := m.Peer(s.victim); v != nil {
			m.later.Go(func() { _, _ = v.Server.Evict("all") })
		}
	case leave:
		if v := m.Peer(s.victim); v != nil {
			m.later.Go(func() {
				o := v.Offer
				o.State = wire.Draining
				m.Dir.Put(o)
				v.Server.Pause()
			})
		}
	case cut:
		n.Cut(s.from, s.to)
	case hole, blink:
		n.BlackHole(s.from, s.to)
		if s.kind == blink {
			m.later.Go(func() { time.Sleep(while); n.Heal(s.from, s.to) })
		}
	}
}
