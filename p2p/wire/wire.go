// Package wire is the bytes between peers: frames, their limits and error codes.
//
// A frame is a u32 big-endian length and a msgpack array whose first element is
// the Kind and whose last is the payload, if the kind has one. One frame, one Write.
// Invariant: Parse(Append(f)) == f; nothing is allocated from a length that was
// not checked; the payload of a parsed frame aliases the input.
// Start reading at Frame; docs/wire.md has every field with a hex example.
package wire

// SessionID names one chat request on every hop, drawn at random by its head.
type SessionID [16]byte

// Fingerprint is the SHA-256 of a model file.
type Fingerprint [32]byte

// Kind is the first element of every frame. Numbers are frozen.
type Kind uint8

const (
	KindOpen Kind = 1 + iota
	KindReady
	KindActivation
	KindResult
	KindCredit
	KindPing
	KindLeaving
	KindClose
	KindError
)

// CacheMode says what an activation does with the session's cache.
type CacheMode uint8

const (
	Prefill   CacheMode = 1 + iota // append rows; more than past_len is cut first
	Decode                         // as Prefill, for the single row of a step
	Stateless                      // neither reads nor writes the cache: all rows are here
)

// DType is the type of the payload's numbers, little endian.
type DType uint8

const (
	F32 DType = 1 + iota
	F16
)

// Role says who opened a stream.
type Role uint8

const (
	RoleHead Role = 1 + iota // the head that owns the session
	RoleLink                 // the previous hop of a chain
)

// Frame is any of the structs below.
type Frame interface{ Kind() Kind }

// Open is the first frame on an activation stream. From the head it makes a peer
// a hop of a session, from the previous hop it makes a link of the chain.
type Open struct {
	Session   SessionID
	Epoch     uint32 // counts re-routes of the session, from 1
	Role      Role
	Start     uint32 // effective start layer
	End       uint32 // half-open
	Model     Fingerprint
	Hidden    uint32 // values a row
	DType     DType
	MaxLen    uint32   // tokens that the session may grow to
	Prev      string   // peer id that may send activations besides the head; "" = the head only
	Next      string   // peer id that gets the output; "" = the head, on the head's stream
	NextAddrs []string // hints for reaching Next
}

// Ready answers Open.
type Ready struct {
	Session SessionID
	Epoch   uint32
	Held    uint32 // tokens that the cache holds for (session, start, end)
	Linked  bool   // the link to Next stands; false = output goes to the head (star)
	Credit  uint32 // payload bytes that may be outstanding on this stream
}

// Activation carries rows into a hop.
type Activation struct {
	Session  SessionID
	Epoch    uint32
	Seq      uint32 // step number within the session, rises by one a frame, over all epochs
	Mode     CacheMode
	Past     uint32 // tokens that the cache must hold before
	Rows     uint32
	Want     uint32 // last rows whose result the head needs; 0 = acknowledge only
	DType    DType
	Hidden   uint32
	Deadline uint32 // ms until nobody waits any more
	Payload  []byte // rows x hidden
}

// Result answers an Activation: from the last hop in a chain, from every hop in a star.
type Result struct {
	Session SessionID
	Epoch   uint32
	Seq     uint32
	Rows    uint32 // = min(Want, rows sent); all rows when the head forwards them (star)
	DType   DType
	Hidden  uint32
	Payload []byte
}

// Credit gives back payload bytes that the receiver has taken off the stream.
type Credit struct {
	Session SessionID
	Epoch   uint32
	Bytes   uint32
}

// Ping asks for, and answers with, a sign of life. On a session's stream it also
// says how far the hop has come; on a heartbeat stream Session is zero.
type Ping struct {
	Session  SessionID
	Epoch    uint32
	Nonce    uint64
	Reply    bool
	LastSeq  uint32 // last Seq applied
	Frames   uint64 // activations applied since Open
	Rows     uint64 // rows computed since Open
	Micros   uint64 // time spent computing them, queueing excluded
	BytesIn  uint64 // bytes of frames received for the session, headers included
	BytesOut uint64
}

