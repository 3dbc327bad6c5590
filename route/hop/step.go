package hop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/meshnet/meshnet/p2p/wire"
)

// Step is rows to send through all hops.
type Step struct {
	Seq      uint32 // of the first frame; the others follow
	Mode     wire.CacheMode
	Hop      int // with Refill: the hop to fill, by the head if it is the first, or else by the hop before
	Past     int
	Rows     int
	Chunk    int       // rows in a frame
	X        []float32 // Rows x hidden, unchanged until Step returns; none to fill a later hop than the first
	Want     int       // last rows whose result is wanted
	Deadline time.Duration
}

// linkGrace is how much longer a step waits when every hop is alive but one has
// not applied the frame: the hop before it learns within 3 s that their link is
// dead, or it is busy with others.
const linkGrace = 2 * time.Second

// Step sends rows through the route and returns the last Want of them, Want x
// hidden. The error is a *Error, or ctx's. After any but a cache miss the circuit
// is of no more use than to be closed; after a cache miss the next Step may begin.
func (c *Circuit) Step(ctx context.Context, st Step) ([]float32, error) {
	hidden := c.req.Hidden
	values := st.Rows * hidden
	switch {
	case st.Mode != wire.Refill && st.Hop != 0, st.Hop < 0 || st.Hop >= len(c.legs):
		return nil, fmt.Errorf("step: hop %d of %d to fill", st.Hop, len(c.legs))
	case st.Hop > 0:
		values = 0
	}
	if st.Rows <= 0 || st.Chunk <= 0 || len(st.X) != values || st.Want < 0 || st.Want > st.Rows {
		return nil, fmt.Errorf("step of %d rows, %d values of %d, %d wanted", st.Rows, len(st.X), hidden, st.Want)
	}
	if !wire.Finite(st.X) {
		return nil, errors.New("step: NaN or infinity among the rows")
	}
	frames := (st.Rows + st.Chunk - 1) / st.Chunk
	c.mu.Lock()
	c.first, c.fault = st.Seq, nil
	clear(c.flights)
	clear(c.answers)
	c.mu.Unlock()

	ctx, cancel := context.WithCancel(ctx)
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	slots := make(chan struct{}, c.slots)
	if frames == 1 {
		c.sendFrame(ctx, st, 0)
	} else {
		sender.Go(func() {
			for i := 0; i < frames; i++ {
				select {
				case slots <- struct{}{}:
				case <-ctx.Done():
					return
				}
				if !c.sendFrame(ctx, st, i) {
					return
				}
			}
		})
	}
	return c.await(ctx, st, frames, slots)
}

// sendFrame sends frame i of a step to the first hop.
func (c *Circuit) sendFrame(ctx context.Context, st Step, i int) bool {
	from := i * st.Chunk
	to := min(from+st.Chunk, st.Rows)
	want := max(0, to-max(from, st.Rows-st.Want))
	fl := &flight{
		act: wire.Activation{
			Session: c.req.Session, Epoch: c.req.Epoch, Seq: st.Seq + uint32(i), Mode: st.Mode,
			Past: uint32(st.Past + from), Rows: uint32(to - from), Want: uint32(want),
			DType: c.req.DType, Hidden: uint32(c.req.Hidden),
		},
		hop: st.Hop, at: time.Now(), until: st.Deadline + linkGrace,
	}
	if st.Mode == wire.Stateless {
		fl.act.Past = 0
	}
	c.mu.Lock()
	c.flights[fl.act.Seq] = fl
	c.mu.Unlock()
	l, err := c.legs[max(0, st.Hop-1)], error(nil)
	if st.Hop > 0 {
		err = l.c.write(&wire.Resend{
			Session: c.req.Session, Epoch: c.req.Epoch, Seq: fl.act.Seq, Past: fl.act.Past, Rows: fl.act.Rows, Deadline: fl.left(),
		}, 0)
	} else {
		err = c.sendTo(ctx, l, fl, st.X[from*c.req.Hidden:to*c.req.Hidden])
	}
	if err != nil && ctx.Err() == nil {
		c.breakLeg(l, &Error{Hop: l.i, Peer: l.hop.Peer.ID, Side: Local, Err: err})
	}
	return err == nil
}

