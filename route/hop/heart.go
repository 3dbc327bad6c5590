package hop

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// Hearts watches peers by heartbeats: one stream a peer, however many sessions
// watch it. Make one a process.
//
// Invariant: m has exactly the hearts with watchers that are not yet dead; a dead
// one is not revived, the next Watch opens another stream.
type Hearts struct {
	streamer p2p.Streamer
	log      *slog.Logger

	mu     sync.Mutex
	m      map[p2p.PeerID]*heart
	rtt    map[p2p.PeerID]time.Duration
	wg     sync.WaitGroup
	closed bool
}

type heart struct {
	peer     p2p.Peer
	watchers int
	cancel   context.CancelFunc
	dead     chan struct{}
	ask      chan struct{} // capacity 1: ping now
	heard    time.Time     // the last answer; under Hearts.mu
}

// Beat is one watch of a peer.
type Beat struct {
	h    *Hearts
	on   *heart
	once sync.Once
}

// maxRTT bounds the peers whose round trip is remembered.
const maxRTT = 1024

// NewHearts returns a Hearts that watches nobody. The logger may be nil.
func NewHearts(s p2p.Streamer, log *slog.Logger) *Hearts {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Hearts{streamer: s, log: log, m: map[p2p.PeerID]*heart{}, rtt: map[p2p.PeerID]time.Duration{}}
}

// Watch begins to watch a peer, or joins those who do. Stop it.
func (h *Hearts) Watch(peer p2p.Peer) *Beat {
	h.mu.Lock()
	defer h.mu.Unlock()
	on := h.m[peer.ID]
	if on == nil {
		ctx, cancel := context.WithCancel(context.Background())
		on = &heart{peer: peer, cancel: cancel, dead: make(chan struct{}), ask: make(chan struct{}, 1)}
		if h.closed {
			cancel()
			close(on.dead)
			return &Beat{h: h, on: on}
		}
		h.m[peer.ID] = on
		h.protect(peer.ID, "heart")
		h.wg.Add(1)
		go h.run(ctx, on)
	} else {
		select {
		case on.ask <- struct{}{}: // whoever begins to watch wants to know now
		default:
		}
	}
	on.watchers++
	return &Beat{h: h, on: on}
}

// Dead is closed when the peer was silent for 3 s, or its stream broke.
func (b *Beat) Dead() <-chan struct{} { return b.on.dead }

// HeardSince says that the peer gave an answer after a time.
func (b *Beat) HeardSince(t time.Time) bool {
	b.h.mu.Lock()
	defer b.h.mu.Unlock()
	return b.on.heard.After(t)
}

// Stop ends the watch. It may be called again.
func (b *Beat) Stop() {
	b.once.Do(func() {
		b.h.mu.Lock()
		defer b.h.mu.Unlock()
		if b.on.watchers--; b.on.watchers <= 0 {
			b.on.cancel()
			b.h.remove(b.on)
		}
	})
}

// remove ends a heart for those who come later. The lock is held.
func (h *Hearts) remove(on *heart) {
	if h.m[on.peer.ID] == on {
		delete(h.m, on.peer.ID)
		h.unprotect(on.peer.ID, "heart")
	}
}

// protector is a host that closes idle connections, and can be told which are not.
type protector interface {
	Protect(id p2p.PeerID, tag string)
	Unprotect(id p2p.PeerID, tag string)
}

// protect keeps the connection to a peer open for a reason.
func (h *Hearts) protect(id p2p.PeerID, tag string) {
	if p, ok := h.streamer.(protector); ok {
		p.Protect(id, tag)
	}
}

func (h *Hearts) unprotect(id p2p.PeerID, tag string) {
	if p, ok := h.streamer.(protector); ok {
		p.Unprotect(id, tag)
	}
}

// RTTs are the last measured round trips of the peers watched so far.
func (h *Hearts) RTTs() map[p2p.PeerID]time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := make(map[p2p.PeerID]time.Duration, len(h.rtt))
	for k, v := range h.rtt {
		m[k] = v
	}
	return m
}

// Close ends all watches, whose peers count as dead, and waits for them.
func (h *Hearts) Close() {
	h.mu.Lock()
	h.closed = true
	for _, on := range h.m {
		on.cancel()
	}
	h.mu.Unlock()
	h.wg.Wait()
}

