package head_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

// lines counts what is logged.
type lines struct {
	slog.Handler
	n atomic.Int64
}

func (l *lines) Enabled(context.Context, slog.Level) bool  { return true }
func (l *lines) Handle(context.Context, slog.Record) error { l.n.Add(1); return nil }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler        { return l }
func (l *lines) WithGroup(string) slog.Handler             { return l }
func frames(w *hoptest.World, id p2p.PeerID) (n int) {
	for _, to := range []p2p.PeerID{"a", "b", "c", "a2", "b2", "c2"} {
		for _, k := range w.Net.Stats(id, to).Frames {
			n += k
		}
	}
	return n
}

// TestFiftyKills: one conversation survives fifty kills, one after another, and when
// it is over nothing is left of them: no goroutines, no words, no traffic.
func TestFiftyKills(t *testing.T) {
	for _, mode := range []head.StandbyMode{head.StandbyNone, head.StandbyAll} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) { fiftyKills(t, mode) })
	}
}

func fiftyKills(t *testing.T, mode head.StandbyMode) {
	synctest.Test(t, func(t *testing.T) {
		w := spares(t)
		defer w.Close()
		log := &lines{}
		w.Log = slog.New(log)
		spans := map[p2p.PeerID][2]int{"a": {0, 4}, "b": {4, 8}, "c": {8, 12}, "a2": {0, 4}, "b2": {4, 8}, "c2": {8, 12}}
		m := newStandbyMesh(w, "head", mode)
		first := begin(t, m.Backend(), 2, 40)
		first.steps(2)
		first.b.Close()
		time.Sleep(10 * time.Second)
		before := runtime.NumGoroutine()

		c := begin(t, m.Backend(), 1, 500)
		c.steps(2)
		for i := range 50 {
			victim := p2p.PeerID(c.b.Stats().Route[i%3].Peer)
			w.Kill(victim)
			at := time.Now()
			c.step()
			if d := time.Since(at); d > time.Second {
				t.Errorf("kill %d, of %s: the step took %v", i, victim, d)
			}
			time.Sleep(500 * time.Millisecond)
			w.Join(victim, spans[victim][0], spans[victim][1])
			time.Sleep(500 * time.Millisecond)
			c.step()
		}
		if n := len(c.b.Stats().Recoveries); n != 50 {
			t.Errorf("%d recoveries of 50 kills", n)
		}
		if n := log.n.Load(); n > 50*30 {
			t.Errorf("%d lines about 50 kills", n)
		}
		c.b.Close()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if after := runtime.NumGoroutine(); after > before {
			t.Errorf("%d goroutines, %d before the kills", after, before)
		}
		said, sent := log.n.Load(), frames(w, "head")
		time.Sleep(10 * time.Minute)
		if said, sent := log.n.Load()-said, frames(w, "head")-sent; said > 0 || sent > 0 {
			t.Errorf("%d lines and %d frames in the ten minutes after", said, sent)
		}
	})
}

// TestBetterPeerJoins: who comes and is faster takes new sessions; the running ones
// don't notice.
func TestBetterPeerJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := spares(t)
		defer w.Close()
		m := newMesh(w, "head")
		c := begin(t, m.Backend(), 1, 40)
		defer c.b.Close()
		c.steps(3)
		o := w.Join("best", 0, 12).Offer
		o.DecodeMicros = 12
		w.Dir.Put(o)
		at := time.Now()
		c.steps(20)
		st := c.b.Stats()
		if d := time.Since(at); len(st.Recoveries) > 0 || len(st.Route) != 3 || d > 0 {
			t.Errorf("route %+v, recoveries %+v, 20 steps in %v", st.Route, st.Recoveries, d)
		}
		late := begin(t, m.Backend(), 2, 40)
		defer late.b.Close()
		late.steps(2)
		if r := late.b.Stats().Route; len(r) != 1 || r[0].Peer != "best" {
			t.Errorf("a new session goes over %+v", r)
		}
	})
}

// TestLateForEver: a peer whose every answer is that it needs more time is asked twice,
// then left; where all are so, the request ends, in minutes and not in half an hour.
func TestLateForEver(t *testing.T) {
	for _, all := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := spares(t)
			defer w.Close()
			c := begin(t, newMesh(w, "head").Backend(), 1, 40)
			defer c.b.Close()
			c.steps(3)
			w.Peer("b").Engine.RowTime = time.Hour
			if all {
				w.Peer("b2").Engine.RowTime = time.Hour
			}
			at := time.Now()
			if all {
				_, err := c.b.Forward(context.Background(), c.ids, len(c.ids)-1, 1)
				if err == nil || !strings.Contains(err.Error(), "layers 4 to 7") {
					t.Errorf("got %v", err)
				}
				if d := time.Since(at); d > 5*time.Minute {
					t.Errorf("the error took %v", d)
				}
				return
			}
			c.step()
			if d := time.Since(at); d > 12*time.Second {
				t.Errorf("the step took %v", d)
			}
			c.steps(5)
			if st := c.b.Stats(); st.Route[1].Peer != "b2" {
				t.Errorf("route %+v, recoveries %+v", st.Route, st.Recoveries)
			}
		})
	}
}

// TestOverlap: a second fault that strikes while the first is mended costs its own
// time, not a wait on top.
func TestOverlap(t *testing.T) {
	for _, tt := range []struct {
		name   string
		strike func(w *hoptest.World)
		most   time.Duration
	}{
		{"the stand-in was killed before", func(w *hoptest.World) { w.Kill("b2"); w.Join("b3", 4, 8); w.Kill("b") }, 100 * time.Millisecond},
		{"the stand-in is frozen", func(w *hoptest.World) { w.Net.Freeze("b2"); w.Join("b3", 4, 8); w.Kill("b") }, 3100 * time.Millisecond},
		{"the stand-in is frozen, and known to be near", func(w *hoptest.World) {
			for _, id := range []p2p.PeerID{"a", "c", "b2"} {
				w.Dir.Link(route.Link{From: "head", To: id, Micros: 1000})
			}
			w.Net.Freeze("b2")
			w.Join("b3", 4, 8)
			w.Kill("b")
		}, 600 * time.Millisecond},
		{"two frozen at once", func(w *hoptest.World) { w.Net.Freeze("b"); w.Net.Freeze("c") }, 6 * time.Second},
		{"the last one is back after a second", func(w *hoptest.World) {
			w.Kill("b")
			w.Kill("b2")
			time.AfterFunc(time.Second, func() { w.Join("b", 4, 8) })
		}, 1100 * time.Millisecond},
		{"the one lost long ago is back", func(w *hoptest.World) {
			w.Kill("b2")
			time.AfterFunc(time.Second, func() { w.Join("b2", 4, 8) })
			w.Kill("b")
		}, 1100 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := spares(t)
				defer w.Close()
				c := begin(t, newMesh(w, "head").Backend(), 1, 40)
				defer c.b.Close()
				c.steps(3)
				at := time.Now()
				tt.strike(w)
				c.step()
				if d := time.Since(at); d > tt.most {
					t.Errorf("the step took %v: %+v", d, c.b.Stats().Recoveries)
				}
				for range 3 {
					time.Sleep(time.Second)
					c.step()
				}
			})
		})
	}
}
