package head_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

// standing is the standbys of the session by peer, after they had time to follow.
func (r *refilled) standing(t *testing.T) map[string]head.StandbyStat {
	t.Helper()
	time.Sleep(3 * time.Second)
	synctest.Wait()
	out := map[string]head.StandbyStat{}
	for _, s := range r.c.b.Stats().Standbys {
		out[s.Peer] = s
	}
	return out
}

// TestStandby: every hop has a standby that follows, and who loses a hop has the
// standby compute what it lacks, and nobody else anything.
func TestStandby(t *testing.T) {
	for _, killed := range []p2p.PeerID{"a", "b", "d"} {
		for _, variant := range []string{"chain", "star", "rigid states"} {
			t.Run(string(killed)+", "+variant, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRefilledWith(t, head.StandbyAll, "2", 0, variant == "rigid states", variant == "star")
					defer r.close()
					st := r.standing(t)
					for id, span := range fourSpans {
						s := st[string(id)+"2"]
						if s.Start != span[0] || s.End != span[1] || s.Behind != 0 || s.Rows != len(r.c.ids)-1 {
							t.Errorf("standby of %s: %+v with %d tokens answered", id, s, len(r.c.ids)-1)
						}
					}
					r.c.steps(4) // too few and too quick to be followed
					synctest.Wait()
					r.m.reset()
					behind := 0
					for _, s := range r.c.b.Stats().Standbys {
						if s.Peer == string(killed)+"2" {
							behind = s.Behind
						}
					}
					if behind != 4 {
						t.Errorf("%d rows behind after 4 steps at once", behind)
					}
					r.w.Kill(killed)
					at := time.Now()
					r.c.step()
					if d := time.Since(at); d > 0 {
						t.Errorf("the step took %v", d)
					}
					got := r.c.b.Stats()
					if len(got.Recoveries) != 1 || got.Recoveries[0].RowsReplayed > behind {
						t.Errorf("recoveries %+v, the standby was %d rows behind", got.Recoveries, behind)
					}
					rows := r.m.read()
					for _, h := range got.Route {
						id, most := p2p.PeerID(h.Peer), 1
						if id == killed+"2" {
							most += behind
						}
						if rows[id] != most {
							t.Errorf("%s computed %d rows, %d were lacking", id, rows[id], most)
						}
					}
					if !slices.ContainsFunc(got.Route, func(h head.HopStat) bool { return h.Peer == string(killed)+"2" }) {
						t.Errorf("route %+v without the standby", got.Route)
					}
					r.c.steps(20)
					r.c.b.Close()
					if !r.w.Forgotten(2 * time.Second) {
						t.Error("a session is left")
					}
				})
			})
		}
	}
}

// undisturbed fails the test if the session noticed anything.
func (r *refilled) undisturbed(t *testing.T) {
	t.Helper()
	if st := r.c.b.Stats(); len(st.Recoveries) > 0 || st.Misses > 0 {
		t.Errorf("recoveries %+v, %d misses", st.Recoveries, st.Misses)
	}
}

// TestStandbyDies: a standby that is killed while it is filled disturbs nobody, and
// another one takes its place.
func TestStandbyDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefilledWith(t, head.StandbyAll, "", 0, false, false)
		defer r.close()
		var once sync.Once
		r.m.watch(r.w.Join("b2", 3, 6), func(int) {
			once.Do(func() { go r.w.Kill("b2") })
			time.Sleep(10 * time.Millisecond)
		})
		for range 4 {
			r.c.step()
			time.Sleep(time.Second)
		}
		if n := r.w.Net.Stats("head", "b2").Frames[wire.KindActivation]; n == 0 || r.w.Peer("b2") != nil {
			t.Errorf("b2 was sent %d refills, and lives: %v", n, r.w.Peer("b2") != nil)
		}
		r.m.watch(r.w.Join("b3", 3, 6), nil)
		for range 5 {
			time.Sleep(time.Second)
			r.c.step()
		}
		r.undisturbed(t)
		if st := r.standing(t); st["b3"].Behind != 0 || st["b3"].Rows == 0 {
			t.Errorf("standbys %+v", st)
		}
		r.m.reset()
		r.w.Kill("b")
		r.c.step()
		if rows := r.m.read(); rows["b3"] != 1 || rows["a"] != 1 {
			t.Errorf("rows %v", rows)
		}
	})
}

// TestStandbyDrains: a standby that leaves is let go.
func TestStandbyDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefilledWith(t, head.StandbyAll, "2", 0, false, false)
		defer r.close()
		r.standing(t)
		o := r.w.Peer("b2").Offer
		o.State = wire.Draining
		r.w.Dir.Put(o)
		gone := make(chan error, 1)
		go func() { gone <- r.w.Peer("b2").Drain(5 * time.Second) }()
		for range 5 {
			r.c.step()
			time.Sleep(500 * time.Millisecond)
		}
		if err := <-gone; err != nil {
			t.Error(err)
		}
		r.undisturbed(t)
	})
}

