package head_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

// spares is three peers in a row, each with a slower stand-in.
func spares(t testing.TB) *hoptest.World {
	w := world(t)
	for _, p := range []struct {
		id         p2p.PeerID
		start, end int
	}{{"a", 0, 4}, {"b", 4, 8}, {"c", 8, 12}} {
		w.Join(p.id, p.start, p.end)
		o := w.Join(p.id+"2", p.start, p.end).Offer
		o.DecodeMicros *= 3
		w.Dir.Put(o)
	}
	return w
}

func causes(st head.BackendStats) string {
	var out []string
	for _, r := range st.Recoveries {
		out = append(out, r.Cause)
	}
	return strings.Join(out, ", ")
}

// TestDisturbed breaks something between or within steps; the answers must be
// those of an undisturbed run, and the recovery must be told.
func TestDisturbed(t *testing.T) {
	tests := []struct {
		name   string
		strike func(w *hoptest.World)
		cause  string
		most   time.Duration // of virtual time for the disturbed step
	}{
		{"evict the middle", func(w *hoptest.World) { w.Peer("b").Server.Evict("all") }, "cache miss", time.Second},
		{"evict all", func(w *hoptest.World) {
			for _, id := range []p2p.PeerID{"a", "b", "c"} {
				w.Peer(id).Server.Evict("all")
			}
		}, "cache miss", time.Second},
		{"ttl", func(w *hoptest.World) { time.Sleep(601 * time.Second) }, "cache miss", time.Second},
		{"kill first", func(w *hoptest.World) { w.Kill("a") }, "peer lost", 2 * time.Second},
		{"kill middle", func(w *hoptest.World) { w.Kill("b") }, "peer lost", 2 * time.Second},
		{"kill last", func(w *hoptest.World) { w.Kill("c") }, "peer lost", 2 * time.Second},
		{"restart middle", func(w *hoptest.World) { w.Kill("b"); w.Join("b", 4, 8) }, "peer lost", 2 * time.Second},
		{"freeze first", func(w *hoptest.World) { w.Net.Freeze("a") }, "peer lost", 9 * time.Second},
		{"freeze middle", func(w *hoptest.World) { w.Net.Freeze("b") }, "peer lost", 9 * time.Second},
		{"freeze last", func(w *hoptest.World) { w.Net.Freeze("c") }, "peer lost", 9 * time.Second},
		{"cut link", func(w *hoptest.World) { w.Net.Cut("a", "b") }, "link down", 9 * time.Second},
		{"hole in a link", func(w *hoptest.World) { w.Net.BlackHole("b", "c") }, "link down", 15 * time.Second},
		{"hole to the head", func(w *hoptest.World) { w.Net.BlackHole("b", "head") }, "peer lost", 9 * time.Second},
		{"cut to the head", func(w *hoptest.World) { w.Net.Cut("c", "head") }, "peer lost", 2 * time.Second},
	}
	for _, tt := range tests {
		for _, variant := range []string{"", ", nobody else", ", rigid states"} {
			name, stand := tt.name+variant, variant != ", nobody else"
			t.Run(name, func(t *testing.T) {
				if !stand && strings.HasPrefix(tt.name, "kill") || !stand && strings.Contains(tt.name, "head") || !stand && strings.HasPrefix(tt.name, "freeze") {
					t.Log("no route exists then: TestNobody")
					return
				}
				synctest.Test(t, func(t *testing.T) {
					w := spares(t)
					defer w.Close()
					if !stand {
						for _, id := range []p2p.PeerID{"a2", "b2", "c2"} {
							w.Dir.Remove(id)
						}
					}
					for _, id := range []p2p.PeerID{"a", "b", "c", "a2", "b2", "c2"} {
						w.Peer(id).Engine.Rigid = variant == ", rigid states"
					}
					c := begin(t, newMesh(w, "head").Backend(), 1, 40)
					defer c.b.Close()
					c.steps(5)
					tt.strike(w)
					at := time.Now()
					c.step()
					if d := time.Since(at); d > tt.most {
						t.Errorf("the disturbed step took %v", d)
					}
					for range 5 {
						time.Sleep(time.Second)
						c.step()
					}
					st := c.b.Stats()
					if !strings.HasPrefix(causes(st), tt.cause) || len(st.Recoveries) > 2 {
						t.Errorf("recoveries %+v, want one: %s", st.Recoveries, tt.cause)
					}
				})
			})
		}
	}
}

// TestEveryFrame resets the stream before, in and after every frame of a session,
// in both directions and on every link.
func TestEveryFrame(t *testing.T) {
	links := [][2]p2p.PeerID{{"head", "a"}, {"head", "b"}, {"head", "c"}, {"a", "b"}, {"b", "c"}, {"a", "head"}, {"b", "head"}, {"c", "head"}, {"b", "a"}, {"c", "b"}}
	for _, l := range links {
		for _, do := range []p2ptest.Action{p2ptest.ResetBefore, p2ptest.ResetMiddle, p2ptest.ResetAfter} {
			for _, proto := range []string{p2p.ActivationProtocol, p2p.HeartbeatProtocol} {
				for nth := 1; nth <= 6; nth++ {
					name := fmt.Sprintf("%s to %s, %s, action %d, frame %d", l[0], l[1], proto[9:], do, nth)
					t.Run(name, func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							w := spares(t)
							defer w.Close()
							w.Net.Fault(p2ptest.Fault{From: l[0], To: l[1], Protocol: proto, Nth: nth, Do: do})
							c := begin(t, newMesh(w, "head").Backend(), 1, 40)
							defer c.b.Close()
							for range 6 {
								c.step()
								time.Sleep(700 * time.Millisecond)
							}
						})
					})
				}
			}
		}
	}
}

// TestEveryPrefillFrame does the same to a prompt of several frames.
func TestEveryPrefillFrame(t *testing.T) {
	for _, l := range [][2]p2p.PeerID{{"head", "a"}, {"a", "b"}, {"b", "c"}, {"a", "head"}, {"c", "head"}, {"c", "b"}} {
		for _, do := range []p2ptest.Action{p2ptest.ResetBefore, p2ptest.ResetMiddle, p2ptest.ResetAfter} {
			for nth := 1; nth <= 4; nth++ {
				for _, star := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s to %s, action %d, frame %d, star %v", l[0], l[1], do, nth, star), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							w := spares(t)
							defer w.Close()
							if star {
								w.Dir.Link(route.Link{From: "a", To: "b", Down: true})
								w.Net.Cut("a", "b")
								if l == [2]p2p.PeerID{"a", "b"} {
									l = [2]p2p.PeerID{"head", "b"}
								}
							}
							w.Net.Fault(p2ptest.Fault{From: l[0], To: l[1], Protocol: p2p.ActivationProtocol, Nth: nth, Do: do})
							c := begin(t, newMesh(w, "head").Backend(), 1, 1300)
							defer c.b.Close()
							c.steps(3)
						})
					})
				}
			}
		}
	}
}

// TestManyRows asks for rows of several frames, in a chain and in a star.
func TestManyRows(t *testing.T) {
	for _, star := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := spares(t)
			defer w.Close()
			w.Net.SetBuffer(2 << 10)
			if star {
				w.Dir.Link(route.Link{From: "a", To: "b", Down: true})
				w.Dir.Link(route.Link{From: "b", To: "c", Down: true})
				for _, id := range []p2p.PeerID{"a2", "b2", "c2"} {
					w.Dir.Remove(id)
				}
			}
			c := begin(t, newMesh(w, "head").Backend(), 1, 3000)
			defer c.b.Close()
			got, err := c.b.Forward(context.Background(), c.ids, 0, 1200)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, hoptest.Expect(c.ids, testLayers, testHidden, 1200)) {
				t.Error("the rows differ from an undisturbed run")
			}
			if st := c.b.Stats(); st.Route[0].Star != star || len(st.Recoveries) > 0 {
				t.Errorf("route %+v, recoveries %+v", st.Route, st.Recoveries)
			}
		})
	}
}

// TestSevered: a link that one session found down costs the next no time.
func TestSevered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world(t)
		defer w.Close()
		w.Join("a", 0, 6)
		w.Join("b", 6, 12)
		w.Net.BlackHole("a", "b")
		m := newMesh(w, "head")
		for i, most := range []time.Duration{4 * time.Second, time.Second} {
			at := time.Now()
			c := begin(t, m.Backend(), i, 10)
			if d := time.Since(at); d > most {
				t.Errorf("session %d began after %v", i, d)
			}
			c.steps(3)
			c.b.Close()
		}
		w.Net.Heal("a", "b")
	})
}

// TestLostFrames drops one frame silently: only deadlines can notice.
func TestLostFrames(t *testing.T) {
	for _, l := range [][2]p2p.PeerID{{"head", "a"}, {"a", "b"}, {"b", "c"}, {"c", "head"}} {
		for _, k := range []wire.Kind{wire.KindActivation, wire.KindResult} {
			t.Run(fmt.Sprintf("%s to %s, %v", l[0], l[1], k), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := spares(t)
					defer w.Close()
					c := begin(t, newMesh(w, "head").Backend(), 1, 40)
					defer c.b.Close()
					c.steps(2)
					w.Net.Fault(p2ptest.Fault{From: l[0], To: l[1], Protocol: p2p.ActivationProtocol, Kind: k, Nth: 1, Do: p2ptest.Drop})
					c.steps(4)
				})
			})
		}
	}
}

// TestNobody: with an only holder gone the error comes in 30 s and names the
// layers; if it comes back in time, so does the answer.
func TestNobody(t *testing.T) {
	for _, back := range []bool{false, true} {
		t.Run(fmt.Sprint("back ", back), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := world(t)
				defer w.Close()
				w.Join("a", 0, 4)
				w.Join("b", 4, 8)
				w.Join("c", 8, 12)
				c := begin(t, newMesh(w, "head").Backend(), 1, 40)
				defer c.b.Close()
				c.steps(3)
				w.Kill("b")
				at := time.Now()
				if back {
					time.AfterFunc(10*time.Second, func() { w.Join("b", 4, 8) })
					c.steps(3)
					if d := time.Since(at); d < 10*time.Second || d > 16*time.Second {
						t.Errorf("took %v", d)
					}
					return
				}
				_, err := c.b.Forward(context.Background(), c.ids, len(c.ids)-1, 1)
				if err == nil || !strings.Contains(err.Error(), "layers 4 to 7") {
					t.Errorf("got error %v", err)
				}
				if d := time.Since(at); d > 31*time.Second {
					t.Errorf("the error took %v", d)
				}
				if _, again := c.b.Forward(context.Background(), c.ids, len(c.ids)-1, 1); again == nil {
					t.Error("a failed session went on")
				}
			})
		})
	}
}

// TestLeaving: a peer that drains is left between two steps and nothing fails.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := spares(t)
		defer w.Close()
		c := begin(t, newMesh(w, "head").Backend(), 1, 40)
		defer c.b.Close()
		c.steps(3)
		o := w.Peer("b").Offer
		o.State = wire.Draining
		w.Dir.Put(o)
		gone := make(chan error, 1)
		go func() { gone <- w.Peer("b").Drain(30 * time.Second) }()
		synctest.Wait()
		c.steps(3)
		if err := <-gone; err != nil {
			t.Error(err)
		}
		st := c.b.Stats()
		if causes(st) != "leaving" || st.Route[1].Peer != "b2" {
			t.Errorf("route %+v, recoveries %+v", st.Route, st.Recoveries)
		}
	})
}

