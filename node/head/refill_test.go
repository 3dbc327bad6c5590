package head_test

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

// meter counts the rows that engines compute.
type meter struct {
	mu   sync.Mutex
	rows map[p2p.PeerID]int
}

func (m *meter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rows = map[p2p.PeerID]int{}
}

func (m *meter) read() map[p2p.PeerID]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.rows)
}

// watch counts on a peer's engine; also, if set, is called with each batch before.
func (m *meter) watch(v *hoptest.Volunteer, also func(rows int)) {
	v.Engine.Before = func(batch []hop.Work) error {
		for _, w := range batch {
			if also != nil {
				also(w.Rows)
			}
			m.mu.Lock()
			m.rows[v.ID] += w.Rows
			m.mu.Unlock()
		}
		return nil
	}
}

// refilled is four peers in a row with stand-ins, and a session of several frames
// that has decoded a little.
type refilled struct {
	w    *hoptest.World
	m    meter
	mesh *head.Mesh
	c    *chat
}

var fourSpans = map[p2p.PeerID][2]int{"a": {0, 3}, "b": {3, 6}, "c": {6, 9}, "d": {9, 12}}

func newRefilled(t *testing.T, stand string, keep int64, rigid, star bool) *refilled {
	return newRefilledWith(t, head.StandbyNone, stand, keep, rigid, star)
}

func newRefilledWith(t *testing.T, mode head.StandbyMode, stand string, keep int64, rigid, star bool) *refilled {
	r := &refilled{w: world(t)}
	r.w.Keep = keep
	r.m.reset()
	join := func(id p2p.PeerID, span [2]int, slow uint32) {
		v := r.w.Join(id, span[0], span[1])
		v.Engine.Rigid = rigid
		r.m.watch(v, nil)
		o := v.Offer
		o.DecodeMicros *= slow
		r.w.Dir.Put(o)
	}
	for id, span := range fourSpans {
		join(id, span, 1)
		for i, suffix := range stand {
			join(id+p2p.PeerID(suffix), span, uint32(3+3*i))
		}
	}
	if star {
		for _, from := range []p2p.PeerID{"a", "b", "c", "a2", "b2", "c2"} {
			for _, to := range []p2p.PeerID{"b", "c", "d", "b2", "c2", "d2"} {
				if from != to {
					r.w.Dir.Link(route.Link{From: from, To: to, Down: true})
				}
			}
		}
	}
	r.mesh = newStandbyMesh(r.w, "head", mode)
	m := r.mesh
	r.c = begin(t, m.Backend(), 1, 1300)
	r.c.steps(4)
	r.m.reset()
	return r
}

func (r *refilled) close() {
	r.c.b.Close()
	r.w.Close()
}

// TestOnlyTheLostSpan: whoever still holds its rows computes nothing but the
// interrupted step, once; who lost them, or stands in, what it lacks.
func TestOnlyTheLostSpan(t *testing.T) {
	evict := func(ids ...p2p.PeerID) func(*refilled) {
		return func(r *refilled) {
			for _, id := range ids {
				if _, err := r.w.Peer(id).Server.Evict("all"); err != nil {
					r.w.T.Error(err)
				}
			}
		}
	}
	kill := func(ids ...p2p.PeerID) func(*refilled) {
		return func(r *refilled) {
			for _, id := range ids {
				r.w.Kill(id)
			}
		}
	}
	// within kills a peer while it computes its next batch.
	within := func(r *refilled, id p2p.PeerID) {
		var once sync.Once
		r.m.watch(r.w.Peer(id), func(int) {
			once.Do(func() { go r.w.Kill(id) })
			time.Sleep(10 * time.Millisecond)
		})
	}
	tests := []struct {
		name   string
		strike func(r *refilled)
		filled []p2p.PeerID // compute everything once more; all others on the route nothing
	}{
		{"kill first", kill("a"), []p2p.PeerID{"a2"}},
		{"kill middle", kill("b"), []p2p.PeerID{"b2"}},
		{"kill last", kill("d"), []p2p.PeerID{"d2"}},
		{"kill two neighbours", kill("b", "c"), []p2p.PeerID{"b2", "c2"}},
		{"kill two apart", kill("b", "d"), []p2p.PeerID{"b2", "d2"}},
		{"kill all but the last", kill("a", "b", "c"), []p2p.PeerID{"a2", "b2", "c2"}},
		{"kill in the middle of a step", func(r *refilled) { within(r, "c") }, []p2p.PeerID{"c2"}},
		{"evict first", evict("a"), []p2p.PeerID{"a"}},
		{"evict middle", evict("c"), []p2p.PeerID{"c"}},
		{"evict last", evict("d"), []p2p.PeerID{"d"}},
		{"restart middle", func(r *refilled) {
			r.w.Kill("b")
			r.w.Dir.Remove("b2")
			r.m.watch(r.w.Join("b", 3, 6), nil)
		}, []p2p.PeerID{"b"}},
		{"the stand-in too", func(r *refilled) { within(r, "b2"); r.w.Kill("b") }, []p2p.PeerID{"b3"}},
		{"leaving", func(r *refilled) {
			o := r.w.Peer("b").Offer
			o.State = wire.Draining
			r.w.Dir.Put(o)
			go func() { _ = r.w.Peer("b").Drain(30 * time.Second) }()
			synctest.Wait()
		}, []p2p.PeerID{"b2"}},
	}
	for _, tt := range tests {
		for _, variant := range []string{"chain", "star", "rigid states"} {
			stand := "2"
			if tt.name == "the stand-in too" {
				if stand = "23"; variant == "star" {
					continue // b3 has links
				}
			}
			t.Run(tt.name+", "+variant, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRefilled(t, stand, 0, variant == "rigid states", variant == "star")
					defer r.close()
					tt.strike(r)
					n := len(r.c.ids)
					r.c.step()
					rows := r.m.read()
					st := r.c.b.Stats()
					replayed := 0
					for _, rec := range st.Recoveries {
						replayed += rec.RowsReplayed
					}
					lacked := map[p2p.PeerID]bool{}
					for _, id := range tt.filled {
						lacked[id] = true
					}
					for _, h := range st.Route {
						id, want := p2p.PeerID(h.Peer), 1
						if lacked[id] {
							want = n
							delete(lacked, id)
						}
						if rows[id] != want {
							t.Errorf("%s computed %d rows, want %d (all: %v)", id, rows[id], want, rows)
						}
					}
					if len(lacked) > 0 {
						t.Errorf("the route is %+v, without %v", st.Route, lacked)
					}
					// What a stand-in that died was given counts as well.
					if least := len(tt.filled) * (n - 1); replayed < least || replayed > least && tt.name != "the stand-in too" {
						t.Errorf("%d rows replayed are told, want %d: %+v", replayed, least, st.Recoveries)
					}
					r.m.reset()
					for range 3 {
						time.Sleep(time.Second)
						r.c.step()
					}
					rows = r.m.read()
					for _, h := range st.Route {
						if got := rows[p2p.PeerID(h.Peer)]; got != 3 {
							t.Errorf("%s computed %d rows in 3 undisturbed steps", h.Peer, got)
						}
					}
				})
			})
		}
	}
}

