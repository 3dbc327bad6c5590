package p2ptest

import (
	"encoding/binary"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// Action is what happens to the frame (or to the Open) that a Fault meets.
type Action uint8

const (
	Pass        Action = iota // nothing, besides Delay and Then
	Drop                      // the frame vanishes, the stream goes on; an Open hangs until its context ends
	ResetBefore               // the stream is reset instead; an Open is unreachable
	ResetMiddle               // the first half is delivered, then the stream is reset
	ResetAfter                // the whole frame is delivered, then the stream is reset
	Refuse                    // Opens only: the peer refuses the protocol
)

// Border is where in a frame something happens.
type Border uint8

const (
	After  Border = iota // all of it is sent
	Middle               // half of its bytes are
	Before               // nothing is
)

// Sent is a frame, or an Open, that is about to be sent.
type Sent struct {
	From, To p2p.PeerID
	Protocol string
	Kind     wire.Kind // 0 for an Open
	Bytes    int       // of the whole frame
}

// Fault strikes frames in one direction. Empty fields match anything.
type Fault struct {
	From, To p2p.PeerID
	Protocol string
	Kind     wire.Kind
	Opens    bool // strikes Opens from From to To instead of frames
	Nth      int  // strikes the nth match since it was added, from 1; 0 = every one

	Do    Action
	Delay time.Duration             // later than the link's latency; what follows keeps its order
	Edit  func(frame []byte) []byte // replaces the frame, length prefix included; nil for no change
	Then  func(n *Network)          // runs in the sender's goroutine once the fault has struck
	On    func(n *Network, s Sent)  // as Then, but at the Border, which counts if Do is Pass, and before an Open
	At    Border
	seen  int
}

// Fault adds a fault. Where several strike, the first that was added does. It works on frames written from now on; the streams that it
// may match hold back a frame until its last byte is written.
func (n *Network) Fault(f Fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f.seen = 0
	n.faults = append(n.faults, &f)
}

// Trace has f called for every whole frame and every Open from now on, in the order in which they are about to be sent. f must not
// call the network.
func (n *Network) Trace(f func(Sent)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.trace = f
}

// told tells the trace. The lock is held.
func (n *Network) told(s Sent) {
	if n.trace != nil {
		n.trace(s)
	}
}

// ClearFaults removes all faults.
func (n *Network) ClearFaults() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = nil
}

func (f *Fault) along(r route, protocol string) bool {
	return (f.From == "" || f.From == r.from) && (f.To == "" || f.To == r.to) &&
		(f.Protocol == "" || f.Protocol == protocol)
}

// strike counts a match in every fault and gives the first that strikes.
func (n *Network) strike(matches func(*Fault) bool) *Fault {
	var hit *Fault
	for _, f := range n.faults {
		if !matches(f) {
			continue
		}
		f.seen++
		if hit == nil && (f.Nth == 0 || f.Nth == f.seen) {
			hit = f
		}
	}
	return hit
}

func (n *Network) openFault(r route, protocol string) *Fault {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told(Sent{From: r.from, To: r.to, Protocol: protocol})
	return n.strike(func(f *Fault) bool { return f.Opens && f.along(r, protocol) })
}

func (n *Network) frameFault(r route, protocol string, k wire.Kind) *Fault {
	return n.strike(func(f *Fault) bool {
		return !f.Opens && f.along(r, protocol) && (f.Kind == 0 || f.Kind == k)
	})
}

// watched says that some fault may strike on the route.
func (n *Network) watched(r route, protocol string) bool {
	for _, f := range n.faults {
		if !f.Opens && f.along(r, protocol) {
			return true
		}
	}
	return false
}

// framer finds frames in what is written. What is no frame makes it blind for good,
// and everything passes.
type framer struct {
	blind bool
	keep  bool   // the current frame is held back until it is whole
	have  []byte // of the current frame: all of it if kept, else its head
	left  int    // bytes that the current frame lacks, once its head is there
	size  int    // of the current frame, once its head is there
}

const head = 6 // length, array head, kind

// next takes bytes from p up to the end of one frame. done says that the frame
// which begins in have is complete; start afresh then with reset.
func (f *framer) next(p []byte) (used int, done bool) {
	if f.blind {
		return len(p), false
	}
	if len(f.have) < head {
		used = min(len(p), head-len(f.have))
		f.have = append(f.have, p[:used]...)
		if len(f.have) < head {
			return used, false
		}
		n := binary.BigEndian.Uint32(f.have)
		if n < 2 || n > wire.MaxFrame {
			f.blind = true
			return used, false
		}
		f.size = int(n) + 4
		f.left = f.size - head
	}
	more := min(len(p)-used, f.left)
	if f.keep {
		f.have = append(f.have, p[used:used+more]...)
	}
	f.left -= more
	return used + more, f.left == 0
}

func (f *framer) fresh() bool { return !f.blind && len(f.have) == 0 }

func (f *framer) reset() { f.have, f.left = f.have[:0], 0 }

func (f *framer) kind() wire.Kind { return wire.Kind(f.have[head-1]) }
