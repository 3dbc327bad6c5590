package head_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

// here computes the oracle's layers as this machine does.
func here(_ context.Context, start, end int, t wire.CacheType, x []float32) error {
	e := &hoptest.Engine{Hidden: testHidden}
	s, err := e.NewState(start, end, t)
	if err != nil {
		return err
	}
	defer s.Close()
	return e.Forward(context.Background(), []hop.Work{{State: s, Rows: len(x) / testHidden, X: x}})
}

// checkedMesh checks a percentage of the spans.
func checkedMesh(w *hoptest.World, v head.Verify) *head.Mesh {
	v.Signed = hoptest.Verify
	m, err := head.NewMesh(head.MeshConfig{
		Client: w.Client("head"), Directory: w.Dir, Embed: hoptest.Embedder{}, Head: "head",
		Model: hoptest.Model, Layers: w.Layers, Hidden: w.Hidden, Verify: v, Logger: w.Log,
	})
	if err != nil {
		w.T.Fatal(err)
	}
	return m
}

// serve joins a peer over the layers that its name begins with: a second holder is slower.
func serve(w *hoptest.World, id p2p.PeerID) {
	start := 4 * int(id[0]-'a')
	v := w.Join(id, start, start+4)
	if len(id) > 1 {
		v.Offer.DecodeMicros *= 3
		w.Dir.Put(v.Offer)
	}
}

// doubted goes on until the session has doubts, at most steps tokens; rows are not compared.
func (c *chat) doubted(steps int) *head.DistrustError {
	c.t.Helper()
	for range steps {
		_, err := c.b.Forward(context.Background(), c.ids, len(c.ids)-1, 1)
		var d *head.DistrustError
		if errors.As(err, &d) {
			return d
		}
		if err != nil {
			c.t.Fatal(err)
		}
		c.did++
		c.ids = append(c.ids, int32(c.did*31%97))
		time.Sleep(100 * time.Millisecond)
	}
	c.t.Fatalf("no doubts after %d tokens", steps)
	return nil
}

// back computes again what was doubted and compares it.
func (c *chat) back(d *head.DistrustError) {
	c.t.Helper()
	n := len(c.ids) - 1
	want := n - d.From
	got, err := c.b.Forward(context.Background(), c.ids[:n], d.From, want)
	if err != nil {
		c.t.Fatal(err)
	}
	if !slices.Equal(got, hoptest.Expect(c.ids[:n], testLayers, testHidden, want)) {
		c.t.Fatalf("rows [%d, %d) are not those of the undisturbed run", d.From, n)
	}
}

// alter has a peer add a little to one value in a hundred rows that it computes from now
// on, the first time to the at-th.
func alter(v *hoptest.Volunteer, at int) {
	n := 0
	v.Engine.Before = func(batch []hop.Work) error {
		for _, w := range batch {
			for r := range w.Rows {
				if n%100 == at {
					w.X[r*testHidden+3] += 1.0 / (1 << 12)
				}
				n++
			}
		}
		return nil
	}
}

func clean(t *testing.T, w *hoptest.World, c *chat) {
	t.Helper()
	c.b.Close()
	if !w.Forgotten(2 * time.Second) {
		t.Error("a session is left")
	}
}

// TestWrongRows: who alters a value in a hundred rows is found and named, its neighbours
// and checkers are not, and all goes on with the right rows without it.
func TestWrongRows(t *testing.T) {
	for _, liar := range []p2p.PeerID{"a", "b", "c"} {
		for _, compute := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, decided here: %v", liar, compute), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := spares(t)
					defer w.Close()
					v := head.Verify{Percent: 100}
					if compute {
						v.Compute = here
					}
					m := checkedMesh(w, v)
					c := begin(t, m.Backend(), 1, 100)
					c.step()
					time.Sleep(time.Second)
					if st := c.b.Stats(); st.Verified.Agreed != 3 || st.Verified.Differed > 0 {
						t.Fatalf("checks of the prompt: %+v", st.Verified)
					}
					alter(w.Peer(liar), 20)
					d := c.doubted(60)
					want := []string{string(liar)}
					if !compute {
						want = append(want, string(liar+"2"))
					}
					if !slices.Equal(d.Peers, want) || d.Sure != compute || d.From != 100 {
						t.Fatalf("doubts %+v, want %v from row 100 on", d, want)
					}
					if !compute {
						serve(w, liar+"3")
					}
					c.back(d)
					c.did++
					for _, h := range c.b.Stats().Route {
						if h.Peer == string(liar) {
							t.Error("the liar is still a hop")
						}
					}
					c.steps(40)
					findings, st := m.Findings()
					if len(findings) != 1 || st.Differed != 1 {
						t.Errorf("findings %+v, %+v", findings, st)
					}
					if r, err := m.Plan(); err == nil && r.Index(liar) >= 0 {
						t.Error("a new session would take the liar")
					}
					clean(t, w, c)
				})
			})
		}
	}
}

