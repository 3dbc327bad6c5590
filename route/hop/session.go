package hop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

var (
	errReplaced = errors.New("replaced by a later epoch")
	errHeadLost = errors.New("the head stopped beating")
	errClosed   = errors.New("closed by the head")
	errEnded    = errors.New("the head's stream ended")
	errIdle     = errors.New("nothing came for too long")
)

// maxInbox bounds the frames that wait; credit bounds their bytes well before
// unless rows are tiny.
const maxInbox = 1024

// session is one epoch of one session on this peer.
//
// Its goroutines: the reader of the head's stream (the host's, in serveHead), that
// of the link of the hop before (in serveLink), its worker, and the watcher and
// reader of the link to the next hop. end stops them all.
type session struct {
	srv   *Server
	open  *wire.Open
	owner string // the head's peer id
	from  netip.Prefix
	head  *conn

	ctx     context.Context
	cancel  context.CancelCauseFunc
	readers sync.WaitGroup // of links
	stopped chan struct{}  // closed when the worker has ended
	// Under srv.mu:
	replaced bool      // a later epoch has taken the cache entry over
	quiet    time.Time // the head has had no heartbeat stream since, if it has none

	mu     sync.Mutex
	ended  bool
	prev   *conn
	next   *conn // nil: the output goes to the head
	broken bool  // the link to next failed in this epoch
	inbox  []item
	full   chan struct{} // something is in the inbox

	kept    *kept  // the worker's; nil after the last layer
	saved   saved  // the worker's; taken over by a later epoch over the same layers
	chains  chains // as saved, but of the same dtype too
	attests atomic.Int32

	came                 atomic.Int64 // unix ns of the last activation
	lastSeq              atomic.Uint32
	frames, rows, micros atomic.Uint64
	in                   atomic.Uint64 // bytes of frames: an activation's count when it was applied, as it does in frames
}

// item is an activation on its way from a reader to the worker.
type item struct {
	act    *wire.Activation // without its payload
	ask    *wire.Resend     // instead of all but from and at
	attest *wire.Attest     // instead of all but from
	x      []float32
	size   int // bytes of payload
	wire   int // bytes of the whole frame
	from   *conn
	at     time.Time
}

// saved is the answer to the step that was applied last.
type saved struct {
	seq, past, rows uint32
	x               []float32
}

func newSession(s *Server, c *conn, o *wire.Open) *session {
	ctx, cancel := context.WithCancelCause(context.Background())
	ss := &session{
		srv: s, open: o, owner: string(c.peer), from: p2p.Origin(c.s), head: c, ctx: ctx, cancel: cancel,
		stopped: make(chan struct{}), full: make(chan struct{}, 1), quiet: time.Now(),
	}
	ss.came.Store(time.Now().UnixNano())
	return ss
}

// serveHead makes this peer a hop of the head's session and returns when the
// session is over and its cache freed, or taken over by a later epoch.
func (s *Server) serveHead(ctx context.Context, c *conn, o *wire.Open) {
	if no := s.check(o); no != nil {
		s.refuse(c, o, *no)
		return
	}
	ss, old, no := s.register(c, o)
	if no != nil {
		s.refuse(c, o, *no)
		return
	}
	tag := fmt.Sprintf("session %x %d", o.Session[:4], o.Epoch)
	s.cfg.Hearts.protect(c.peer, tag)
	defer s.cfg.Hearts.unprotect(c.peer, tag)
	held, no := ss.admit(old)
	if no != nil {
		ss.end(errClosed)
		close(ss.stopped)
		s.forget(ss)
		s.refuse(c, o, *no)
		return
	}
	go func() {
		defer close(ss.stopped)
		if ss.connect(held) {
			ss.work()
		}
	}()
	err := ss.read(c, true)
	var told toldError
	if errors.Is(err, errClosed) || errors.As(err, &told) { // a reset would take the ERROR with it
		ss.end(errClosed)
		_ = c.s.Close()
	} else {
		ss.end(errEnded)
		_ = c.s.Reset()
	}
	<-ss.stopped
	ss.readers.Wait()
	if !errors.Is(err, errClosed) {
		ss.linger(ctx)
	}
	s.forget(ss)
}

