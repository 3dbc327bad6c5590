package hop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// ServerConfig is what a peer serves and with what.
type ServerConfig struct {
	Engine   Engine
	Cache    *cache.Store // used by this Server alone; its owner closes it after the Server
	Streamer p2p.Streamer
	Hearts   *Hearts // of this peer, shared by all sessions
	Model    wire.Fingerprint
	Start    int // first layer
	End      int // half-open
	Layers   int // of the whole model
	Hidden   int // values a row
	MaxLen   int // tokens a session may grow to
	// Sign signs as this peer, for heads that check what it computes; nil: it attests nothing.
	Sign   func(msg []byte) ([]byte, error)
	Logger *slog.Logger

	// SessionsPerHead bounds what one head may hold here; 0: 8, as many as a head
	// answers at once. NewPerSecond and NewBurst bound how fast it opens them;
	// 0: 1/s and 8. SessionsPerIP bounds what all heads of one public address hold
	// (0: 16), Sessions what all heads do (0: four for each that the cache holds, at
	// least 64).
	SessionsPerHead int
	SessionsPerIP   int
	Sessions        int
	NewPerSecond    float64
	NewBurst        int

	// KeepSession and KeepBytes bound the bytes of its output that the peer keeps for
	// a session and in all, to feed a hop that takes the next one's place; 0: the
	// constants of these names, or less with a small cache; negative: it keeps nothing.
	KeepSession, KeepBytes int64
}

func (c *ServerConfig) validate() error {
	var faults []error
	fault := func(bad bool, text string) {
		if bad {
			faults = append(faults, errors.New(text))
		}
	}
	fault(c.Engine == nil, "Engine is missing")
	fault(c.Cache == nil, "Cache is missing")
	fault(c.Streamer == nil, "Streamer is missing")
	fault(c.Hearts == nil, "Hearts is missing")
	fault(c.Start < 0 || c.Start >= c.End || c.End > c.Layers, fmt.Sprintf("[%d, %d) is no range of %d layers", c.Start, c.End, c.Layers))
	fault(c.Hidden <= 0 || c.Hidden > wire.MaxHidden, fmt.Sprintf("Hidden is %d", c.Hidden))
	fault(c.MaxLen <= 0 || c.MaxLen > wire.MaxTokens, fmt.Sprintf("MaxLen is %d", c.MaxLen))
	return errors.Join(faults...)
}

const (
	linger    = 1500 * time.Millisecond
	maxOwners = 1024 // heads and addresses whose rate of new sessions is remembered
)

// Server is a peer's end of the activation protocol.
//
// Invariant: s.sessions has at most one session an id, the one of the highest
// epoch seen; a session's cache entry is touched by that session's worker alone.
type Server struct {
	cfg   ServerConfig
	log   *slog.Logger
	loop  *loop
	count counters
	keep  *keeper

	mu       sync.Mutex
	sessions map[wire.SessionID]*session
	changed  chan struct{} // closed and made anew when sessions changes
	draining bool
	closed   bool
	buckets  map[string]bucket
	beats    map[p2p.PeerID]int // heartbeat streams by peer
	handlers sync.WaitGroup
	streams  map[p2p.Stream]struct{}
	stop     chan struct{} // closed by Close: ends the sweeper
	swept    chan struct{}

	opening, parked, beating *crowd
}

