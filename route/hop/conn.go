package hop

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// conn is one activation stream with its frames counted and its payloads under
// credit, both ways. One goroutine reads, one at a time sends payloads, any may
// write small frames.
type conn struct {
	s    p2p.Stream
	peer p2p.PeerID

	r       *wire.Reader
	turn    chan struct{} // holds one token: who writes, for seconds perhaps
	w       *wire.Writer
	timed   bool          // the reader's caller has set a deadline
	slow    bool          // a frame has begun and has a deadline
	in, out atomic.Uint64 // bytes of frames

	mu     sync.Mutex
	flying int           // payload sent, credit not back
	window int           // the peer's promise
	more   chan struct{} // credit came; for the one sender
	held   int           // payload received and not yet taken off
	owed   int           // taken off, credit not yet given back
}

func newConn(s p2p.Stream) *conn {
	c := &conn{s: s, peer: s.Remote(), r: wire.NewReader(s, wire.MaxFrame), w: wire.NewWriter(s), turn: make(chan struct{}, 1), window: Window, more: make(chan struct{}, 1)}
	c.r.OnSlow(func(rest int) {
		if !c.timed {
			c.slow = c.s.SetReadDeadline(time.Now().Add(framePatience(rest))) == nil
		}
	})
	return c
}

// read gives the next frame; its payload is valid until the next read.
func (c *conn) read() (wire.Frame, error) {
	f, err := c.r.ReadFrame()
	if err == nil {
		c.in.Add(uint64(c.r.FrameBytes()))
	}
	if c.slow && err == nil {
		c.slow = false
		err = c.s.SetReadDeadline(time.Time{})
	}
	return f, err
}

// readWithin is read with a deadline, for the frames of an opening.
func (c *conn) readWithin(d time.Duration) (wire.Frame, error) {
	if err := c.s.SetReadDeadline(time.Now().Add(d)); err != nil {
		return nil, err
	}
	c.timed = true
	defer func() { c.timed = false }()
	f, err := c.read()
	if err == nil {
		err = c.s.SetReadDeadline(time.Time{})
	}
	return f, err
}

// write sends a frame. After an error other than a refused frame the stream is reset.
func (c *conn) write(f wire.Frame, payload int) error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	patience := writeTimeout + time.Second*time.Duration(payload/(64<<10))
	if err := c.s.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	n, err := c.w.WriteFrame(f)
	c.out.Add(uint64(n))
	if err != nil {
		_ = c.s.Reset()
	}
	return err
}

// send writes a frame with payload as soon as the credit allows it.
func (c *conn) send(ctx context.Context, f wire.Frame, payload int) error {
	for {
		c.mu.Lock()
		// With next to nothing under way a frame over the whole window goes too, or
		// it never would: a stateless step is one frame.
		ok := c.flying+payload <= c.window || c.flying <= creditPiece
		if ok {
			c.flying += payload
		}
		c.mu.Unlock()
		if ok {
			return c.write(f, payload)
		}
		select {
		case <-c.more:
		case <-ctx.Done():
			return fmt.Errorf("wait for credit: %w", context.Cause(ctx))
		}
	}
}

// credited takes back credit that the peer gave.
func (c *conn) credited(n uint32) {
	c.mu.Lock()
	c.flying = max(0, c.flying-int(min(n, wire.MaxFrame)))
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// arrived counts a payload that was read, and says whether the peer kept to its
// credit. Decode frames stay below the piece that may be owed, so the sender and
// this side never disagree about a frame that is allowed.
func (c *conn) arrived(payload int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	under := c.held + c.owed
	c.held += payload
	return under+payload <= Window || under <= creditPiece
}

// taken gives credit back for a payload that left the inbox.
func (c *conn) taken(payload int, id wire.SessionID, epoch uint32) error {
	c.mu.Lock()
	c.held -= payload
	c.owed += payload
	give := 0
	if c.owed >= creditPiece {
		give, c.owed = c.owed, 0
	}
	c.mu.Unlock()
	if give == 0 {
		return nil
	}
	return c.write(&wire.Credit{Session: id, Epoch: epoch, Bytes: uint32(give)}, 0)
}

// payloadOf decodes a payload into rows of its own memory; what is wrong with
// shape or values comes back as a code.
func payloadOf(payload []byte, rows, frameHidden uint32, t wire.DType, hidden int) ([]float32, wire.Code) {
	if int(frameHidden) != hidden {
		return nil, wire.CodeBadShape
	}
	x := make([]float32, int(rows)*hidden)
	if err := wire.Floats(x, payload, t); err != nil {
		if err == wire.ErrNotFinite {
			return nil, wire.CodeNotFinite
		}
		return nil, wire.CodeBadShape
	}
	return x, 0
}

// payloadFor is rows as the payload of a frame.
func payloadFor(x []float32, t wire.DType) ([]byte, error) {
	if t == wire.F32 {
		return wire.Bytes(x), nil
	}
	return wire.AppendFloats(nil, x, t)
}