// Leaving says that the peer drains: serve on, but open a replacement.
type Leaving struct {
	Session SessionID
	Epoch   uint32
	Grace   uint32 // ms
}

// Close ends a session on a hop and frees its cache.
type Close struct {
	Session SessionID
	Epoch   uint32
}

// Error says why an Open or Activation was not done. Nothing was applied.
type Error struct {
	Session SessionID
	Epoch   uint32
	Seq     uint32 // 0 where no step is meant
	Code    Code
	Held    uint32 // with CacheMiss: tokens held
	Retry   uint32 // with Busy: ms
	Peer    string // the peer that the error is about, if not the sender (LinkDown, NotFinite)
	Text    string // for people; at most 256 bytes; never a prompt
}

func (*Open) Kind() Kind       { return KindOpen }
func (*Ready) Kind() Kind      { return KindReady }
func (*Activation) Kind() Kind { return KindActivation }
func (*Result) Kind() Kind     { return KindResult }
func (*Credit) Kind() Kind     { return KindCredit }
func (*Ping) Kind() Kind       { return KindPing }
func (*Leaving) Kind() Kind    { return KindLeaving }
func (*Close) Kind() Kind      { return KindClose }
func (*Error) Kind() Kind      { return KindError }

// Code is a reason. Numbers are frozen; Reaction fixes what the other side does.
type Code uint8

const (
	CodeCacheMiss  Code = 1 + iota // holds fewer tokens than Past: re-prefill, same session
	CodeBusy                       // no room now: come back after Retry ms
	CodeDraining                   // leaving: go elsewhere
	CodeWrongModel                 // serves another model: go elsewhere
	CodeWrongRange                 // does not hold the layers: go elsewhere
	CodeNotOwner                   // the session belongs to another head: caller's fault
	CodeStaleEpoch                 // a newer Open exists: caller's fault
	CodeBadFrame                   // unparsable, oversize or out of place: caller's fault
	CodeBadShape                   // rows, hidden, dtype and payload disagree: drop the sender
	CodeNotFinite                  // NaN or infinity among the rows: drop the sender
	CodeTooLong                    // past the declared or the model's length: caller's fault
	CodeDeadline                   // too late, not computed: go elsewhere
	CodeLinkDown                   // can't reach Peer, the next hop: go elsewhere or star
	CodeLimited                    // came over a limited relay circuit: go elsewhere
	CodeInternal                   // failed for a reason of its own: go elsewhere
)

// Reaction is what a Code asks of whoever receives it.
type Reaction uint8

const (
	Replay    Reaction = 1 + iota // re-prefill under the same session id
	Elsewhere                     // ban for a while, re-plan
	Later                         // wait, then ask again or go elsewhere
	Caller                        // our own fault: report, don't retry
	Drop                          // the named peer lies or is broken: ban, re-plan
)

// Offer is what a peer says that it serves. It travels signed (SignedOffer).
type Offer struct {
	Network       string // name of the mesh, at most 64 bytes
	Model         Fingerprint
	Layers        uint32 // of the whole model
	Peer          string
	Start, End    uint32
	State         OfferState
	Seq           uint64 // rises with every offer of this peer, over restarts too (unix ms at issue works)
	Issued        int64  // unix ms
	Expires       int64  // unix ms, at most 120 s after Issued
	DecodeMicros  uint32 // measured: one row through the whole range
	PrefillMicros uint32 // measured: a row of a full chunk through the whole range
	CacheFree     uint64 // bytes
	CacheBytes    uint64
	Sessions      uint32
	MaxSessions   uint32
	TTLSeconds    uint32
	Addrs         []string // at most 8
	Version       string   // of the engine, at most 32 bytes
	RelayOnly     bool
	RTT           []RTT // to likely neighbours, at most 8
}

// RTT is a measured round trip.
type RTT struct {
	Peer   string
	Micros uint32
}

type OfferState uint8

const (
	Joining OfferState = 1 + iota
	Online
	Draining
)

// SignedOffer is an Offer as bytes with its signature by the peer's ed25519 key
// over "meshnet offer 1\n" + Payload. The peer id inlines the public key.
type SignedOffer struct {
	Payload   []byte
	Signature []byte
}