// NewServer starts a peer's compute loop. Register Handle for
// p2p.ActivationProtocol and HandleHeartbeat for p2p.HeartbeatProtocol.
func NewServer(cfg ServerConfig) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("new hop server: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.SessionsPerHead == 0 {
		cfg.SessionsPerHead = 8
	}
	if cfg.SessionsPerIP == 0 {
		cfg.SessionsPerIP = perIP
	}
	if cfg.Sessions == 0 {
		cfg.Sessions = max(leastSessions, perCached*cfg.Cache.Stats().MaxSessions)
	}
	if cfg.NewPerSecond == 0 {
		cfg.NewPerSecond = 1
	}
	if cfg.NewBurst == 0 {
		cfg.NewBurst = 8
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, loop: newLoop(cfg.Engine), keep: newKeeper(cfg.KeepSession, cfg.KeepBytes, cfg.Cache.Stats().MaxBytes),
		sessions: map[wire.SessionID]*session{}, changed: make(chan struct{}),
		buckets: map[string]bucket{}, beats: map[p2p.PeerID]int{}, streams: map[p2p.Stream]struct{}{},
		stop: make(chan struct{}), swept: make(chan struct{}),
		opening: newCrowd(maxOpening, maxOpeningEach), parked: newCrowd(maxParked, maxParkedEach), beating: newCrowd(maxBeats, maxBeatsEach),
	}
	go s.sweep()
	return s, nil
}

// sweep frees expired cache entries that nobody asks for, and sessions of heads
// that do not beat.
func (s *Server) sweep() {
	defer close(s.swept)
	every := min(max(s.cfg.Cache.Stats().TTL/4, 100*time.Millisecond), 2*time.Second)
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if n := s.cfg.Cache.Sweep(); n > 0 {
				s.log.Info("cache entries expired", "count", n)
			}
			s.endQuiet(time.Now())
			s.endIdle(time.Now())
		case <-s.stop:
			return
		}
	}
}

// Close ends all sessions and returns when every goroutine has ended. It may be
// called once.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for st := range s.streams {
		_ = st.Reset()
	}
	for _, ss := range s.sessions {
		ss.end(errStopped)
	}
	s.broadcast()
	s.mu.Unlock()
	s.handlers.Wait()
	close(s.stop)
	<-s.swept
	s.loop.stop()
	return nil
}

// enter counts a handler and its stream in, or says that the server is closed.
func (s *Server) enter(st p2p.Stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.handlers.Add(1)
	s.streams[st] = struct{}{}
	return true
}

func (s *Server) leave(st p2p.Stream) {
	s.mu.Lock()
	delete(s.streams, st)
	s.mu.Unlock()
	s.handlers.Done()
}

// Handle serves one incoming activation stream: a head's, or the link of the hop
// before. It is a p2p.Handler.
func (s *Server) Handle(ctx context.Context, st p2p.Stream) {
	if !s.enter(st) {
		_ = st.Reset()
		return
	}
	defer s.leave(st)
	defer context.AfterFunc(ctx, func() { _ = st.Reset() })()
	if !s.opening.enter(st.Remote()) {
		s.count.crowded.Add(1)
		_ = st.Reset()
		return
	}
	c := newConn(st)
	f, err := c.readWithin(openTimeout)
	s.opening.leave(c.peer)
	if err != nil {
		var bad *wire.BadError
		if errors.As(err, &bad) {
			s.refuse(c, &wire.Open{}, refusal{code: bad.Code, text: bad.Error()})
			return
		}
		_ = st.Reset()
		return
	}
	o, ok := f.(*wire.Open)
	switch {
	case !ok:
		s.refuse(c, &wire.Open{}, refusal{code: wire.CodeBadFrame, text: fmt.Sprintf("a stream begins with OPEN, not %v", f.Kind())})
	case st.Limited():
		s.refuse(c, o, refusal{code: wire.CodeLimited, text: "activations don't cross a limited relay circuit"})
	case o.Role == wire.RoleLink:
		s.serveLink(ctx, c, o)
	default:
		s.serveHead(ctx, c, o)
	}
}

// refusal is the answer to an OPEN that is not done.
type refusal struct {
	code  wire.Code
	retry time.Duration
	text  string
}

// refuse answers and ends a stream.
func (s *Server) refuse(c *conn, o *wire.Open, r refusal) {
	err := c.write(&wire.Error{Session: o.Session, Epoch: o.Epoch, Code: r.code, Retry: uint32(r.retry.Milliseconds()), Text: r.text}, 0)
	s.count.refuse(r.code)
	s.log.Info("refused a stream", "peer", c.peer.Short(), "code", r.code.String(), "why", r.text)
	if err == nil {
		_ = c.s.Close()
		return
	}
	_ = c.s.Reset()
}