// TestNotKept: where the rows are over the bound, or the stand-in begins at a layer
// that nobody kept the rows of, everything goes through the route once more.
func TestNotKept(t *testing.T) {
	// 1300 rows of 8 values are 41,600 bytes, kept in one block of 64 KiB.
	for name, keep := range map[string]int64{"over the bound": 60 << 10, "nothing is kept": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRefilled(t, "2", keep, false, false)
				defer r.close()
				r.w.Kill("b")
				n := len(r.c.ids)
				r.c.step()
				if recs := r.c.b.Stats().Recoveries; len(recs) != 1 || recs[0].RowsReplayed != n-1 {
					t.Errorf("recoveries %+v, want one of %d rows", recs, n-1)
				}
				// The hop before may have computed the row under way when the loss was noticed.
				if rows := r.m.read(); rows["a"] != n && rows["a"] != n+1 || rows["b2"] != n || rows["c"] != n {
					t.Errorf("rows %v, want %d for all", rows, n)
				}
				r.c.steps(3)
			})
		})
	}
	t.Run("other borders", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRefilled(t, "", 0, false, false)
			defer r.close()
			r.m.watch(r.w.Join("x", 2, 7), nil)
			r.w.Kill("b")
			r.w.Kill("c")
			r.m.watch(r.w.Join("y", 5, 10), nil)
			r.c.steps(3)
			st := r.c.b.Stats()
			t.Logf("route %+v, rows %v", st.Route, r.m.read())
			if n := len(st.Route); n != 4 {
				t.Errorf("route %+v", st.Route)
			}
		})
	})
}

// TestEveryRefillFrame disturbs a recovery at every frame of it, on every link that
// it uses: the answer is the same.
func TestEveryRefillFrame(t *testing.T) {
	for _, l := range [][2]p2p.PeerID{{"head", "a"}, {"head", "b2"}, {"a", "b2"}, {"b2", "head"}, {"b2", "c"}, {"b2", "a"}, {"a", "head"}} {
		for _, do := range []p2ptest.Action{p2ptest.ResetBefore, p2ptest.ResetMiddle, p2ptest.ResetAfter, p2ptest.Drop} {
			for nth := 1; nth <= 5; nth++ {
				for _, star := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s to %s, action %d, frame %d, star %v", l[0], l[1], do, nth, star), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							r := newRefilled(t, "2", 0, false, star)
							defer r.close()
							r.w.Kill("b")
							r.w.Net.Fault(p2ptest.Fault{From: l[0], To: l[1], Protocol: p2p.ActivationProtocol, Nth: nth, Do: do})
							r.c.steps(3)
						})
					})
				}
			}
		}
	}
}

// TestKeptIsFreed: what hops keep is gone with the session.
func TestKeptIsFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefilled(t, "2", 0, false, false)
		defer r.close()
		r.w.Kill("b")
		r.c.steps(2)
		for id, want := range map[p2p.PeerID]bool{"a": true, "b2": true, "c": true, "d": false, "c2": false} {
			if got := metric(t, r.w.Peer(id), "meshnet_hop_kept_bytes"); (got > 0) != want {
				t.Errorf("%s keeps %v bytes", id, got)
			}
		}
		r.c.b.Close()
		if !r.w.Forgotten(2 * time.Second) {
			t.Error("a session is left")
		}
		for _, id := range []p2p.PeerID{"a", "b2", "c"} {
			if got := metric(t, r.w.Peer(id), "meshnet_hop_kept_bytes"); got != 0 {
				t.Errorf("%s keeps %v bytes of a session that is over", id, got)
			}
		}
	})
}

// metric reads one figure of a peer's server.
func metric(t *testing.T, v *hoptest.Volunteer, name string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(v.Server); err != nil {
		t.Fatal(err)
	}
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.Metric[0].GetCounter().GetValue() + f.Metric[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
