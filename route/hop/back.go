package hop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/meshnet/meshnet/p2p/wire"
)

const (
	// firstBack: rows that come back have a Seq from here on, where no step's is.
	firstBack = 1 << 31
	// maxBacks bounds what was asked for and did not come.
	maxBacks = 16
)

// BackRows is how many rows Kept asks for at once, so that they hold up a step of the
// same session, or one that the peer that they are for computes, by little.
func BackRows(hidden int) int {
	return min(wire.MaxChunkRows, max(chunkLeast, creditPiece/(4*max(hidden, 1))))
}

// backs are what hops were asked for besides steps: rows to give back, or an
// Attested. Under Circuit.mu.
type backs struct {
	n     uint32 // asked so far
	asked map[uint32]*back
}

// back is one of them.
type back struct {
	leg  int
	rows uint32
	x    []float32
	err  *Error
	done chan struct{} // closed when x, signed or err is there

	verify Verifier // of an Attested; nil where rows are asked for
	signed *wire.Attested
}

// take removes what a hop was asked for, nil if it was not.
func (b *backs) take(seq uint32, leg int) *back {
	w := b.asked[seq]
	if w == nil || w.leg != leg {
		return nil
	}
	delete(b.asked, seq)
	return w
}

// refused ends one that the hop does not give.
func (b *backs) refused(seq uint32, leg int, e *Error) {
	if w := b.take(seq, leg); w != nil {
		w.err = e
		close(w.done)
	}
}

// Kept are rows that a hop gave to the one after it and keeps: rows x hidden, those of
// the tokens [past, past+rows) after its last layer. Several goroutines may ask, also
// while another is in Step, and at any time before Close. The error is a *Error, with
// CodeCacheMiss for a hop that does not keep them, or ctx's. Nothing of the circuit is
// the worse for it, unless the hop answers what it was not asked.
func (c *Circuit) Kept(ctx context.Context, hop, past, rows int) ([]float32, error) {
	if hop < 0 || hop >= len(c.legs) || past < 0 || rows <= 0 || rows > wire.MaxRows {
		return nil, fmt.Errorf("kept rows [%d, %d) of hop %d of %d", past, past+rows, hop, len(c.legs))
	}
	w := &back{leg: hop, rows: uint32(rows)}
	err := c.ask(ctx, w, func(seq uint32) wire.Frame {
		q := &wire.Resend{Session: c.req.Session, Epoch: c.req.Epoch, Seq: seq, Past: uint32(past), Rows: uint32(rows), Back: true}
		if at, ok := ctx.Deadline(); ok {
			q.Deadline = uint32(max(1, time.Until(at).Milliseconds()))
		}
		return q
	})
	if err != nil {
		return nil, err
	}
	return w.x, nil
}

// ask sends a question to a hop and waits for the answer.
func (c *Circuit) ask(ctx context.Context, w *back, frame func(seq uint32) wire.Frame) error {
	l := c.legs[w.leg]
	w.done = make(chan struct{})
	c.mu.Lock()
	if c.closed || len(c.backs.asked) >= maxBacks {
		closed := c.closed
		c.mu.Unlock()
		if closed {
			return errOver
		}
		return &Error{Hop: l.i, Peer: l.hop.Peer.ID, Side: Local, Silent: true, Text: "what it was asked for"}
	}
	if c.backs.asked == nil {
		c.backs.asked = map[uint32]*back{}
	}
	seq := firstBack + c.backs.n%firstBack
	c.backs.n++
	c.backs.asked[seq] = w
	c.mu.Unlock()

	if err := l.c.write(frame(seq), 0); err != nil {
		c.breakLeg(l, &Error{Hop: l.i, Peer: l.hop.Peer.ID, Side: Local, Err: err})
	}
	select {
	case <-w.done:
	case <-l.gone:
	case <-c.ctx.Done():
	case <-ctx.Done(): // it stays asked for: what comes yet is no nonsense
		return fmt.Errorf("ask a hop: %w", context.Cause(ctx))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case w.x != nil || w.signed != nil:
		return nil
	case w.err != nil:
		return w.err
	case l.err != nil:
		return l.err
	}
	return errOver
}

var errOver = errors.New("the circuit is closed")

// cameBack takes rows that a hop was asked to give back.
func (c *Circuit) cameBack(l *leg, f *wire.Result, nonsense func(wire.Code, string) *Error) *Error {
	c.mu.Lock()
	w := c.backs.take(f.Seq, l.i)
	c.mu.Unlock()
	if w == nil || w.verify != nil {
		return nonsense(wire.CodeBadFrame, "rows back that were not asked for")
	}
	x, code := payloadOf(f.Payload, f.Rows, f.Hidden, f.DType, c.req.Hidden)
	if code == 0 && f.Rows != w.rows {
		code = wire.CodeBadShape
	}
	if code != 0 {
		return nonsense(code, fmt.Sprintf("%d rows of %d back, asked for %d", f.Rows, f.Hidden, w.rows))
	}
	c.mu.Lock()
	w.x = x
	c.mu.Unlock()
	close(w.done)
	return c.took(l, len(f.Payload))
}