// check says why an OPEN can't be served, or nil.
func (s *Server) check(o *wire.Open) *refusal {
	switch {
	case o.Model != s.cfg.Model:
		return &refusal{code: wire.CodeWrongModel, text: fmt.Sprintf("serves model %x", s.cfg.Model[:4])}
	case int(o.Start) < s.cfg.Start || int(o.End) > s.cfg.End:
		return &refusal{code: wire.CodeWrongRange, text: fmt.Sprintf("serves layers [%d, %d)", s.cfg.Start, s.cfg.End)}
	case int(o.Hidden) != s.cfg.Hidden:
		return &refusal{code: wire.CodeBadShape, text: fmt.Sprintf("rows have %d values", s.cfg.Hidden)}
	case !s.cfg.Engine.CacheTypes().Has(o.CacheType):
		return &refusal{code: wire.CodeWrongCache, text: fmt.Sprintf("keeps caches of the types %s, not %v", strings.Join(s.cfg.Engine.CacheTypes().Names(), ", "), o.CacheType)}
	case int(o.MaxLen) > s.cfg.MaxLen:
		return &refusal{code: wire.CodeTooLong, text: fmt.Sprintf("sessions of at most %d tokens", s.cfg.MaxLen)}
	}
	return nil
}

// register makes a session of a head's OPEN and returns the one that it replaces,
// ended, if there is one.
func (s *Server) register(c *conn, o *wire.Open) (ss, old *session, no *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := string(c.peer)
	old = s.sessions[o.Session]
	switch {
	case s.closed || s.draining && old == nil: // who is here already may change its route meanwhile
		return nil, nil, &refusal{code: wire.CodeDraining, text: "leaving the mesh"}
	case old != nil && old.owner != owner:
		return nil, nil, &refusal{code: wire.CodeNotOwner, text: "the session belongs to another head"}
	case old != nil && o.Epoch <= old.open.Epoch:
		return nil, nil, &refusal{code: wire.CodeStaleEpoch, text: fmt.Sprintf("epoch %d was seen", old.open.Epoch)}
	case old == nil:
		if no := s.admitNew(owner, p2p.Origin(c.s)); no != nil {
			return nil, nil, no
		}
	}
	s.count.opened.Add(1)
	ss = newSession(s, c, o)
	s.sessions[o.Session] = ss
	if old != nil {
		old.replaced = true
		old.end(errReplaced)
	}
	s.broadcast()
	return ss, old, nil
}

// broadcast wakes whoever waits for a session. The lock is held.
func (s *Server) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// forget drops a session that is over, with its cache, unless a newer epoch has it.
func (s *Server) forget(ss *session) {
	s.mu.Lock()
	mine := s.sessions[ss.open.Session] == ss
	if mine {
		delete(s.sessions, ss.open.Session)
		s.broadcast()
	}
	s.mu.Unlock()
	if mine {
		s.cfg.Cache.Drop(ss.open.Session)
		s.keep.forget(ss.open.Session)
	}
}

// serveLink attaches the stream of the hop before to its session, as soon as the
// head has opened that, and reads it.
func (s *Server) serveLink(ctx context.Context, c *conn, o *wire.Open) {
	if no := s.checkLink(o); no != nil {
		s.refuse(c, o, *no)
		return
	}
	ss, no := s.park(ctx, c, o)
	if no != nil {
		s.refuse(c, o, *no)
		return
	}
	defer ss.readers.Done()
	if err := c.write(&wire.Ready{Session: o.Session, Epoch: o.Epoch, Credit: Window}, 0); err != nil {
		return
	}
	err := ss.read(c, false)
	if errors.Is(err, io.EOF) || context.Cause(ss.ctx) == errClosed {
		_ = c.s.Close()
		return
	}
	_ = c.s.Reset()
}

