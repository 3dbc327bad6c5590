package sim

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
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
	everyBorder(t, scene{chats: []int{0}}, 100, func(border, kind) bool { return true })
}

// TestEveryBorderOfAPrompt does so to a prompt of several frames, at those that carry
// its rows or let the next one go. What is not of a frame is the same as above.
func TestEveryBorderOfAPrompt(t *testing.T) {
	everyBorder(t, scene{chats: []int{len(lengths) - 1}}, 50, func(b border, k kind) bool {
		of := b.what == wire.KindActivation || b.what == wire.KindCredit || b.what == wire.KindResult
		return of && b.nth <= 6 && k != leave && k != cut
	})
}

// everyBorder plays a scene with one fault at all borders that are wanted, of which
// there are to be some.
func everyBorder(t *testing.T, sc scene, least int, want func(border, kind) bool) {
	t.Helper()
	sc.repeat = fmt.Sprintf("go test -run '%s$' ./testnet/sim", t.Name())
	sc.latency, sc.row, sc.finish = time.Millisecond, 20*time.Microsecond, true
	var scenes []scene
	passed := map[border]bool{}
	for _, b := range borders(t, sc) {
		for k := range kinds {
			if !want(b, k) {
				continue
			}
			passed[b] = true
			sc.pace = 0
			if k.passes() {
				sc.pace = while / answer // so that the chat is not over before it
			}
			for _, v := range victims(b, k) {
				sc.strikes = []strike{{border: b, kind: k, victim: v}}
				scenes = append(scenes, sc)
			}
		}
	}
	var mu sync.Mutex
	missed := 0
	slowest := map[kind]time.Duration{}
	lanes(t, uint64(len(scenes)), func(t *testing.T, i uint64) {
		sc := scenes[i]
		out := play(t, sc)
		if out.slowest > 10*time.Second {
			t.Errorf("%v: the answer took %v", sc.strikes, out.slowest)
		}
		mu.Lock()
		defer mu.Unlock()
		missed += 1 - out.struck
		k := sc.strikes[0].kind
		slowest[k] = max(slowest[k], out.slowest)
	})
	t.Logf("%d borders, %d scenes; the slowest chats took %v of virtual time", len(passed), len(scenes), slowest)
	if missed*100 > len(scenes) { // how heartbeats fall is up to the scheduler
		t.Errorf("the border did not come in %d scenes of %d", missed, len(scenes))
	}
	if len(passed) < least {
		t.Errorf("%d borders are too few", len(passed))
	}
}

// victims are whom a kind of strike can hit at a border: either end that is no head,
// or nobody, where it hits what is between them.
func victims(b border, k kind) (out []p2p.PeerID) {
	if !k.ofPeer() {
		return []p2p.PeerID{""}
	}
	for _, id := range []p2p.PeerID{b.from, b.to} {
		if id != "head1" {
			out = append(out, id)
		}
	}
	return out
}

// lanes calls f with 0 to n-1, on all processors.
func lanes(t *testing.T, n uint64, f func(t *testing.T, i uint64)) {
	side := uint64(runtime.GOMAXPROCS(0))
	t.Run("lanes", func(t *testing.T) {
		for lane := range side {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				for i := lane; i < n; i += side {
					f(t, i)
				}
			})
		}
	})
}