// await collects the answers to all frames of a step.
func (c *Circuit) await(ctx context.Context, st Step, frames int, slots chan struct{}) ([]float32, error) {
	out := make([]float32, 0, st.Want*c.req.Hidden)
	timer := time.NewTimer(st.Deadline)
	defer timer.Stop()
	graced := false
	for done := 0; done < frames; {
		x, ok, err := c.next(ctx, st.Seq+uint32(done))
		switch {
		case err != nil:
			return nil, err
		case ok:
			out = append(out, x...)
			done++
			select {
			case <-slots:
			default: // a single frame took none
			}
			timer.Reset(st.Deadline)
			graced = false
			continue
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return nil, fmt.Errorf("step: %w", context.Cause(ctx))
		case <-timer.C:
			late := c.late(ctx, st, st.Seq+uint32(done), graced)
			if late != nil {
				return nil, late
			}
			graced = true
			timer.Reset(linkGrace)
		}
	}
	return out, nil
}

// next takes the answer to a frame if it is there, or says why none will come.
func (c *Circuit) next(ctx context.Context, seq uint32) (x []float32, ok bool, err error) {
	c.mu.Lock()
	x, ok = c.answers[seq]
	delete(c.answers, seq)
	e := c.broken()
	fault, link := c.fault, c.link
	c.mu.Unlock()
	switch {
	case ok:
		return x, true, nil
	case e != nil:
		return nil, false, e
	case fault != nil:
		return nil, false, fault
	case link != nil:
		return nil, false, c.judge(ctx, link)
	}
	return nil, false, nil
}

// broken is the first leg's error. The lock is held.
func (c *Circuit) broken() *Error {
	for _, l := range c.legs {
		if l.err != nil {
			return l.err
		}
	}
	return nil
}

// judge finds out what a hop's complaint about its link to the next means: that
// peer is gone, or both live and the link alone is down.
func (c *Circuit) judge(ctx context.Context, link *Error) *Error {
	if dead := c.ping(ctx); dead != nil {
		return dead
	}
	// Whoever broke the link off for a reason has told it before its pong.
	c.mu.Lock()
	fault := c.fault
	c.mu.Unlock()
	if fault != nil {
		return fault
	}
	i := slices.IndexFunc(c.legs, func(l *leg) bool { return l.hop.Peer.ID == link.Next })
	if i != link.Hop+1 {
		e := *link // it speaks of a peer that is not its next: not to be trusted
		e.Next = ""
		return &e
	}
	return link
}

// late decides after a deadline who is to blame; nil asks for a little more time.
func (c *Circuit) late(ctx context.Context, st Step, seq uint32, graced bool) *Error {
	if dead := c.ping(ctx); dead != nil {
		return dead
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	stuck := c.legs[len(c.legs)-1]
	for _, l := range c.legs {
		if l.pong.LastSeq < seq {
			stuck = l
			break
		}
	}
	if st.Mode == wire.Refill { // no hop counts it as a step
		stuck = c.legs[st.Hop]
	}
	if !graced {
		return nil
	}
	return &Error{Hop: stuck.i, Peer: stuck.hop.Peer.ID, Side: Local, Silent: true, Text: fmt.Sprintf("step %d", seq)}
}

// ping asks every hop for a sign of life and names the first that gives none
// within a second.
func (c *Circuit) ping(ctx context.Context) *Error {
	nonce := c.askAll()
	t := time.NewTimer(pingTimeout)
	defer t.Stop()
	for {
		c.mu.Lock()
		var dumb *leg
		e := c.broken()
		for _, l := range c.legs {
			if l.pong.Nonce < nonce && dumb == nil {
				dumb = l
			}
		}
		c.mu.Unlock()
		switch {
		case e != nil:
			return e
		case dumb == nil:
			return nil
		}
		select {
		case <-c.wake:
		case <-t.C:
			c.stir() // whatever was woken for besides is still to be looked at
			return &Error{Hop: dumb.i, Peer: dumb.hop.Peer.ID, Side: Local, Text: "no answer to a ping"}
		case <-ctx.Done():
			return &Error{Hop: dumb.i, Peer: dumb.hop.Peer.ID, Side: Local, Err: context.Cause(ctx)}
		}
	}
}

// askAll sends a PING to every hop. The writes go on by themselves: a stuck stream
// must not delay the others.
func (c *Circuit) askAll() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nonce++
	if c.closed {
		return c.nonce
	}
	for _, l := range c.legs {
		p := &wire.Ping{Session: c.req.Session, Epoch: c.req.Epoch, Nonce: c.nonce}
		c.wg.Go(func() { _ = l.c.write(p, 0) })
	}
	return c.nonce
}

