// Package hop acts: it is both ends of the activation protocol, the head's
// (Client, Circuit) and a peer's (Server), which also speaks to the next peer of
// a chain. Heartbeats between them are here as well (Hearts).
//
// A step's way through a peer, each line one goroutine:
//
//	head reader, link reader   one per stream: parse, check, count, answer PING at once
//	        │ inbox, bounded by the credit that the peer gave
//	session worker             one per session: cache, order of steps, what goes where
//	        │ queue, one job a session
//	compute loop               one per engine: decodes of many sessions together, prefill between
//	        │ the worker again
//	head stream or next peer   waits for credit there, holds up nobody but its own session
//
// Invariant: a step is applied and answered, or not applied and refused; a repeat
// of the last applied step is answered from memory. On failure the head gets one
// *Error naming hop, peer and code. Start reading at Server.Handle and Client.Open.
package hop

import (
	"context"
	"fmt"
	"time"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// Engine computes a range of layers. It is shard.Engine as this package sees it.
type Engine interface {
	// CacheTypes are the types of cache that the engine can keep.
	CacheTypes() wire.CacheTypes
	// NewState is an empty state of one session over the layers [start, end), kept as t.
	NewState(start, end int, t wire.CacheType) (cache.State, error)
	// StateBytes is what such a state may come to hold at maxLen tokens.
	StateBytes(start, end int, t wire.CacheType, maxLen int) int64
	// Forward applies each item's layers to its rows in place and appends them to
	// its state. After an error every state is as before; the rows may be spoiled.
	Forward(ctx context.Context, batch []Work) error
}

// Work is rows of one session.
type Work struct {
	State cache.State
	Rows  int
	X     []float32 // Rows x hidden, input and output
}

const (
	// Window is the payload that may be under way on a stream before the reader has
	// given credit back: on 100 Mbit/s and 40 ms it keeps a decode that shares the
	// link with a prefill at 48 ms instead of 128, at the same bulk rate.
	Window = 512 << 10
	// creditPiece is what a reader collects before it gives credit back, so that
	// decode steps cost no frame in return. That much may stay owed for ever.
	creditPiece = 64 << 10

	chunkBytes = 256 << 10 // payload of a prefill frame: two fill the window
	chunkLeast = 16        // rows of a prefill frame, even if hidden is large

	openTimeout  = 5 * time.Second // dial, OPEN, READY
	linkTimeout  = 3 * time.Second // the same between two hops: the head must learn in time
	parkTimeout  = 5 * time.Second // a link waits for the head's OPEN
	writeTimeout = 5 * time.Second // a frame into the stream, and a second for each 64 KiB
	pingTimeout  = time.Second

	beatEvery = time.Second
	beatDead  = 3 * time.Second
	// beatless is how long a head may hold a session without a heartbeat stream: it
	// opens one with the session, and another if that breaks.
	beatless = 2 * beatDead
)

// ChunkRows is how many rows of a prefill go into one frame.
func ChunkRows(hidden int) int {
	return min(wire.MaxChunkRows, max(chunkLeast, chunkBytes/(4*max(hidden, 1))))
}

// Error is the one error of a failed Open or Step.
type Error struct {
	Hop    int           // index in the route
	Peer   p2p.PeerID    // whose fault it is: of the hop, or whom the hop accuses
	Code   wire.Code     // 0: no answer came (stream broken, no heartbeat, dial failed)
	Side   Side          // who noticed
	Silent bool          // alive, but past the deadline
	Held   int           // with CodeCacheMiss: tokens held
	Retry  time.Duration // with CodeBusy
	Next   p2p.PeerID    // with CodeLinkDown: whom Peer cannot reach, though both answer
	Text   string
	Err    error // with Side Local
}

// Side says where an error was noticed.
type Side string

// Sides.
const (
	Local  Side = "local"
	Remote Side = "remote"
)

func (e *Error) Error() string {
	s := fmt.Sprintf("hop %d, %s: ", e.Hop, e.Peer.Short())
	switch {
	case e.Silent:
		s += "no answer before the deadline"
	case e.Code != 0:
		s += e.Code.String()
	default:
		s += "lost"
	}
	if e.Next != "" {
		s += " to " + e.Next.Short()
	}
	if e.Side == Remote {
		s += " (said the peer)"
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }
