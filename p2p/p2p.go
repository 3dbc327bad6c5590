// Package p2p is the vocabulary of the network: a peer, a stream, and the one
// thing that opens streams. It knows nothing of models and nothing of libp2p,
// so every protocol above it can be tested in memory (p2p/p2ptest).
//
// Invariant: a Streamer never retries; whoever calls decides what a failure means.
// Start reading at Streamer.
package p2p

import (
	"context"
	"errors"
	"io"
	"time"
)

// PeerID names a peer. It is comparable, printable and opaque: p2p/host fills it
// with the text form of a libp2p peer id, tests with any short word.
type PeerID string

// Short is the form for people: the last eight characters.
func (p PeerID) Short() string {
	if len(p) <= 8 {
		return string(p)
	}
	return string(p[len(p)-8:])
}

// Peer is a peer and where it may be reached: multiaddrs in text form, hints only.
type Peer struct {
	ID    PeerID
	Addrs []string
}

// Stream is one bidirectional byte stream to one peer. Close sends what was
// written and ends both directions; Reset throws it away. Deadlines work as in
// net.Conn. A timed-out write may be partial: Reset after it.
type Stream interface {
	io.Reader
	io.Writer
	CloseWrite() error
	Close() error
	Reset() error
	SetDeadline(t time.Time) error
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
	// Remote is the authenticated peer at the other end.
	Remote() PeerID
	// Limited says that the stream runs over a relay circuit with limits, which
	// must never carry activations.
	Limited() bool
}

// Handler serves one incoming stream. It owns the stream and must Close or Reset
// it; ctx ends when the host closes. The host waits for every Handler at Close.
type Handler func(ctx context.Context, s Stream)

// Streamer opens streams. The error wraps exactly one of ErrUnknown,
// ErrUnreachable and ErrRefused, or is ctx's. It never retries.
type Streamer interface {
	Open(ctx context.Context, to Peer, protocol string) (Stream, error)
	// Self is the local peer.
	Self() PeerID
}

// Mux registers handlers by protocol id. Register before connecting.
type Mux interface {
	Handle(protocol string, h Handler)
}

var (
	// ErrUnknown: nobody told us an address of this peer.
	ErrUnknown = errors.New("peer unknown")
	// ErrUnreachable: addresses are known, none answered.
	ErrUnreachable = errors.New("peer unreachable")
	// ErrRefused: the peer answered and does not speak the protocol or let us in.
	ErrRefused = errors.New("peer refused the stream")
)

// Protocol ids. A number changes when old and new can't talk.
const (
	ActivationProtocol = "/meshnet/activation/3"
	HeartbeatProtocol  = "/meshnet/heartbeat/1"
	OfferProtocol      = "/meshnet/offer/2"
)