func (h *Hearts) run(ctx context.Context, on *heart) {
	defer h.wg.Done()
	err := h.beat(ctx, on)
	if ctx.Err() == nil {
		h.log.Info("peer lost", "peer", on.peer.ID.Short(), "err", err)
		// A connection to a peer that vanished looks alive for half a minute on some
		// transports, and whoever dials meanwhile would hang on it.
		if d, ok := h.streamer.(interface{ Drop(p2p.PeerID) }); ok {
			d.Drop(on.peer.ID)
		}
	}
	h.mu.Lock()
	h.remove(on)
	h.mu.Unlock()
	on.cancel()
	close(on.dead)
}

// beat pings a peer every second until it is silent for 3 s, or ctx ends.
func (h *Hearts) beat(ctx context.Context, on *heart) error {
	dial, cancel := context.WithTimeout(ctx, beatDead)
	st, err := h.streamer.Open(dial, on.peer, p2p.HeartbeatProtocol)
	cancel()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = st.Close() })()
	c := newConn(st)
	sent := make(map[uint64]time.Time)
	var mu sync.Mutex
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		t := time.NewTicker(beatEvery)
		defer t.Stop()
		for n := uint64(1); ; n++ {
			mu.Lock()
			if len(sent) < 16 {
				sent[n] = time.Now()
			}
			mu.Unlock()
			if c.write(&wire.Ping{Nonce: n}, 0) != nil {
				return
			}
			select {
			case <-t.C:
			case <-on.ask:
			case <-stop:
				return
			}
		}
	}()
	err = h.listen(c, on, sent, &mu)
	if ctx.Err() == nil { // a stream closed on purpose must not look broken to the peer
		_ = st.Reset()
	}
	close(stop)
	<-stopped
	return err
}

// listen takes the answers to pings and their round trips.
func (h *Hearts) listen(c *conn, on *heart, sent map[uint64]time.Time, mu *sync.Mutex) error {
	for {
		f, err := c.readWithin(beatDead)
		if err != nil {
			return err
		}
		p, ok := f.(*wire.Ping)
		if !ok || !p.Reply {
			return errors.New("no answer to a ping")
		}
		mu.Lock()
		at, ok := sent[p.Nonce]
		delete(sent, p.Nonce)
		mu.Unlock()
		if !ok {
			continue
		}
		h.mu.Lock()
		on.heard = time.Now()
		if _, known := h.rtt[on.peer.ID]; known || len(h.rtt) < maxRTT {
			h.rtt[on.peer.ID] = time.Since(at)
		}
		h.mu.Unlock()
	}
}

// HandleHeartbeat answers a peer's heartbeats. A peer that falls silent without
// closing the stream is a head that died: its sessions end. It is a p2p.Handler.
func (s *Server) HandleHeartbeat(ctx context.Context, st p2p.Stream) {
	if !s.enter(st) {
		_ = st.Reset()
		return
	}
	defer s.leave(st)
	defer context.AfterFunc(ctx, func() { _ = st.Reset() })()
	if !s.beating.enter(st.Remote()) {
		s.count.crowded.Add(1)
		_ = st.Reset()
		return
	}
	defer s.beating.leave(st.Remote())
	c := newConn(st)
	s.beat(c.peer, 1)
	for {
		f, err := c.readWithin(beatDead)
		if errors.Is(err, io.EOF) {
			s.beat(c.peer, -1)
			_ = st.Close()
			return
		}
		p, ok := f.(*wire.Ping)
		if err == nil && (!ok || p.Reply) {
			err = errors.New("not a ping")
		}
		if err == nil {
			p.Reply = true
			err = c.write(p, 0)
		}
		if err != nil {
			_ = st.Reset()
			if s.beat(c.peer, -1) == 0 {
				s.ownerLost(c.peer)
			}
			return
		}
	}
}

// beat counts the heartbeat streams of a peer.
func (s *Server) beat(peer p2p.PeerID, n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.beats[peer] += n; s.beats[peer] == 0 {
		delete(s.beats, peer)
		for _, ss := range s.sessions {
			if ss.owner == string(peer) {
				ss.quiet = time.Now()
			}
		}
	}
	return s.beats[peer]
}
