package route

import (
	"testing"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// TestDoubts: who disappointed comes last for a while after its ban, but comes.
func TestDoubts(t *testing.T) {
	q := Query{Layers: 8, Head: "head", Doubts: map[p2p.PeerID]int{"fast": 1}}
	offer := func(id string, start, end, micros uint32) {
		q.Offers = append(q.Offers, wire.Offer{Peer: id, Layers: 8, Start: start, End: end, State: wire.Online, CacheTypes: wire.AllCacheTypes, DecodeMicros: micros})
	}
	expect := func(want string) {
		t.Helper()
		r, err := Plan(q)
		if err != nil || r.String() != want {
			t.Errorf("got %v, %v; want %s", r, err, want)
		}
		if err == nil && r.PredictedMicros() > 1_000_000 {
			t.Errorf("%v µs are predicted: the doubt is no time", r.PredictedMicros())
		}
	}
	offer("fast", 0, 8, 1)
	expect("fast[0:8)")
	offer("slow", 0, 4, 200_000)
	expect("fast[0:8)") // it is needed, so it does all: it is the quicker one
	offer("slower", 4, 8, 400_000)
	expect("slow[0:4) -> slower[4:8)")

	b := NewBans(1)
	until := b.Ban("fast", 0)
	for at, want := range map[time.Duration]bool{0: true, until: true, until + 9*time.Minute: true, until + 10*time.Minute: false} {
		if (b.Doubts(at)["fast"] > 0) != want {
			t.Errorf("banned until %v, at %v in doubt: %v", until, at, !want)
		}
	}
	b.Forgive("fast")
	if b.Doubts(0)["fast"] > 0 {
		t.Error("in doubt after it did what was asked")
	}
}
