// Package p2ptest is a network in memory: peers that open streams to each other,
// with latency, bounded buffers, real deadlines and faults on purpose. Everything
// blocks on channels, so that it runs inside testing/synctest with virtual time.
//
// Invariant: on one stream bytes arrive in the order of their Writes, once or never;
// without a fault or a reset none is lost.
// Start reading at Network; a stream's two halves are in pipe.go.
package p2ptest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// ErrReset is what a stream's calls return after a Reset of either side.
var ErrReset = errors.New("stream reset")

// DefaultBuffer is how many bytes a direction of a stream holds before its writer
// blocks, as a fresh yamux window.
const DefaultBuffer = 256 << 10

// Network joins peers. The zero value is not usable; make one with New, inside the
// synctest bubble if there is one, and Close it there.
type Network struct {
	mu      sync.Mutex
	peers   map[p2p.PeerID]*Peer
	links   map[link]*state
	streams map[*pair]struct{}
	faults  []*Fault
	stats   map[route]*Stats
	trace   func(Sent)
	buffer  int
	changed chan struct{} // closed and replaced when a link or a peer changes
	closed  bool
	wg      sync.WaitGroup // handlers
}

// link is an unordered pair, route a direction.
type link struct{ a, b p2p.PeerID }
type route struct{ from, to p2p.PeerID }

type state struct {
	latency time.Duration
	cut     bool
	hole    bool
	limited bool
}

// New makes an empty network without latency.
func New() *Network {
	return &Network{
		peers:   map[p2p.PeerID]*Peer{},
		links:   map[link]*state{},
		streams: map[*pair]struct{}{},
		stats:   map[route]*Stats{},
		buffer:  DefaultBuffer,
		changed: make(chan struct{}),
	}
}

// SetBuffer bounds each direction of streams opened from now on, in bytes.
func (n *Network) SetBuffer(bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.buffer = max(1, bytes)
}

// Peer gives the peer of that name and adds it if it is not there or was killed.
func (n *Network) Peer(id p2p.PeerID) *Peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.peers[id]; p != nil && !p.dead {
		return p
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Peer{net: n, id: id, ctx: ctx, cancel: cancel, handlers: map[string]p2p.Handler{}}
	n.peers[id] = p
	n.wake()
	return p
}

// wake lets everyone who waits look again. The caller holds mu.
func (n *Network) wake() {
	close(n.changed)
	n.changed = make(chan struct{})
	for p := range n.streams {
		p.wake()
	}
}

func (n *Network) link(a, b p2p.PeerID) *state {
	if b < a {
		a, b = b, a
	}
	s := n.links[link{a, b}]
	if s == nil {
		s = &state{}
		n.links[link{a, b}] = s
	}
	return s
}

// change alters the link between two peers, in both directions.
func (n *Network) change(a, b p2p.PeerID, f func(*state)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n.link(a, b))
	n.wake()
}

// Latency delays what a and b send to each other from now on, one way.
func (n *Network) Latency(a, b p2p.PeerID, oneWay time.Duration) {
	n.change(a, b, func(s *state) { s.latency = oneWay })
}

// Limited marks streams between a and b that are opened from now on as relayed.
func (n *Network) Limited(a, b p2p.PeerID) {
	n.change(a, b, func(s *state) { s.limited = true })
}

// BlackHole stops all bytes between a and b without a word: writers fill their
// buffers, readers wait, Open waits for its context. Heal delivers what is stuck.
func (n *Network) BlackHole(a, b p2p.PeerID) {
	n.change(a, b, func(s *state) { s.hole = true })
}

// Cut resets the streams between a and b, and Open fails at once, until Heal.
func (n *Network) Cut(a, b p2p.PeerID) {
	n.change(a, b, func(s *state) {
		s.cut = true
		n.resetIf(func(p *pair) bool { return p.joins(a) && p.joins(b) })
	})
}

// Heal undoes Cut and BlackHole.
func (n *Network) Heal(a, b p2p.PeerID) {
	n.change(a, b, func(s *state) { s.cut, s.hole = false, false })
}

// Freeze stops a peer as SIGSTOP does: its calls on streams do not return, not even
// for a deadline, and nothing that it would send is sent, until Thaw.
func (n *Network) Freeze(id p2p.PeerID) { n.freeze(id, true) }

// Thaw undoes Freeze.
func (n *Network) Thaw(id p2p.PeerID) { n.freeze(id, false) }

func (n *Network) freeze(id p2p.PeerID, frozen bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.peers[id]; p != nil {
		p.frozen = frozen
		n.wake()
	}
}

// Kill ends a peer as SIGKILL does: its streams are reset, its handlers' contexts
// end, Open to and from it fails. Peer makes a new one of the same name.
func (n *Network) Kill(id p2p.PeerID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peers[id]
	if p == nil || p.dead {
		return
	}
	p.dead, p.frozen = true, false
	p.handlers = map[string]p2p.Handler{} // and what they hold on to
	p.cancel()
	for q := range n.streams {
		for _, s := range []*stream{&q.a, &q.b} {
			if s.peer == p {
				s.abort(time.Now())
			}
		}
	}
	n.wake()
}

// Forget drops a killed peer with its links, counts and name, so that a crowd that
// comes and goes takes no room. To a peer that lives it does nothing.
func (n *Network) Forget(id p2p.PeerID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.peers[id]; p == nil || !p.dead {
		return
	}
	delete(n.peers, id)
	maps.DeleteFunc(n.links, func(l link, _ *state) bool { return l.a == id || l.b == id })
	maps.DeleteFunc(n.stats, func(r route, _ *Stats) bool { return r.from == id || r.to == id })
}

func (n *Network) resetIf(f func(*pair) bool) {
	for p := range n.streams {
		if f(p) {
			p.reset()
		}
	}
}

// Close ends every peer and waits for all handlers. The error names the streams
// that neither side had closed or reset before: somebody forgot one.
func (n *Network) Close() error {
	n.mu.Lock()
	n.closed = true
	var open []string
	for p := range n.streams {
		if p.a.open() && p.b.open() {
			open = append(open, fmt.Sprintf("%s -> %s %s", p.a.peer.id, p.b.peer.id, p.protocol))
		}
	}
	for _, p := range n.peers {
		p.dead, p.frozen = true, false
		p.cancel()
	}
	n.resetIf(func(*pair) bool { return true })
	n.wake()
	n.mu.Unlock()
	n.wg.Wait()
	if len(open) > 0 {
		sort.Strings(open)
		return fmt.Errorf("streams left open: %s", strings.Join(open, ", "))
	}
	return nil
}

// Stats counts what one peer has written to another.
type Stats struct {
	Streams int // opened by the first peer
	Bytes   int64
	Frames  map[wire.Kind]int // whole ones; faults do not change the count
}

// Stats counts in the direction from one peer to another.
func (n *Network) Stats(from, to p2p.PeerID) Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := *n.count(from, to)
	frames := make(map[wire.Kind]int, len(s.Frames))
	for k, v := range s.Frames {
		frames[k] = v
	}
	s.Frames = frames
	return s
}

func (n *Network) count(from, to p2p.PeerID) *Stats {
	s := n.stats[route{from, to}]
	if s == nil {
		s = &Stats{Frames: map[wire.Kind]int{}}
		n.stats[route{from, to}] = s
	}
	return s
}
