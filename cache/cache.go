// Package cache keeps what a session leaves on a peer between two steps: one
// opaque State per (session, effective start, effective end).
//
// Invariant: the entries never number more than Config.MaxSessions, and their
// charges never sum to more than Config.MaxBytes, where an entry is charged
// the larger of what was reserved for it and what its state holds. (A state
// that outgrows its reservation while in use is charged when it is released,
// and pays with idle entries, itself the last of them.)
//
// The package never looks inside a state, never starts a goroutine and reads
// no clock but the one it was given. Start reading at Store.Admit.
package cache

import (
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Key says whose state it is and which layers [Start, End) it belongs to.
// Start is the effective start: the same session over other layers, or with its
// state kept in another form, is another entry, because the state of one cannot
// stand in for the other.
type Key struct {
	Session    [16]byte
	Start, End int
	Form       uint8 // how the state is kept: a number that only the users know
}

func (k Key) String() string {
	return fmt.Sprintf("%s[%d:%d)", hex.EncodeToString(k.Session[:4]), k.Start, k.End)
}

// State is what the layers left behind. The store calls its methods with its
// lock held and only while no Entry of it is out (Seek is its user's call), so
// they must be quick and must not call the store.
type State interface {
	Len() int            // tokens applied
	Bytes() int64        // memory held now
	Truncate(n int) bool // cut back to n tokens; false: impossible, nothing changed
	Close()              // free the memory; called exactly once
}

var (
	// ErrNotOwner: the session belongs to another head.
	ErrNotOwner = errors.New("cache: the session belongs to another head")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("cache: closed")
)

// MissError says that a session's state is not what the step needs, and how
// many tokens of it are held (0: nothing usable).
type MissError struct {
	Key  Key
	Held int
}

func (e *MissError) Error() string {
	return fmt.Sprintf("cache: miss of session %v: %d tokens held", e.Key, e.Held)
}

// FullError says that a session found no room although every idle entry that
// could make place was considered. RetryAfter 0 means that waiting does not
// help: the session alone is larger than the whole budget.
type FullError struct {
	NeedBytes, MaxBytes int64
	Sessions            int // in the store, all in use
	MaxSessions         int
	RetryAfter          time.Duration
}

func (e *FullError) Error() string {
	if e.RetryAfter == 0 {
		return fmt.Sprintf("cache: the session may need %d bytes, the whole cache has %d: shorten the session or raise %s", e.NeedBytes, e.MaxBytes, EnvMaxBytes)
	}
	return fmt.Sprintf("cache: full: %d bytes wanted of %d, %d of %d sessions, all in use; try again in %v",
		e.NeedBytes, e.MaxBytes, e.Sessions, e.MaxSessions, e.RetryAfter)
}

// Stats is a moment of the store. Counters only grow.
type Stats struct {
	Sessions, MaxSessions int
	Bytes, MaxBytes       int64
	TTL                   time.Duration

	Hits, Misses, Evictions, Expirations uint64

	Rows []Row // least recently used first
}

// Row is one entry of Stats.
type Row struct {
	Session    string // the first 8 hex digits: enough to tell apart, too few to use
	Start, End int
	Len        int
	Bytes      int64 // held by the state
	Reserved   int64 // admitted for it
	Idle       time.Duration
	InUse      bool
}