// TestWrongChecker: a holder that computes wrong rows when it is asked to check is named,
// and the session is not disturbed.
func TestWrongChecker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := spares(t)
		defer w.Close()
		m := checkedMesh(w, head.Verify{Percent: 100, Compute: here})
		alter(w.Peer("b2"), 50)
		c := begin(t, m.Backend(), 1, 100)
		c.step()
		time.Sleep(time.Second)
		findings, st := m.Findings()
		if len(findings) != 1 || !slices.Equal(findings[0].Peers, []string{"b2"}) || !findings[0].Sure || st.Agreed != 2 {
			t.Fatalf("findings %+v, %+v", findings, st)
		}
		c.steps(40)
		if st := c.b.Stats(); len(st.Recoveries) > 0 {
			t.Errorf("recoveries %+v", st.Recoveries)
		}
		if n := w.Peer("b2").Engine.Rows(); n != 100 {
			t.Errorf("b2 was asked for %d rows, 100 of them before it was known", n)
		}
		clean(t, w, c)
	})
}

// TestSentOtherRows: a hop that signs the right rows and sends others is one of two to the
// next hop, and known for certain to the head.
func TestSentOtherRows(t *testing.T) {
	for _, l := range []struct {
		from, to p2p.PeerID
		kind     wire.Kind
		only     int // hop that is checked; -1: all
		want     []string
		sure     bool
	}{
		{"head", "a", wire.KindActivation, -1, []string{"a"}, true}, // a signs what it got: from the head's view other rows
		{"a", "b", wire.KindActivation, 0, []string{"a", "b"}, false},
		{"a", "b", wire.KindActivation, 1, []string{"a", "b"}, false},
		{"c", "head", wire.KindResult, 2, []string{"c"}, true},
	} {
		t.Run(fmt.Sprintf("%s, hop %d is checked", l.from, l.only), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := spares(t)
				defer w.Close()
				drawn := 0
				m := checkedMesh(w, head.Verify{Percent: 50, Compute: here, Draw: func() float64 {
					drawn++
					if l.only < 0 || (drawn-1)%3 == l.only {
						return 0
					}
					return 0.5
				}})
				c := begin(t, m.Backend(), 1, 100)
				c.steps(2)
				time.Sleep(time.Second)
				w.Net.Fault(p2ptest.Fault{From: l.from, To: l.to, Protocol: p2p.ActivationProtocol, Kind: l.kind, Edit: func(b []byte) []byte {
					b[len(b)-2] ^= 1 // of the last value, which stays finite
					return b
				}})
				d := c.doubted(60)
				if !slices.Equal(d.Peers, l.want) || d.Sure != l.sure {
					t.Fatalf("doubts %+v, want %v", d, l.want)
				}
				c.back(d)
				c.did++
				c.steps(10)
				clean(t, w, c)
			})
		})
	}
}

// TestRowsOfOneWhoLeft: rows that a hop got from one that is gone may be wrong by nobody's
// fault that is there. All is computed again, and nobody is named.
func TestRowsOfOneWhoLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := spares(t)
		defer w.Close()
		lot := 1.0
		m := checkedMesh(w, head.Verify{Percent: 50, Compute: here, Draw: func() float64 { return lot }})
		c := begin(t, m.Backend(), 1, 100)
		c.steps(2)
		w.Net.Fault(p2ptest.Fault{From: "a", To: "b", Protocol: p2p.ActivationProtocol, Kind: wire.KindActivation, Nth: 1, Edit: func(b []byte) []byte {
			b[len(b)-2] ^= 1
			return b
		}})
		if _, err := c.b.Forward(context.Background(), c.ids, len(c.ids)-1, 1); err != nil { // whose answer is wrong
			t.Fatal(err)
		}
		c.did++
		c.ids = append(c.ids, 5)
		w.Kill("a")
		lot = 0
		d := c.doubted(60)
		if len(d.Peers) > 0 || d.From != 0 {
			t.Fatalf("doubts %+v, want them of all rows and of nobody", d)
		}
		c.back(d)
		c.did++
		c.steps(40)
		if st := c.b.Stats(); st.Verified.Differed != 1 {
			t.Errorf("%+v", st.Verified)
		}
		clean(t, w, c)
	})
}

var liars = flag.Int("liars", 5, "liars of TestFoundByLot")