// TestHeadGone: whether the head closes, is killed or freezes, no hop keeps its session.
func TestHeadGone(t *testing.T) {
	for name, tt := range map[string]struct {
		gone   func(w *hoptest.World, c *chat)
		within time.Duration
	}{
		"close":  {func(w *hoptest.World, c *chat) { c.b.Close() }, 2 * time.Second},
		"kill":   {func(w *hoptest.World, c *chat) { w.Net.Kill("head") }, 2 * time.Second},
		"freeze": {func(w *hoptest.World, c *chat) { w.Net.Freeze("head") }, 10 * time.Second}, // it may have had no time to beat
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := spares(t)
				defer w.Close()
				c := begin(t, newMesh(w, "head").Backend(), 1, 40)
				defer c.b.Close()
				defer w.Net.Thaw("head")
				c.steps(3)
				tt.gone(w, c)
				if !w.Forgotten(tt.within) {
					t.Errorf("sessions are held %v after", tt.within)
				}
			})
		})
	}
}

// TestCancel: a client that goes away ends the step at once.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := spares(t)
		defer w.Close()
		w.Peer("b").Engine.RowTime = time.Second
		c := begin(t, newMesh(w, "head").Backend(), 1, 40)
		ctx, cancel := context.WithCancelCause(context.Background())
		gone := errors.New("the client went")
		time.AfterFunc(100*time.Millisecond, func() { cancel(gone) })
		at := time.Now()
		if _, err := c.b.Forward(ctx, c.ids, 0, 1); !errors.Is(err, gone) {
			t.Errorf("got %v", err)
		}
		c.b.Close()
		if d := time.Since(at); d > 200*time.Millisecond {
			t.Errorf("took %v", d)
		}
	})
}

// TestCrossing: two heads use two peers in opposite order with prompts far over the
// credit; neither may wait for the other.
func TestCrossing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world(t)
		defer w.Close()
		w.Net.SetBuffer(4 << 10)
		w.Cache = cache.Config{MaxBytes: 1 << 30}
		for _, id := range []p2p.PeerID{"a", "b"} {
			w.Join(id, 0, 12).Engine.RowTime = time.Millisecond
		}
		done := make(chan struct{})
		run := func(n int, hide map[p2p.PeerID][2]int) {
			defer func() { done <- struct{}{} }()
			dir := hoptest.NewDirectory()
			for id, r := range hide {
				o := w.Peer(id).Offer
				o.Start, o.End = uint32(r[0]), uint32(r[1])
				dir.Put(o)
			}
			id := p2p.PeerID(fmt.Sprint("head", n))
			m, err := head.NewMesh(head.MeshConfig{
				Client: w.Client(id), Directory: dir, Embed: hoptest.Embedder{}, Head: id,
				Model: hoptest.Model, Layers: w.Layers, Hidden: w.Hidden, Logger: w.Log,
			})
			if err != nil {
				t.Error(err)
				return
			}
			c := begin(t, m.Backend(), n, 3000)
			defer c.b.Close()
			c.steps(5)
			if st := c.b.Stats(); len(st.Recoveries) > 0 {
				t.Errorf("recoveries %+v", st.Recoveries)
			}
		}
		go run(1, map[p2p.PeerID][2]int{"a": {0, 6}, "b": {6, 12}})
		go run(2, map[p2p.PeerID][2]int{"b": {0, 6}, "a": {6, 12}})
		<-done
		<-done
	})
}

// TestStateless: the answers are the same, and nothing is kept.
func TestStateless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := spares(t)
		defer w.Close()
		c := begin(t, newMesh(w, "head").Stateless(), 1, 40)
		defer c.b.Close()
		c.steps(3)
		w.Kill("b")
		c.steps(3)
		for _, id := range []p2p.PeerID{"a", "c", "b2"} {
			for _, r := range w.Peer(id).Cache.Stats().Rows {
				if r.Len != 0 {
					t.Errorf("%s holds %d tokens", id, r.Len)
				}
			}
		}
	})
}