// TestStandbyFull: a peer without room is not asked, or says so, and nothing is the
// worse for it.
func TestStandbyFull(t *testing.T) {
	for _, says := range []bool{true, false} {
		t.Run(fmt.Sprint("its offer says so: ", says), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRefilledWith(t, head.StandbyAll, "", 0, false, false)
				defer r.close()
				r.w.Cache.MaxBytes = 1000 // of one session less than a tenth
				o := r.w.Join("b2", 3, 6).Offer
				if says {
					o.Sessions, o.MaxSessions = 4, 4
					r.w.Dir.Put(o)
				}
				r.c.step()
				if st := r.standing(t); len(st) > 0 {
					t.Errorf("standbys %+v", st)
				}
				for range 5 {
					time.Sleep(time.Second)
					r.c.step()
				}
				r.undisturbed(t)
				asked := r.w.Net.Stats("head", "b2").Frames[wire.KindOpen]
				if says != (asked == 0) || asked > 5 {
					t.Errorf("it was asked %d times", asked)
				}
			})
		})
	}
}

// TestStandbyBarren: where the hop before keeps no rows there is no standby, but
// for the first hop, whose rows the head makes; and what is lost is computed as ever.
func TestStandbyBarren(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefilledWith(t, head.StandbyAll, "2", -1, false, false)
		defer r.close()
		if st := r.standing(t); len(st) != 1 || st["a2"].Rows == 0 {
			t.Errorf("standbys %+v", st)
		}
		asked := r.w.Net.Stats("head", "a").Frames[wire.KindResend]
		for range 10 {
			time.Sleep(time.Second)
			r.c.step()
		}
		if n := r.w.Net.Stats("head", "a").Frames[wire.KindResend]; asked == 0 || n != asked {
			t.Errorf("who keeps nothing was asked for rows %d times, then %d times more", asked, n-asked)
		}
		r.w.Kill("b")
		r.c.steps(3)
	})
}

// TestStandbyTakenBack: rows of tokens that were taken back are never believed, even
// if the hop is lost before the standby has been told.
func TestStandbyTakenBack(t *testing.T) {
	for _, rigid := range []bool{false, true} {
		for _, when := range []string{"before", "at once", "when the standby was told"} {
			for _, back := range []int{1, 3, 1000} {
				t.Run(fmt.Sprintf("rigid %v, %d tokens, lost %s", rigid, back, when), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						r := newRefilledWith(t, head.StandbyAll, "2", 0, rigid, false)
						defer r.close()
						r.standing(t)
						c := r.c
						past := len(c.ids) - back
						for i := past; i < len(c.ids); i++ {
							c.ids[i] += 5000
						}
						if when == "before" {
							r.w.Kill("b")
						}
						got, err := c.b.Forward(context.Background(), c.ids, past, 1)
						if err != nil {
							t.Fatal(err)
						}
						if want := hoptest.Expect(c.ids, testLayers, testHidden, 1); !slices.Equal(got, want) {
							t.Fatal("the step after taking tokens back is wrong")
						}
						c.ids = append(c.ids, 77)
						switch when {
						case "at once": // as many tokens as the standby has rows, some of others
							r.w.Kill("b")
						case "when the standby was told":
							// A state that can't be cut is made anew, by a standby that is.
							time.Sleep(20 * time.Second)
							c.step()
							st := r.standing(t)["b2"]
							if st.Behind != 0 || st.Rows == 0 {
								t.Errorf("standby %+v", st)
							}
							r.m.reset()
							r.w.Kill("b")
							c.step()
							if rows := r.m.read(); rows["b2"] != 1 {
								t.Errorf("rows %v", rows)
							}
						}
						c.steps(10)
					})
				})
			}
		}
	}
}

// TestStandbyShare: a head's standbys leave a peer places for its sessions.
func TestStandbyShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world(t)
		defer w.Close()
		w.Join("a", 0, 12)
		o := w.Join("a2", 0, 12).Offer
		o.DecodeMicros *= 3
		w.Dir.Put(o)
		m := newStandbyMesh(w, "head", head.StandbyAll)
		for i := range 7 {
			c := begin(t, m.Backend(), i, 40)
			defer c.b.Close()
			c.steps(2)
		}
		time.Sleep(5 * time.Second)
		n := 0
		for _, l := range m.Live() {
			n += len(l.Standbys)
		}
		if held := len(w.Peer("a2").Server.Sessions()); n != 4 || held != 4 {
			t.Errorf("%d standbys are told, a2 holds %d sessions", n, held)
		}
	})
}