// TestFoundByLot: with 2 percent checked, a peer that alters a value in a hundred rows is
// found after some answers, whoever else serves, and nobody else is named.
func TestFoundByLot(t *testing.T) {
	var took []int
	for seed := range uint64(*liars) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			w := spares(t)
			defer w.Close()
			liar := []p2p.PeerID{"a", "b", "c"}[r.IntN(3)]
			alter(w.Peer(liar), 50)
			m := checkedMesh(w, head.Verify{Percent: 2, Compute: here, Draw: r.Float64})
			for n := 1; ; n++ {
				c := begin(t, m.Backend(), n, 40)
				_, err := c.b.Forward(context.Background(), c.ids, 0, 1)
				var d *head.DistrustError
				for i := 0; err == nil && i < 100; i++ {
					c.ids = append(c.ids, int32(i))
					_, err = c.b.Forward(context.Background(), c.ids, len(c.ids)-1, 1)
				}
				if err == nil {
					err = c.b.Settle(context.Background())
				}
				c.b.Close()
				if errors.As(err, &d) {
					if !slices.Equal(d.Peers, []string{string(liar)}) || !d.Sure {
						t.Errorf("seed %d: %+v, the liar is %s", seed, d, liar)
					}
					took = append(took, n)
					break
				}
				if err != nil || n == 1000 {
					t.Fatalf("seed %d: not found in %d answers: %v", seed, n, err)
				}
			}
		})
	}
	slices.Sort(took)
	t.Logf("answers of 100 tokens until the liar was found: median %d, at most %d", took[len(took)/2], took[len(took)-1])
}

// TestChangedMeanwhile: tokens that are taken back while a hop is asked to sign prove
// nothing against it.
func TestChangedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := spares(t)
		defer w.Close()
		m := checkedMesh(w, head.Verify{Percent: 100})
		w.Net.Fault(p2ptest.Fault{From: "head", To: "b", Protocol: p2p.ActivationProtocol, Kind: wire.KindAttest, Nth: 1, Delay: 2 * time.Second})
		c := begin(t, m.Backend(), 1, 100)
		c.step()
		time.Sleep(time.Second)
		c.ids = append(c.ids[:60], 7, 8, 9)
		for len(c.ids) < 100 { // as many as before, and others
			c.ids = append(c.ids, int32(len(c.ids)))
		}
		if _, err := c.b.Forward(context.Background(), c.ids, 60, 1); err != nil {
			t.Fatal(err)
		}
		c.ids = append(c.ids, 3)
		time.Sleep(3 * time.Second)
		c.steps(40)
		findings, st := m.Findings()
		if len(findings) > 0 || st.Skipped == 0 {
			t.Errorf("findings %+v, %+v", findings, st)
		}
		clean(t, w, c)
	})
}

// 500 seeds are 10,000 checks: go test -run TestHonestPeers ./node/head -honest 500
var honestSeeds = flag.Int("honest", 30, "seeds of TestHonestPeers, some twenty checks each")

// TestHonestPeers: whatever else happens to hops and checkers, nobody honest is named.
func TestHonestPeers(t *testing.T) {
	var agreed, skipped int
	for seed := range uint64(*honestSeeds) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			w := spares(t)
			defer w.Close()
			ids := []p2p.PeerID{"a", "b", "c", "a2", "b2", "c2"}
			for _, id := range ids {
				w.Peer(id).Engine.RowTime = 20 * time.Microsecond
			}
			m := checkedMesh(w, head.Verify{Percent: 100}) // nobody decides: what differs would name two
			c := begin(t, m.Backend(), 1, 40+r.IntN(100))
			for range 12 {
				c.steps(20)
				time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
				id := ids[r.IntN(len(ids))]
				switch r.IntN(6) {
				case 0:
					w.Kill(id)
					serve(w, id)
				case 1:
					w.Peer(id).Cache.DropAll()
				case 2: // tokens are taken back
					n := len(c.ids) - 1 - r.IntN(40)
					c.ids = c.ids[:n]
					got, err := c.b.Forward(context.Background(), c.ids, n-1-r.IntN(10), 1)
					if err != nil || !slices.Equal(got, hoptest.Expect(c.ids, testLayers, testHidden, 1)) {
						t.Fatalf("seed %d: after tokens were taken back: %v", seed, err)
					}
					c.ids = append(c.ids, int32(r.IntN(97)))
				}
			}
			if err := c.b.Settle(context.Background()); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			findings, st := m.Findings()
			if len(findings) > 0 {
				t.Errorf("seed %d: %+v", seed, findings)
			}
			agreed, skipped = agreed+st.Agreed, skipped+st.Skipped
			clean(t, w, c)
		})
	}
	t.Logf("%d checks agreed, %d were not made", agreed, skipped)
	if agreed < 10**honestSeeds {
		t.Errorf("only %d checks were made, %d were not", agreed, skipped)
	}
}