// TestLiar: a peer that answers nonsense is dropped for its stand-in.
func TestLiar(t *testing.T) {
	edit := func(change func(a *wire.Activation, r *wire.Result)) func([]byte) []byte {
		return func(b []byte) []byte {
			f, _, err := wire.Parse(b)
			if err != nil {
				return b
			}
			a, _ := f.(*wire.Activation)
			r, _ := f.(*wire.Result)
			if a == nil && r == nil {
				return b
			}
			change(a, r)
			out, err := wire.Append(nil, f)
			if err != nil {
				return []byte("\xff\xff\xff\xff garbage over every limit")
			}
			return out
		}
	}
	nan := []byte{0, 0, 0xc0, 0x7f}
	lies := map[string]func([]byte) []byte{
		"not finite": edit(func(a *wire.Activation, r *wire.Result) {
			if a != nil {
				copy(a.Payload, nan)
			} else {
				copy(r.Payload, nan)
			}
		}),
		"other hidden": edit(func(a *wire.Activation, r *wire.Result) {
			if a != nil {
				a.Rows, a.Hidden = a.Rows*2, a.Hidden/2
				a.Want = min(a.Want, a.Rows)
			} else {
				r.Rows, r.Hidden = r.Rows*2, r.Hidden/2
			}
		}),
		"garbage":  func(b []byte) []byte { return []byte("GET / HTTP/1.1\r\n\r\n") },
		"oversize": func(b []byte) []byte { return []byte{0x7f, 0xff, 0xff, 0xff, 0x9c, 3} },
	}
	for name, lie := range lies {
		for _, l := range [][2]p2p.PeerID{{"a", "b"}, {"b", "c"}, {"c", "head"}} {
			t.Run(fmt.Sprintf("%s from %s", name, l[0]), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := spares(t)
					defer w.Close()
					c := begin(t, newMesh(w, "head").Backend(), 1, 40)
					defer c.b.Close()
					c.steps(2)
					kind := wire.KindActivation
					if l[1] == "head" {
						kind = wire.KindResult
					}
					w.Net.Fault(p2ptest.Fault{From: l[0], To: l[1], Protocol: p2p.ActivationProtocol, Kind: kind, Nth: 1, Edit: lie})
					c.steps(4)
					st := c.b.Stats()
					for _, h := range st.Route {
						if h.Peer == string(l[0]) {
							t.Errorf("%s is still in the route: %+v", h.Peer, st.Recoveries)
						}
					}
				})
			})
		}
	}
}

// TestCrowded: more sessions than a peer may hold take turns, each finding its
// cache gone; slow, but all of them end and are right.
func TestCrowded(t *testing.T) {
	for _, prompt := range []int{40, 1300} {
		synctest.Test(t, func(t *testing.T) {
			w := world(t)
			defer w.Close()
			w.Cache.MaxSessions = 1
			w.Join("a", 0, 6).Engine.RowTime = 100 * time.Microsecond
			w.Join("b", 6, 12).Engine.RowTime = 100 * time.Microsecond
			m := newMesh(w, "head")
			var all sync.WaitGroup
			for i := range 4 {
				all.Go(func() {
					b := m.Backend()
					defer b.Close()
					if err := b.Begin(context.Background(), session(i), 4096, nil); err != nil {
						t.Error(err)
						return
					}
					var ids []int32
					for k := range prompt {
						ids = append(ids, int32(i*1000+k))
					}
					past := 0
					for step := range 20 {
						got, err := b.Forward(context.Background(), ids, past, 1)
						if err != nil {
							t.Errorf("prompt %d, session %d, step %d: %v", prompt, i, step, err)
							return
						}
						if !slices.Equal(got, hoptest.Expect(ids, testLayers, testHidden, 1)) {
							t.Errorf("session %d, step %d is wrong", i, step)
							return
						}
						past = len(ids)
						ids = append(ids, int32(step))
						time.Sleep(time.Duration(step%7) * 20 * time.Millisecond)
					}
					st := b.Stats()
					t.Logf("prompt %d session %d: misses %d, recoveries %s", prompt, i, st.Misses, causes(st))
				})
			}
			all.Wait()
		})
	}
}
