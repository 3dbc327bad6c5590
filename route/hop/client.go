package hop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
)

// Client is a head's end of the activation protocol.
type Client struct {
	streamer p2p.Streamer
	hearts   *Hearts
	log      *slog.Logger
}

// NewClient returns a Client that opens streams with s. The logger may be nil.
func NewClient(s p2p.Streamer, h *Hearts, log *slog.Logger) *Client {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Client{streamer: s, hearts: h, log: log}
}

// OpenRequest is what to open.
type OpenRequest struct {
	Session wire.SessionID
	Epoch   uint32 // higher than any used for the session
	Route   route.Route
	Model   wire.Fingerprint
	Hidden  int
	MaxLen  int
	DType   wire.DType     // 0: f32
	Cache   wire.CacheType // 0: wire.DefaultCacheType
	// Signs, if not nil, is by hop how soon a heartbeat must be answered; 0: no matter.
	Signs []time.Duration
}

// Circuit is a session's streams to every hop of a route, in one epoch. One
// goroutine at a time calls Step.
//
// Its goroutines: a reader and a watcher a hop, and a forwarder for every hop
// that gets its rows from the head instead of the hop before. Close ends them.
type Circuit struct {
	client *Client
	req    OpenRequest
	legs   []*leg
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  int           // frames under way at most
	wake   chan struct{} // something below changed; for Step

	mu      sync.Mutex
	closed  bool
	first   uint32 // Seq of the present step's first frame
	flights map[uint32]*flight
	answers map[uint32][]float32 // of the last hop, until Step takes them
	fault   *Error               // of the present step, answered by a hop
	link    *Error               // a hop can't reach the next: for good
	backs   backs
	leaving []p2p.PeerID
	nonce   uint64
}

// leg is the circuit's stream to one hop.
type leg struct {
	i    int
	hop  route.Hop
	c    *conn
	held int
	star bool            // its output comes back to be forwarded; false for the last
	fwd  chan forwarding // rows for this hop, if the one before is star

	gone chan struct{} // closed when err is set

	err   *Error // stream or heart broke; under Circuit.mu, as all below
	pong  wire.Ping
	mark  wire.Ping // at Mark
	marks uint64    // nonce that Mark waits for
}

// flight is a frame on its way through the hops.
type flight struct {
	act   wire.Activation // without payload
	at    time.Time
	until time.Duration
	hop   int // to fill, with Refill
	seen  int // hops whose result came back
}

// left is the time that a flight still has, in ms.
func (fl *flight) left() uint32 {
	return uint32(max(1, (fl.until - time.Since(fl.at)).Milliseconds()))
}

type forwarding struct {
	fl   *flight
	x    []float32
	from *conn
	size int
}