func (s *Server) checkLink(o *wire.Open) *refusal {
	if o.Model != s.cfg.Model || int(o.Hidden) != s.cfg.Hidden {
		return &refusal{code: wire.CodeWrongModel, text: fmt.Sprintf("serves model %x", s.cfg.Model[:4])}
	}
	return nil
}

// park waits until the head's OPEN for the link's session and epoch is here, and
// attaches the link if that names this peer as the one before.
func (s *Server) park(ctx context.Context, c *conn, o *wire.Open) (*session, *refusal) {
	if !s.parked.enter(c.peer) {
		return nil, &refusal{code: wire.CodeBusy, retry: time.Second, text: "too many links wait"}
	}
	defer s.parked.leave(c.peer)
	s.mu.Lock()
	defer s.mu.Unlock()
	late := time.NewTimer(parkTimeout)
	defer late.Stop()
	for {
		ss := s.sessions[o.Session]
		switch {
		case s.closed:
			return nil, &refusal{code: wire.CodeDraining, text: "stopping"}
		case ss != nil && ss.open.Epoch > o.Epoch:
			return nil, &refusal{code: wire.CodeStaleEpoch, text: "the session is in a later epoch"}
		case ss != nil && ss.open.Epoch == o.Epoch:
			if ss.open.Prev != string(c.peer) || ss.open.Start != o.End {
				return nil, &refusal{code: wire.CodeNotOwner, text: "the head names another peer as the one before"}
			}
			if !ss.attach(c) {
				return nil, &refusal{code: wire.CodeBadFrame, text: "the link stands already, or the session is over"}
			}
			return ss, nil
		}
		changed := s.changed
		s.mu.Unlock()
		timeout := false
		select {
		case <-changed:
		case <-late.C:
			timeout = true
		case <-ctx.Done():
			timeout = true
		}
		s.mu.Lock()
		if timeout {
			return nil, &refusal{code: wire.CodeNotOwner, text: "no head opened this session here"}
		}
	}
}

const maxGrace = 30 * time.Second // that a LEAVING promises

// Pause refuses new sessions and tells the heads of the present ones, which move to others if there are any; those that
// find none are served on.
func (s *Server) Pause() { s.sendAway(maxGrace) }

// Resume takes new sessions again. After Drain it is not to be called.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = false
}

// Drain refuses new sessions, tells the heads of the present ones, and waits until
// they are gone or ctx ends, whose error it returns then.
func (s *Server) Drain(ctx context.Context) error {
	grace := maxGrace
	if d, ok := ctx.Deadline(); ok {
		grace = min(max(time.Until(d), 0), maxGrace)
	}
	s.sendAway(grace)
	for {
		s.mu.Lock()
		n, changed := len(s.sessions), s.changed
		s.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("drain: %d sessions are left: %w", n, ctx.Err())
		}
	}
}

// sendAway refuses new sessions and tells the heads of the present ones.
func (s *Server) sendAway(grace time.Duration) {
	s.mu.Lock()
	s.draining = true
	live := make([]*session, 0, len(s.sessions))
	for _, ss := range s.sessions {
		live = append(live, ss)
	}
	s.mu.Unlock()
	for _, ss := range live {
		_ = ss.head.write(&wire.Leaving{Session: ss.open.Session, Epoch: ss.open.Epoch, Grace: uint32(grace.Milliseconds())}, 0)
	}
}

// endQuiet ends the sessions of heads that have had no heartbeat stream for too
// long: one that vanished before its first beat would keep its cache for ever.
func (s *Server) endQuiet(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ss := range s.sessions {
		if s.beats[p2p.PeerID(ss.owner)] == 0 && now.Sub(ss.quiet) > beatless {
			ss.end(errHeadLost)
		}
	}
}

// ownerLost ends the sessions of a head that stopped beating.
func (s *Server) ownerLost(owner p2p.PeerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ss := range s.sessions {
		if ss.owner == string(owner) {
			ss.end(errHeadLost)
		}
	}
}