// linger keeps the cache a moment after the head's stream broke: a head that is
// alive comes back with the next epoch.
func (ss *session) linger(ctx context.Context) {
	t := time.NewTimer(linger)
	defer t.Stop()
	for {
		ss.srv.mu.Lock()
		over, changed := ss.replaced || ss.srv.closed, ss.srv.changed
		ss.srv.mu.Unlock()
		if over {
			return
		}
		select {
		case <-t.C:
			return
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// admit waits for the worker of the epoch before and makes room in the cache.
func (ss *session) admit(old *session) (held int, no *refusal) {
	if old != nil {
		t := time.NewTimer(linkTimeout)
		defer t.Stop()
		select {
		case <-old.stopped:
		case <-t.C:
			return 0, &refusal{code: wire.CodeBusy, retry: time.Second, text: "the epoch before still computes"}
		}
		if old.key() == ss.key() {
			ss.saved = old.saved
			if old.open.DType == ss.open.DType {
				ss.chains = old.chains
			}
		}
	}
	if int(ss.open.End) < ss.srv.cfg.Layers {
		ss.kept = ss.srv.keep.of(ss.open)
	}
	return ss.makeRoom()
}

func (ss *session) key() cache.Key {
	return cache.Key{Session: ss.open.Session, Start: int(ss.open.Start), End: int(ss.open.End), Form: uint8(ss.open.CacheType)}
}

// makeRoom admits the session's entry, old or new.
func (ss *session) makeRoom() (held int, no *refusal) {
	k, e, t := ss.key(), ss.srv.cfg.Engine, ss.open.CacheType
	held, err := ss.srv.cfg.Cache.Admit(k, ss.owner, e.StateBytes(k.Start, k.End, t, int(ss.open.MaxLen)),
		func() (cache.State, error) { return e.NewState(k.Start, k.End, t) })
	if err == nil {
		return held, nil
	}
	var full *cache.FullError
	switch {
	case errors.As(err, &full):
		retry := full.RetryAfter
		if retry == 0 {
			retry = time.Minute // too large for this peer; waiting does not help
		}
		return 0, &refusal{code: wire.CodeBusy, retry: retry, text: err.Error()}
	case errors.Is(err, cache.ErrNotOwner):
		return 0, &refusal{code: wire.CodeNotOwner, text: err.Error()}
	}
	return 0, &refusal{code: wire.CodeInternal, text: err.Error()}
}

// attach makes c the link of the hop before; its reader is counted.
func (ss *session) attach(c *conn) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.ended || ss.prev != nil {
		return false
	}
	ss.prev = c
	ss.readers.Add(1)
	return true
}

// end stops the session's goroutines; the cache entry stays.
func (ss *session) end(cause error) {
	ss.mu.Lock()
	was := ss.ended
	ss.ended = true
	prev, next := ss.prev, ss.next
	ss.mu.Unlock()
	if was {
		return
	}
	ss.cancel(cause)
	if cause != errClosed {
		_ = ss.head.s.Reset()
	}
	for _, c := range []*conn{prev, next} {
		switch {
		case c == nil:
		case cause == errClosed: // the other side sees an end, not a failure
			_ = c.s.Close()
		default:
			_ = c.s.Reset()
		}
	}
}

// tell reports to the head. A failing write resets the stream, which its reader sees.
func (ss *session) tell(e wire.Error) {
	e.Session, e.Epoch = ss.open.Session, ss.open.Epoch
	ss.srv.count.refuse(e.Code)
	if e.Code != wire.CodeCacheMiss {
		ss.srv.log.Info("step refused", "session", short(e.Session), "seq", e.Seq, "code", e.Code.String(), "why", e.Text)
	}
	_ = ss.head.write(&e, 0)
}

// toldError ends a stream after the head was told why.
type toldError struct{ error }

// read takes frames off a stream until it ends: the head's or the link's.
func (ss *session) read(c *conn, head bool) error {
	accused := "" // who is to blame for a bad frame: with "", whoever sent it here
	if !head {
		accused = string(c.peer)
	}
	for {
		f, err := c.read()
		if err != nil {
			var bad *wire.BadError
			if errors.As(err, &bad) {
				ss.tell(wire.Error{Code: bad.Code, Peer: accused, Text: bad.Error()})
				return toldError{err}
			}
			return err
		}
		if f.Kind() != wire.KindActivation {
			ss.in.Add(uint64(c.r.FrameBytes()))
		}
		switch f := f.(type) {
		case *wire.Activation:
			if err := ss.take(c, f, accused); err != nil {
				ss.tell(wire.Error{Seq: f.Seq, Code: wire.CodeBadFrame, Peer: accused, Text: err.Error()})
				return toldError{err}
			}
		case *wire.Resend:
			if err := ss.asked(c, f, head); err != nil {
				ss.tell(wire.Error{Seq: f.Seq, Code: wire.CodeBadFrame, Peer: accused, Text: err.Error()})
				return toldError{err}
			}
		case *wire.Attest:
			if err := ss.attestAsked(c, f, head); err != nil {
				ss.tell(wire.Error{Seq: f.Seq, Code: wire.CodeBadFrame, Peer: accused, Text: err.Error()})
				return toldError{err}
			}
		case *wire.Credit:
			c.credited(f.Bytes)
		case *wire.Ping:
			if !f.Reply {
				p := ss.progress()
				p.Nonce = f.Nonce
				if err := c.write(&p, 0); err != nil {
					return err
				}
			}
		case *wire.Close:
			if !head || f.Session != ss.open.Session || f.Epoch != ss.open.Epoch {
				return errors.New("CLOSE out of place")
			}
			return errClosed
		default:
			err := fmt.Errorf("%v is out of place", f.Kind())
			ss.tell(wire.Error{Code: wire.CodeBadFrame, Peer: accused, Text: err.Error()})
			return toldError{err}
		}
	}
}

// take checks an activation and puts it into the inbox. An error ends the stream;
// a frame that is only wrong itself is refused and the stream goes on.
func (ss *session) take(c *conn, f *wire.Activation, accused string) error {
	size := len(f.Payload)
	if !c.arrived(size) {
		return errors.New("more payload than the credit allows")
	}
	refuse := func(code wire.Code, text string) error {
		ss.tell(wire.Error{Seq: f.Seq, Code: code, Peer: accused, Text: text})
		return c.taken(size, ss.open.Session, ss.open.Epoch)
	}
	switch {
	case f.Session != ss.open.Session:
		return refuse(wire.CodeNotOwner, "another session's frame")
	case f.Epoch != ss.open.Epoch:
		return refuse(wire.CodeStaleEpoch, fmt.Sprintf("epoch %d, now %d", f.Epoch, ss.open.Epoch))
	}
	x, code := payloadOf(f.Payload, f.Rows, f.Hidden, f.DType, ss.srv.cfg.Hidden)
	if code != 0 {
		return refuse(code, fmt.Sprintf("%d rows of %d", f.Rows, f.Hidden))
	}
	f.Payload = nil
	return ss.queue(item{act: f, x: x, size: size, wire: c.r.FrameBytes(), from: c, at: time.Now()})
}

// asked checks a head's RESEND and puts it into the inbox.
func (ss *session) asked(c *conn, f *wire.Resend, head bool) error {
	if !head || f.Session != ss.open.Session || f.Epoch != ss.open.Epoch {
		return errors.New("RESEND out of place")
	}
	return ss.queue(item{ask: f, from: c, at: time.Now()})
}

// queue puts an item into the inbox.
func (ss *session) queue(it item) error {
	ss.came.Store(time.Now().UnixNano())
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if len(ss.inbox) >= maxInbox {
		return errors.New("too many frames wait")
	}
	ss.inbox = append(ss.inbox, it)
	select {
	case ss.full <- struct{}{}:
	default:
	}
	return nil
}

// progress is the answer to a PING.
func (ss *session) progress() wire.Ping {
	p := wire.Ping{
		Session: ss.open.Session, Epoch: ss.open.Epoch, Reply: true, LastSeq: ss.lastSeq.Load(),
		Frames: ss.frames.Load(), Rows: ss.rows.Load(), Micros: ss.micros.Load(),
		BytesIn: ss.in.Load(), BytesOut: ss.head.out.Load(),
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, c := range []*conn{ss.prev, ss.next} {
		if c != nil {
			p.BytesOut += c.out.Load()
		}
	}
	if ss.next != nil {
		p.BytesIn += ss.next.in.Load()
	}
	return p
}

// connect opens the link to the next hop, if there is one, and answers READY.
func (ss *session) connect(held int) bool {
	o := ss.open
	linked := false
	if o.Next != "" {
		c, err := ss.dial()
		switch {
		case ss.ctx.Err() != nil:
			return false
		case err != nil:
			ss.srv.log.Info("link failed, the head forwards", "session", short(o.Session), "next", p2p.PeerID(o.Next).Short(), "err", err)
		default:
			linked = ss.link(c)
		}
	}
	err := ss.head.write(&wire.Ready{Session: o.Session, Epoch: o.Epoch, Held: uint32(held), Linked: linked, Credit: Window}, 0)
	return err == nil
}

// dial opens the stream to the next hop and waits for its READY.
func (ss *session) dial() (*conn, error) {
	o := ss.open
	ctx, cancel := context.WithTimeout(ss.ctx, linkTimeout)
	defer cancel()
	st, err := ss.srv.cfg.Streamer.Open(ctx, p2p.Peer{ID: p2p.PeerID(o.Next), Addrs: o.NextAddrs}, p2p.ActivationProtocol)
	if err != nil {
		return nil, err
	}
	abort := context.AfterFunc(ctx, func() { _ = st.Reset() })
	c := newConn(st)
	err = ss.greet(c)
	if !abort() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = st.Reset()
		return nil, err
	}
	return c, nil
}

func (ss *session) greet(c *conn) error {
	if c.s.Limited() {
		return errors.New("only over a limited relay circuit")
	}
	o := *ss.open
	o.Role, o.Prev, o.Next, o.NextAddrs = wire.RoleLink, "", "", nil
	if err := c.write(&o, 0); err != nil {
		return err
	}
	f, err := c.readWithin(linkTimeout)
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *wire.Ready:
		c.window = clampWindow(f.Credit)
		return nil
	case *wire.Error:
		return fmt.Errorf("refused: %v: %s", f.Code, f.Text)
	default:
		return fmt.Errorf("answered %v", f.Kind())
	}
}

func clampWindow(credit uint32) int { return int(min(max(credit, creditPiece), wire.MaxFrame)) }

// link makes c the link to the next hop and watches it.
func (ss *session) link(c *conn) bool {
	ss.mu.Lock()
	if ss.ended {
		ss.mu.Unlock()
		_ = c.s.Reset()
		return false
	}
	ss.next = c
	ss.readers.Add(2)
	ss.mu.Unlock()
	beat := ss.srv.cfg.Hearts.Watch(p2p.Peer{ID: c.peer, Addrs: ss.open.NextAddrs})
	go func() {
		defer ss.readers.Done()
		defer beat.Stop()
		select {
		case <-beat.Dead():
			_ = c.s.Reset()
		case <-ss.ctx.Done():
		}
	}()
	go func() {
		defer ss.readers.Done()
		err := ss.readNext(c)
		ss.mu.Lock()
		ss.broken = true
		ss.mu.Unlock()
		if errors.Is(err, io.EOF) && ss.endsWithin(closeTimeout) {
			_ = c.s.Close()
			return
		}
		_ = c.s.Reset()
		if ss.ctx.Err() == nil {
			ss.tell(wire.Error{Code: wire.CodeLinkDown, Peer: string(c.peer), Text: err.Error()})
		}
	}()
	return true
}

// endsWithin waits for the session's end. When a head closes a session the next hop
// may hear of it first, and its closing the link is no complaint then.
func (ss *session) endsWithin(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ss.ctx.Done():
		return true
	case <-t.C:
		return false
	}
}

// readNext takes the next hop's credit until the link breaks.
func (ss *session) readNext(c *conn) error {
	for {
		f, err := c.read()
		if err != nil {
			return err
		}
		switch f := f.(type) {
		case *wire.Credit:
			c.credited(f.Bytes)
		case *wire.Error:
			return fmt.Errorf("the next peer says %v: %s", f.Code, f.Text)
		default:
			return fmt.Errorf("the next peer sent %v", f.Kind())
		}
	}
}

func short(id wire.SessionID) string { return fmt.Sprintf("%x", id[:4]) }