// Open opens streams to all hops of a route at once and waits until each is
// ready, for as long as within (0: 5 s). The error is a *Error, or ctx's.
func (cl *Client) Open(ctx context.Context, within time.Duration, req OpenRequest) (*Circuit, error) {
	if req.DType == 0 {
		req.DType = wire.F32
	}
	if req.Cache == 0 {
		req.Cache = wire.DefaultCacheType
	}
	n := len(req.Route.Hops)
	if n == 0 {
		return nil, errors.New("open a circuit: the route has no hops")
	}
	if within <= 0 {
		within = openTimeout
	}
	dial, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	legs, errs := make([]*leg, n), make(chan *Error, n)
	beats := make([]*Beat, n)
	for i := range n {
		beats[i] = cl.hearts.Watch(req.Route.Hops[i].Peer)
		go func() {
			l, err := cl.openLeg(dial, req, i, beats[i])
			legs[i] = l
			errs <- err
		}()
	}
	var first *Error
	for range n {
		if err := <-errs; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	if first == nil && ctx.Err() == nil {
		return cl.circuit(req, legs, beats), nil
	}
	for _, b := range beats {
		b.Stop()
	}
	for _, l := range legs {
		if l != nil {
			_ = l.c.s.Reset()
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("open a circuit: %w", context.Cause(ctx))
	}
	return nil, first
}

// openLeg dials hop i, sends OPEN and waits for READY, as long as its heart beats: a
// peer that is frozen accepts connections too.
func (cl *Client) openLeg(ctx context.Context, req OpenRequest, i int, beat *Beat) (*leg, *Error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watching sync.WaitGroup
	defer watching.Wait()
	opened := make(chan struct{})
	defer close(opened)
	watching.Go(func() { cancel(quiet(req, i, beat, opened)) })
	h := req.Route.Hops[i]
	fail := func(err error) *Error {
		return &Error{Hop: i, Peer: h.Peer.ID, Side: Local, Silent: errors.Is(err, errNoSign), Text: "open", Err: err}
	}
	st, err := cl.streamer.Open(ctx, h.Peer, p2p.ActivationProtocol)
	if err != nil {
		return nil, fail(because(ctx, err))
	}
	stop := context.AfterFunc(ctx, func() { _ = st.Reset() })
	c := newConn(st)
	ready, e := greetHop(c, req, i)
	if !stop() && (e == nil || e.Side == Local && e.Code == 0) {
		e = fail(context.Cause(ctx))
	}
	if e != nil {
		_ = st.Reset()
		return nil, e
	}
	c.window = clampWindow(ready.Credit)
	return &leg{i: i, hop: h, c: c, gone: make(chan struct{}), held: int(ready.Held), star: !ready.Linked && i+1 < len(req.Route.Hops)}, nil
}

var (
	errNoHeartbeat = errors.New("no heartbeat")
	errNoSign      = errors.New("no sign of life yet")
)

// quiet returns when a hop is opened, with nil, or when it was silent for too long.
func quiet(req OpenRequest, i int, beat *Beat, opened <-chan struct{}) error {
	began := time.Now()
	var sign <-chan time.Time
	if i < len(req.Signs) && req.Signs[i] > 0 {
		t := time.NewTimer(req.Signs[i])
		defer t.Stop()
		sign = t.C
	}
	for {
		select {
		case <-sign:
			if !beat.HeardSince(began) {
				return errNoSign
			}
		case <-beat.Dead():
			return errNoHeartbeat
		case <-opened:
			return nil
		}
	}
}

// because is the cause of an error that comes from the end of ctx.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func greetHop(c *conn, req OpenRequest, i int) (*wire.Ready, *Error) {
	hops := req.Route.Hops
	h := hops[i]
	fail := func(code wire.Code, err error) *Error {
		return &Error{Hop: i, Peer: h.Peer.ID, Code: code, Side: Local, Text: "open", Err: err}
	}
	if c.s.Limited() {
		return nil, fail(wire.CodeLimited, errors.New("only over a limited relay circuit"))
	}
	o := &wire.Open{
		Session: req.Session, Epoch: req.Epoch, Role: wire.RoleHead, Start: uint32(h.Start), End: uint32(h.End),
		Model: req.Model, Hidden: uint32(req.Hidden), DType: req.DType, CacheType: req.Cache, MaxLen: uint32(req.MaxLen),
	}
	if i > 0 && !hops[i-1].Star {
		o.Prev = string(hops[i-1].Peer.ID)
	}
	if i+1 < len(hops) && !h.Star {
		o.Next = string(hops[i+1].Peer.ID)
		o.NextAddrs = clipAddrs(hops[i+1].Peer.Addrs)
	}
	if err := c.write(o, 0); err != nil {
		return nil, fail(0, err)
	}
	f, err := c.readWithin(openTimeout)
	if err != nil {
		return nil, fail(0, err)
	}
	switch f := f.(type) {
	case *wire.Ready:
		if f.Session != req.Session || f.Epoch != req.Epoch {
			return nil, fail(wire.CodeBadFrame, errors.New("READY for another session"))
		}
		return f, nil
	case *wire.Error:
		return nil, &Error{Hop: i, Peer: h.Peer.ID, Code: f.Code, Side: Remote, Held: int(f.Held), Retry: time.Duration(f.Retry) * time.Millisecond, Text: f.Text}
	}
	return nil, fail(wire.CodeBadFrame, fmt.Errorf("%v instead of READY", f.Kind()))
}

// clipAddrs keeps what an OPEN can hold.
func clipAddrs(addrs []string) []string {
	var out []string
	for _, a := range addrs {
		if len(a) <= wire.MaxAddr && len(out) < wire.MaxAddrs {
			out = append(out, a)
		}
	}
	return out
}

func (cl *Client) circuit(req OpenRequest, legs []*leg, beats []*Beat) *Circuit {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Circuit{
		client: cl, req: req, legs: legs, ctx: ctx, cancel: cancel, slots: len(legs) + 2, wake: make(chan struct{}, 1),
		flights: map[uint32]*flight{}, answers: map[uint32][]float32{},
	}
	for i, l := range legs {
		if i > 0 && legs[i-1].star {
			l.fwd = make(chan forwarding, c.slots)
			c.wg.Go(func() { c.forward(l) })
		}
	}
	for i, l := range legs {
		c.wg.Go(func() { c.watch(l, beats[i]) })
		c.wg.Go(func() { c.readLeg(l) })
	}
	return c
}

// Held is how many tokens each hop held for the session when it was opened.
func (c *Circuit) Held() []int {
	out := make([]int, len(c.legs))
	for i, l := range c.legs {
		out[i] = l.held
	}
	return out
}

// Linked says for each hop but the last whether its output goes straight to the next.
func (c *Circuit) Linked() []bool {
	out := make([]bool, len(c.legs))
	for i, l := range c.legs {
		out[i] = !l.star
	}
	return out
}

// Leaving are the hops that said they drain, each once.
func (c *Circuit) Leaving() []p2p.PeerID {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.leaving
	c.leaving = nil
	return l
}

func (c *Circuit) stir() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// watch breaks a leg whose peer's heart stops.
func (c *Circuit) watch(l *leg, beat *Beat) {
	defer beat.Stop()
	select {
	case <-beat.Dead():
		c.breakLeg(l, &Error{Hop: l.i, Peer: l.hop.Peer.ID, Side: Local, Text: "no heartbeat"})
		_ = l.c.s.Reset()
	case <-c.ctx.Done():
	}
}

// breakLeg records why a leg is of no use any more; the first reason stays.
func (c *Circuit) breakLeg(l *leg, e *Error) {
	c.mu.Lock()
	if l.err == nil {
		l.err = e
		close(l.gone)
	}
	c.mu.Unlock()
	c.stir()
}

// readLeg takes a hop's frames until its stream ends.
func (c *Circuit) readLeg(l *leg) {
	for {
		f, err := l.c.read()
		if err != nil && c.ctx.Err() != nil {
			return // Close ended the stream, and a reset now would take its CLOSE along
		}
		if err != nil {
			e := &Error{Hop: l.i, Peer: l.hop.Peer.ID, Side: Local, Err: err}
			var bad *wire.BadError
			if errors.As(err, &bad) {
				e.Code = bad.Code
			}
			c.breakLeg(l, e)
			_ = l.c.s.Reset()
			return
		}
		if e := c.frame(l, f); e != nil {
			c.breakLeg(l, e)
			_ = l.c.s.Reset()
			return
		}
	}
}

// frame handles one frame of a hop; an error breaks the leg.
func (c *Circuit) frame(l *leg, f wire.Frame) *Error {
	nonsense := func(code wire.Code, text string) *Error {
		return &Error{Hop: l.i, Peer: l.hop.Peer.ID, Code: code, Side: Local, Text: text}
	}
	switch f := f.(type) {
	case *wire.Result:
		if f.Session != c.req.Session || f.Epoch != c.req.Epoch {
			return nonsense(wire.CodeBadFrame, "a RESULT of another session")
		}
		return c.result(l, f, nonsense)
	case *wire.Error:
		if f.Session == c.req.Session && f.Epoch == c.req.Epoch {
			c.reported(l, f)
		}
	case *wire.Attested:
		return c.attested(l, f, nonsense)
	case *wire.Credit:
		l.c.credited(f.Bytes)
	case *wire.Ping:
		if !f.Reply {
			return nonsense(wire.CodeBadFrame, "a PING that is no answer")
		}
		c.mu.Lock()
		if f.Nonce >= l.pong.Nonce { // two that were asked at once may be answered in either order
			l.pong = *f
		}
		if f.Nonce == l.marks {
			l.mark = *f
		}
		c.mu.Unlock()
		c.stir()
	case *wire.Leaving:
		c.mu.Lock()
		if len(c.leaving) < len(c.legs) {
			c.leaving = append(c.leaving, l.hop.Peer.ID)
		}
		c.mu.Unlock()
		c.stir()
	default:
		return nonsense(wire.CodeBadFrame, f.Kind().String()+" is out of place")
	}
	return nil
}

// reported keeps a hop's ERROR for Step.
func (c *Circuit) reported(l *leg, f *wire.Error) {
	e := &Error{
		Hop: l.i, Peer: l.hop.Peer.ID, Code: f.Code, Side: Remote, Held: int(f.Held),
		Retry: time.Duration(f.Retry) * time.Millisecond, Text: f.Text,
	}
	switch {
	case f.Code == wire.CodeLinkDown:
		e.Next = p2p.PeerID(f.Peer)
	case f.Peer != "" && l.i > 0 && f.Peer == string(c.legs[l.i-1].hop.Peer.ID):
		// It accuses the hop before it; nobody else can have sent it anything.
		e.Hop, e.Peer = l.i-1, p2p.PeerID(f.Peer)
	}
	c.mu.Lock()
	switch {
	case f.Seq >= firstBack:
		c.backs.refused(f.Seq, l.i, e)
	case f.Code == wire.CodeLinkDown && c.link == nil:
		c.link = e
	case f.Seq != 0 && f.Seq < c.first: // of a step that was given up
	case c.fault == nil:
		c.fault = e
	}
	c.mu.Unlock()
	c.stir()
}

// result takes a hop's rows: the last hop's are the answer, a star's go to the next.
func (c *Circuit) result(l *leg, f *wire.Result, nonsense func(wire.Code, string) *Error) *Error {
	size := len(f.Payload)
	if !l.c.arrived(size) {
		return nonsense(wire.CodeBadFrame, "more payload than the credit allows")
	}
	if f.Seq >= firstBack {
		return c.cameBack(l, f, nonsense)
	}
	last := l.i == len(c.legs)-1
	c.mu.Lock()
	fl, first := c.flights[f.Seq], c.first
	c.mu.Unlock()
	switch {
	case fl == nil && f.Seq < first: // of a step that was given up
		return c.took(l, size)
	case fl == nil:
		return nonsense(wire.CodeBadFrame, fmt.Sprintf("a RESULT of step %d, which was not asked", f.Seq))
	case fl.act.Mode == wire.Refill && l.i != fl.hop && l.i != fl.hop-1:
		return nonsense(wire.CodeBadFrame, "a RESULT from a hop that has no part in the refill")
	case fl.act.Mode == wire.Refill: // ends at its hop, as a step does at the last
		last = l.i == fl.hop
	}
	if !last && !l.star {
		return nonsense(wire.CodeBadFrame, "a RESULT from the middle of a chain")
	}
	want := fl.act.Rows
	if last {
		want = min(fl.act.Want, fl.act.Rows)
	}
	x, code := payloadOf(f.Payload, f.Rows, f.Hidden, f.DType, c.req.Hidden)
	if code != 0 || f.Rows != want {
		if code == 0 {
			code = wire.CodeBadShape
		}
		return nonsense(code, fmt.Sprintf("%d rows of %d, asked for %d", f.Rows, f.Hidden, want))
	}
	c.mu.Lock()
	again := fl.seen > l.i
	fl.seen = l.i + 1
	if last && !again {
		delete(c.flights, f.Seq)
		c.answers[f.Seq] = x
	}
	c.mu.Unlock()
	if again {
		return nonsense(wire.CodeBadFrame, "a RESULT twice")
	}
	if last {
		c.stir()
		return c.took(l, size)
	}
	// Never full: it has a slot for every frame under way, and none comes twice.
	c.legs[l.i+1].fwd <- forwarding{fl: fl, x: x, from: l.c, size: size}
	return nil
}

func (c *Circuit) took(l *leg, size int) *Error {
	if err := l.c.taken(size, c.req.Session, c.req.Epoch); err != nil {
		return &Error{Hop: l.i, Peer: l.hop.Peer.ID, Side: Local, Err: err}
	}
	return nil
}

// forward sends a star's rows on to the next hop.
func (c *Circuit) forward(l *leg) {
	for {
		select {
		case <-c.ctx.Done():
			return
		case w := <-l.fwd:
			if err := w.from.taken(w.size, c.req.Session, c.req.Epoch); err != nil {
				continue // its reader says so
			}
			c.mu.Lock()
			stale := w.fl.act.Seq < c.first
			c.mu.Unlock()
			if stale { // of a step that was given up
				continue
			}
			if err := c.sendTo(c.ctx, l, w.fl, w.x); err != nil && c.ctx.Err() == nil {
				c.breakLeg(l, &Error{Hop: l.i, Peer: l.hop.Peer.ID, Side: Local, Err: err})
			}
		}
	}
}

// sendTo sends the rows of a flight to a hop.
func (c *Circuit) sendTo(ctx context.Context, l *leg, fl *flight, x []float32) error {
	payload, err := payloadFor(x, c.req.DType)
	if err != nil {
		return err
	}
	a := fl.act
	a.Deadline = fl.left()
	a.Payload = payload
	return l.c.send(ctx, &a, len(payload))
}
