package head

import (
	"context"
	"time"

	"github.com/meshnet/meshnet/p2p/wire"
)

// Backend is one session's way through all layers of the model: rows of token
// embeddings in, hidden states of the last layer out. It is made for one chat
// request, used by one goroutine, and recovers by itself: whatever breaks
// underneath, Forward returns the same values as an undisturbed run, or an error
// that ends the request.
type Backend interface {
	// Begin fixes the session's id and the number of tokens that it may grow to,
	// and finds a route. n is told what a person may want to know while they wait;
	// it may be nil, and must not block.
	Begin(ctx context.Context, session wire.SessionID, maxLen int, n Notify) error
	// Forward applies the layers to ids[past:], where ids are all tokens of the
	// session so far and the first past of them were applied by earlier calls, and
	// returns the last want rows: want x hidden float32, valid until the next call.
	// past may be less than what was applied before: the rest is forgotten. A
	// *DistrustError says that nothing was done and earlier rows may have been wrong.
	Forward(ctx context.Context, ids []int32, past, want int) ([]float32, error)
	// Settle waits, for seconds at most, until what the answer was made of is checked as
	// far as it is to be. The error is a *DistrustError as of Forward, or ctx's.
	Settle(ctx context.Context) error
	// Stats is the session so far. It stays valid after Close and may ask the hops
	// (at most a second).
	Stats() BackendStats
	// Close ends the session on every hop. It may be called twice.
	Close()
}

// NewBackend makes the Backend of one request.
type NewBackend func() Backend

// Embedder looks up token embeddings: len(ids) x hidden into dst.
type Embedder interface {
	Embed(ids []int32, dst []float32) error
}

// Notify receives notes for whoever waits for the answer.
type Notify func(Note)

// Note is one thing that a waiting person may want to know.
type Note struct {
	Kind NoteKind
	Text string // a sentence without a full stop; never a prompt
}

// NoteKind sorts notes.
type NoteKind uint8

const (
	NoteRoute     NoteKind = 1 + iota // a route was found
	NoteWaiting                       // nobody offers some layers: waiting
	NoteReroute                       // a hop was lost or leaves: another route
	NoteReprefill                     // a cache was lost: computing the text so far again
	NoteRecovered                     // back to normal
)

// BackendStats describes a session.
type BackendStats struct {
	Session       wire.SessionID
	Route         []HopStat
	BytesPerToken float64 // bytes of frames a decode step, over all links of the route together
	Hits          int     // steps that found their past in every hop's cache
	Misses        int     // cache misses reported by hops
	Recoveries    []Recovery
	Standbys      []StandbyStat
	Verified      VerifyStat
}

// HopStat is one hop of the latest route.
type HopStat struct {
	Peer          string
	Start, End    int
	Star          bool    // the output came back to the head to be forwarded
	MsPerToken    float64 // computing, a decode step; 0 before the first
	BytesPerToken float64 // bytes of frames that reached the hop, a decode step
}

// Recovery is one disturbance that the session survived.
type Recovery struct {
	Session      wire.SessionID
	Cause        string    // "cache miss", "peer lost", "link down", "deadline", "leaving", "bad data", ...
	Hop          int       // index in the route of that time, from 0; -1 unknown
	Peer         string    // who it was
	At           time.Time // noticed
	Ms           float64   // from noticing to the answer of the interrupted step
	RowsReplayed int       // rows computed again
	ReplayMs     float64   // of Ms: the time that this took
	Trace        string    // what was done within the step, with ms since the first failure
}