// TestStandbyLeaves: who takes a leaving hop's place is filled while that serves on.
func TestStandbyLeaves(t *testing.T) {
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprint("nobody has room: ", full), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRefilledWith(t, head.StandbyLeaving, "2", 0, false, false)
				defer r.close()
				r.w.Peer("b2").Engine.RowTime = time.Millisecond
				if full {
					o := r.w.Peer("b2").Offer
					o.Sessions, o.MaxSessions = 4, 4
					r.w.Dir.Put(o)
				}
				time.Sleep(time.Second)
				r.c.step()
				if st := r.c.b.Stats().Standbys; len(st) > 0 {
					t.Errorf("standbys %+v of hops that stay", st)
				}
				r.m.reset()
				o := r.w.Peer("b").Offer
				o.State = wire.Draining
				r.w.Dir.Put(o)
				gone := make(chan error, 1)
				go func() { gone <- r.w.Peer("b").Drain(30 * time.Second) }()
				synctest.Wait()
				var longest time.Duration
				for range 100 {
					at := time.Now()
					r.c.step()
					longest = max(longest, time.Since(at))
					time.Sleep(30 * time.Millisecond)
				}
				if err := <-gone; err != nil {
					t.Error(err)
				}
				st := r.c.b.Stats()
				if causes(st) != "leaving" || st.Route[1].Peer != "b2" {
					t.Errorf("route %+v, recoveries %+v", st.Route, st.Recoveries)
				}
				// All rows at once take 1.3 s, the last few 32 ms at most.
				if most := 40 * time.Millisecond; full != (longest > most) {
					t.Errorf("the longest step took %v", longest)
				}
				for _, id := range []p2p.PeerID{"a", "c", "d"} {
					if rows := r.m.read()[id]; rows != 100 {
						t.Errorf("%s computed %d rows in 100 steps", id, rows)
					}
				}
			})
		})
	}
}

// TestEveryStandbyFrame disturbs a standby at every frame of its life, then needs it:
// the answer is the same, and nothing but the kill is noticed.
func TestEveryStandbyFrame(t *testing.T) {
	for _, l := range [][2]p2p.PeerID{{"head", "b2"}, {"b2", "head"}} {
		for _, do := range []p2ptest.Action{p2ptest.ResetBefore, p2ptest.ResetMiddle, p2ptest.ResetAfter, p2ptest.Drop} {
			for nth := 1; nth <= 6; nth++ {
				t.Run(fmt.Sprintf("%s to %s, action %d, frame %d", l[0], l[1], do, nth), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := world(t)
						defer w.Close()
						for id, span := range fourSpans {
							w.Join(id, span[0], span[1])
							o := w.Join(id+"2", span[0], span[1]).Offer
							o.DecodeMicros *= 3
							w.Dir.Put(o)
						}
						w.Net.Fault(p2ptest.Fault{From: l[0], To: l[1], Protocol: p2p.ActivationProtocol, Nth: nth, Do: do})
						c := begin(t, newStandbyMesh(w, "head", head.StandbyAll).Backend(), 1, 700)
						defer c.b.Close()
						c.steps(2)
						for range 6 {
							time.Sleep(500 * time.Millisecond)
							c.steps(3)
						}
						if st := c.b.Stats(); len(st.Recoveries) > 0 {
							t.Errorf("recoveries %+v", st.Recoveries)
						}
						w.Kill("b")
						c.steps(3)
					})
				})
			}
		}
	}
}

// TestStandbyFrozen: a standby that is frozen is given up, holds up no step, and its
// head's end is not held up for long.
func TestStandbyFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefilledWith(t, head.StandbyAll, "2", 0, false, false)
		defer r.close()
		r.standing(t)
		r.w.Net.Freeze("b2")
		for range 30 {
			at := time.Now()
			r.c.step()
			if d := time.Since(at); d > 0 {
				t.Errorf("a step took %v", d)
			}
			time.Sleep(200 * time.Millisecond)
		}
		r.undisturbed(t)
		if st := r.standing(t); st["b2"].Rows > 0 {
			t.Errorf("standbys %+v", st)
		}
		r.w.Dir.Link(route.Link{From: "head", To: "b2", Micros: 1000})
		r.w.Net.Thaw("b2")
		for range 60 {
			time.Sleep(time.Second)
			r.c.step()
		}
		if st := r.standing(t); st["b2"].Rows == 0 || st["b2"].Behind > 0 {
			t.Errorf("standbys %+v after it is back", st)
		}
	})
}
