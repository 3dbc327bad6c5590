package head_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

// TestLyingCapacity: peers that claim to be a thousand times as fast, and to have
// room, draw the route to them. The answer comes from an honest one all the same, and
// the next request does not try the liars first.
func TestLyingCapacity(t *testing.T) {
	lies := map[string]func(w *hoptest.World, liar p2p.PeerID){
		"no room after all": func(w *hoptest.World, liar p2p.PeerID) {
			w.Peer(liar).Cache.Close()
		},
		"never computes": func(w *hoptest.World, liar p2p.PeerID) { w.Peer(liar).Engine.RowTime = time.Hour },
		"always fails": func(w *hoptest.World, liar p2p.PeerID) {
			w.Peer(liar).Engine.Before = func([]hop.Work) error { return errors.New("no") }
		},
		"does not answer": func(w *hoptest.World, liar p2p.PeerID) { w.Net.Freeze(liar) },
		"is not there":    func(w *hoptest.World, liar p2p.PeerID) { w.Kill(liar) },
	}
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := world(t)
				defer w.Close()
				w.Join("honest", 0, 12)
				for i := range 3 {
					liar := p2p.PeerID(fmt.Sprint("a liar ", i))
					o := w.Join(liar, 0, 12).Offer
					o.DecodeMicros, o.PrefillMicros, o.CacheFree, o.MaxSessions = 1, 1, 1<<62, 1<<30
					w.Dir.Put(o)
					lie(w, liar)
				}
				m := newMesh(w, "head")
				at := time.Now()
				c := begin(t, m.Backend(), 1, 40)
				c.steps(3)
				first := time.Since(at)
				c.b.Close()
				if first > 5*time.Minute { // each is asked twice, with ever more time
					t.Errorf("three liars cost %v", first)
				}
				at = time.Now()
				c = begin(t, m.Backend(), 2, 40)
				c.steps(3)
				if d := time.Since(at); d > time.Second {
					t.Errorf("the next request took %v", d)
				}
				c.b.Close()
			})
		})
	}
}

// TestDeterministicError: what fails everywhere in the same way is not tried for ever.
func TestDeterministicError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world(t)
		defer w.Close()
		var mu sync.Mutex
		tries := 0
		for i := range 12 {
			id := p2p.PeerID(fmt.Sprint("p", i))
			w.Join(id, 0, 12).Engine.Before = func([]hop.Work) error {
				mu.Lock()
				defer mu.Unlock()
				tries++
				return errors.New("a bug that all have")
			}
		}
		b := newMesh(w, "head").Backend()
		defer b.Close()
		if err := b.Begin(context.Background(), session(1), 4096, nil); err != nil {
			t.Fatal(err)
		}
		_, err := b.Forward(context.Background(), []int32{1, 2, 3}, 0, 1)
		if err == nil || !strings.Contains(err.Error(), "gave up after 3 re-routes") {
			t.Errorf("got %v", err)
		}
		if tries != 4 {
			t.Errorf("%d peers computed it, want the first and 3 re-routes", tries)
		}
	})
}

// TestNoRetryStorm: while the only holder of a layer is gone, the head tries it a few
// times and rests between; afterwards it does nothing at all.
func TestNoRetryStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world(t)
		defer w.Close()
		w.Join("a", 0, 6)
		w.Join("b", 6, 12)
		c := begin(t, newMesh(w, "head").Backend(), 1, 40)
		defer c.b.Close()
		c.steps(3)
		var mu sync.Mutex
		opens := 0
		w.Net.Fault(p2ptest.Fault{From: "head", Opens: true, Do: p2ptest.ResetBefore, To: "b", Then: func(*p2ptest.Network) {
			mu.Lock()
			defer mu.Unlock()
			opens++
		}})
		w.Kill("b")
		if _, err := c.b.Forward(context.Background(), c.ids, len(c.ids)-1, 1); err == nil {
			t.Fatal("an answer without half of the layers")
		}
		if opens == 0 || opens > 40 {
			t.Errorf("%d streams were tried in 30 s", opens)
		}
		before := opens
		time.Sleep(time.Hour)
		if opens != before {
			t.Errorf("%d more in the hour after", opens-before)
		}
	})
}

// TestSlowNeighbour: a peer that takes rows and gives none fills its own session's
// queue and nobody else's: others that share the hop before it go on as fast as ever.
func TestSlowNeighbour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world(t)
		defer w.Close()
		w.Net.SetBuffer(4 << 10)
		w.Join("a", 0, 6).Engine.RowTime = time.Millisecond
		w.Join("slow", 6, 12).Engine.RowTime = time.Hour
		slow := newMesh(w, "head of the slow").Backend()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		if err := slow.Begin(ctx, session(1), 4096, nil); err != nil {
			t.Fatal(err)
		}
		go func() {
			defer close(done)
			ids := make([]int32, 4000)
			_, _ = slow.Forward(ctx, ids, 0, 1)
		}()
		time.Sleep(5 * time.Second) // all queues to the slow one are full
		w.Dir.Remove("slow")
		w.Join("quick", 6, 12)
		c := begin(t, newMesh(w, "head").Backend(), 2, 40)
		at := time.Now()
		c.steps(20)
		if d := time.Since(at); d > time.Second {
			t.Errorf("20 steps beside a slow peer took %v", d)
		}
		if st := c.b.Stats(); len(st.Recoveries) > 0 {
			t.Errorf("recoveries %+v", st.Recoveries)
		}
		c.b.Close()
		cancel()
		<-done
		slow.Close()
	})
}