// Mark remembers what every hop has done so far; Counters counts from there. It
// does not wait for the answers, but no later step overtakes it to the first hop.
func (c *Circuit) Mark() {
	c.mu.Lock()
	c.nonce++
	nonce := c.nonce
	for _, l := range c.legs {
		l.marks = nonce
	}
	c.mu.Unlock()
	for _, l := range c.legs {
		_ = l.c.write(&wire.Ping{Session: c.req.Session, Epoch: c.req.Epoch, Nonce: nonce}, 0) // its reader sees what is broken
	}
}

// Counters are what a hop did since Mark, or since Open if its answer to Mark is
// not here.
type Counters struct {
	Frames, Rows, Micros uint64
	BytesIn              uint64
}

// Counters asks every hop, at most a second; of a hop that does not answer they are
// what it said last.
func (c *Circuit) Counters(ctx context.Context) []Counters {
	_ = c.ping(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Counters, len(c.legs))
	for i, l := range c.legs {
		if p, m := l.pong, l.mark; p.Frames >= m.Frames && p.Rows >= m.Rows && p.Micros >= m.Micros && p.BytesIn >= m.BytesIn {
			out[i] = Counters{Frames: p.Frames - m.Frames, Rows: p.Rows - m.Rows, Micros: p.Micros - m.Micros, BytesIn: p.BytesIn - m.BytesIn}
		}
	}
	return out
}

// BytesIn is how many bytes of frames the hops have sent to the head.
func (c *Circuit) BytesIn() uint64 {
	var n uint64
	for _, l := range c.legs {
		n += l.c.in.Load()
	}
	return n
}

// closeTimeout is how long a hop's stream may take to accept a CLOSE.
const closeTimeout = 500 * time.Millisecond

// Close ends the session on every hop, in this epoch, and waits for the circuit's
// goroutines. Step must not be running. It may be called twice.
func (c *Circuit) Close() {
	c.mu.Lock()
	was := c.closed
	c.closed = true
	c.mu.Unlock()
	if was {
		return
	}
	c.cancel()
	var bye sync.WaitGroup
	for _, l := range c.legs {
		bye.Go(func() {
			if l.c.bye(&wire.Close{Session: c.req.Session, Epoch: c.req.Epoch}) != nil {
				_ = l.c.s.Reset()
				return
			}
			_ = l.c.s.Close()
		})
	}
	bye.Wait()
	c.wg.Wait()
}

// bye writes a last frame with little patience, also with a write that is stuck.
func (c *conn) bye(f wire.Frame) error {
	if err := c.s.SetWriteDeadline(time.Now().Add(closeTimeout)); err != nil {
		return err
	}
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if err := c.s.SetWriteDeadline(time.Now().Add(closeTimeout)); err != nil {
		return err
	}
	_, err := c.w.WriteFrame(f)
	return err
}
