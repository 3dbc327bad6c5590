package route

import (
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// Event is what happened to a session: one of the structs below.
type Event interface{ event() }

type (
	// View is what the head knows of the mesh now. Give a fresh one before any
	// event after which the session may plan.
	View struct {
		Offers []wire.Offer
		Links  []Link
	}
	// Begin asks for a route; the session answers Return when it stands.
	Begin struct{}
	// Forward asks for the hidden states of the last Want of Tokens tokens, of
	// which the first Past were answered before.
	Forward struct{ Tokens, Past, Want int }
	// Opened: every hop of the epoch answered READY. Held and Linked are by hop.
	Opened struct {
		Epoch  uint32
		Held   []int
		Linked []bool
	}
	// Done: the rows that the last Send wants are here, or the Refill is finished.
	Done struct{ Epoch uint32 }
	// Failed: the Open, Send or Refill of the epoch did not succeed.
	Failed struct {
		Epoch uint32
		Failure
	}
	// Leaving: a hop said that it drains.
	Leaving struct{ Peer p2p.PeerID }
	// Warm: a peer outside the route, which Standby named, holds the first Rows tokens
	// of the session and no others over the layers [Start, End); 0: it is of no use.
	Warm struct {
		Peer             p2p.PeerID
		Start, End, Rows int
	}
	// Tick: time passed.
	Tick struct{}
)

// Failure says who failed and how.
type Failure struct {
	Hop    int        // index in the route
	Peer   p2p.PeerID // whose fault it is; not always the peer of Hop
	Code   wire.Code  // 0: no answer (stream broken, no heartbeat, dial failed)
	Silent bool       // alive, but past its deadline; of an Open: no sign of life so far
	Held   int        // with CodeCacheMiss: tokens held
	Retry  time.Duration
	Next   p2p.PeerID // with CodeLinkDown: whom Peer cannot reach, though both are alive
	Text   string
}

func (View) event()    {}
func (Begin) event()   {}
func (Forward) event() {}
func (Opened) event()  {}
func (Done) event()    {}
func (Failed) event()  {}
func (Leaving) event() {}
func (Warm) event()    {}
func (Tick) event()    {}

// Action is what the driver has to do, in order: one of the structs below.
type Action interface{ action() }

type (
	// Open opens a circuit over the route, answered by Opened or Failed. The
	// circuit of an earlier epoch is closed when this one stands, not before: its
	// hops keep their caches as long as they have a stream.
	Open struct {
		Epoch  uint32
		Route  Route
		Within time.Duration // give up then
		// Signs is by hop how soon it must give a sign of life, since another could take
		// its place; 0: Within is enough.
		Signs []time.Duration
	}
	// Send sends the tokens [Past, Past+Rows) in frames of Chunk rows with rising
	// Seq, answered by Done or Failed.
	Send struct {
		Epoch    uint32
		Seq      uint32 // of the first frame
		Mode     wire.CacheMode
		Past     int
		Rows     int
		Chunk    int
		Want     int
		Deadline time.Duration // for the first answer and between answers of frames
	}
	// Refill has one hop alone compute the tokens [Past, Past+Rows), which the others
	// hold: the hop before gives it once more what it gave then, and for the first hop
	// the head does. Answered by Done or Failed.
	Refill struct {
		Epoch    uint32
		Seq      uint32 // of the first frame
		Hop      int
		Past     int
		Rows     int
		Chunk    int
		Deadline time.Duration // as in Send
	}
	// Wait waits for a changed View, or gives a Tick at Until.
	Wait struct{ Until time.Duration }
	// Say tells the client.
	Say struct {
		Kind SayKind
		Text string
	}
	// Return ends Begin or Forward with success.
	Return struct{}
	// Fail ends Begin or Forward, and the session.
	Fail struct{ Err error }
)

// SayKind sorts what Say says.
type SayKind uint8

const (
	SayRoute     SayKind = 1 + iota // a route stands
	SayWaiting                      // no route: waiting
	SayReroute                      // looking for another route
	SayReprefill                    // computing lost rows again
	SayRecovered                    // the interrupted step is answered
)

func (Open) action()   {}
func (Send) action()   {}
func (Refill) action() {}
func (Wait) action()   {}
func (Say) action()    {}
func (Return) action() {}
func (Fail) action()   {}

// Recovery is one disturbance that the session survived.
type Recovery struct {
	Cause string
	Hop   int
	Peer  p2p.PeerID
	At    time.Duration // noticed
	Took  time.Duration // until the interrupted step was answered
	Rows  int           // computed again, by the whole route or by those alone that lacked them
}
