package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
)

// borders are all of those that an undisturbed scene passes, its end included.
func borders(t *testing.T, sc scene) (all []border) {
	t.Helper()
	type way struct {
		from, to p2p.PeerID
		protocol string
		opens    bool
	}
	counts := map[way]int{}
	for _, s := range play(t, sc).sent {
		w := way{s.From, s.To, s.Protocol, s.Kind == 0}
		counts[w]++
		for _, at := range []p2ptest.Border{p2ptest.Before, p2ptest.Middle, p2ptest.After} {
			if !w.opens || at == p2ptest.Before {
				all = append(all, border{from: s.From, to: s.To, protocol: s.Protocol, opens: w.opens, nth: counts[w], at: at, what: s.Kind})
			}
		}
	}
	return all
}

// TestEveryBorder breaks one thing at every border of a request, in every way and on
// either side: the answer is the undisturbed one, and comes in seconds.
func TestEveryBorder(t *testing.T) {
	sc := scene{repeat: "go test -run TestEveryBorder ./testnet/sim", chats: []int{0}, latency: time.Millisecond, row: 100 * time.Microsecond, finish: true}
	all := borders(t, sc)
	if len(all) < 100 {
		t.Fatalf("only %d borders", len(all))
	}
	played := 0
	slowest := map[kind]time.Duration{}
	for _, b := range all {
		for k := range kinds {
			victims := []p2p.PeerID{""}
			if k.ofPeer() {
				victims = []p2p.PeerID{b.from, b.to}
			}
			for _, v := range victims {
				if v == "head1" {
					continue
				}
				sc.strikes = []strike{{border: b, kind: k, victim: v}}
				out := play(t, sc)
				played++
				slowest[k] = max(slowest[k], out.slowest)
				if out.struck != 1 && !t.Failed() {
					t.Errorf("%v: its border did not come", sc.strikes)
				}
			}
		}
	}
	t.Log(fmt.Sprintf("%d borders, %d scenes, slowest %v", len(all), played, slowest))
}
