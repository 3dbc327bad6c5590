package head_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

// storm breaks a random thing every second or so, and mends it some seconds later.
type storm struct {
	w    *hoptest.World
	rng  *rand.Rand
	stop chan struct{}
	log  []string
}

var stormPeers = map[p2p.PeerID][2]int{"a": {0, 5}, "b": {4, 9}, "c": {8, 12}, "d": {0, 7}, "e": {6, 12}, "f": {2, 10}}

func (s *storm) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-s.stop:
		return false
	}
}

func (s *storm) run() {
	names := slices.Sorted(func(yield func(p2p.PeerID) bool) {
		for n := range stormPeers {
			if !yield(n) {
				return
			}
		}
	})
	start := time.Now()
	for s.sleep(time.Duration(s.rng.IntN(2000)) * time.Millisecond) {
		p, q := names[s.rng.IntN(len(names))], append(names, "head1", "head2")[s.rng.IntN(len(names)+2)]
		what := s.rng.IntN(6)
		s.log = append(s.log, fmt.Sprintf("%v: %d %s %s", time.Since(start).Round(time.Millisecond), what, p, q))
		calm := time.Duration(s.rng.IntN(6000)) * time.Millisecond
		switch what {
		case 0:
			if v := s.w.Peer(p); v != nil {
				if _, err := v.Server.Evict("all"); err != nil {
					s.w.T.Error(err)
				}
			}
		case 1:
			s.w.Kill(p)
			s.sleep(calm)
			s.w.Join(p, stormPeers[p][0], stormPeers[p][1])
		case 2:
			s.w.Net.Freeze(p)
			s.sleep(calm)
			s.w.Net.Thaw(p)
		case 3:
			s.w.Net.Cut(p, q)
			s.sleep(calm)
			s.w.Net.Heal(p, q)
		case 4:
			s.w.Net.BlackHole(p, q)
			s.sleep(calm)
			s.w.Net.Heal(p, q)
		case 5:
			s.w.Net.Latency(p, q, time.Duration(s.rng.IntN(100))*time.Millisecond)
		}
	}
}

// TestStorm runs sessions of two heads through random disturbances. A session may
// end in an honest error; what it answers before must be right.
func TestStorm(t *testing.T) { weather(t, head.StandbyNone, 60) }

// TestStandbyStorm is TestStorm with standbys.
func TestStandbyStorm(t *testing.T) { weather(t, head.StandbyAll, 30) }

func weather(t *testing.T, mode head.StandbyMode, n uint64) {
	from := uint64(0)
	if s := os.Getenv("MESHNET_STORM_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		from, n = v, 1
	}
	var finished, gaveUp, recovered int
	for seed := from; seed < from+n; seed++ {
		synctest.Test(t, func(t *testing.T) {
			w := world(t)
			defer w.Close()
			for id, r := range stormPeers {
				w.Join(id, r[0], r[1]).Engine.RowTime = time.Millisecond
			}
			s := &storm{w: w, rng: rand.New(rand.NewPCG(seed, 1)), stop: make(chan struct{})}
			var weather, sessions sync.WaitGroup
			weather.Go(s.run)
			var mu sync.Mutex
			for h := 1; h <= 2; h++ {
				m := newStandbyMesh(w, p2p.PeerID(fmt.Sprint("head", h)), mode)
				for i := range 2 {
					sessions.Go(func() {
						steps, rec, err := weathered(t, m.Backend(), h*10+i)
						mu.Lock()
						defer mu.Unlock()
						recovered += rec
						switch {
						case err == nil:
							finished++
						case strings.Contains(err.Error(), "no route") || strings.Contains(err.Error(), "gave up"):
							gaveUp++
						default:
							t.Errorf("MESHNET_STORM_SEED=%d go test -run %s: after %d steps: %v\n%s", seed, t.Name(), steps, err, strings.Join(s.log, "\n"))
						}
					})
				}
			}
			sessions.Wait()
			close(s.stop)
			weather.Wait()
		})
	}
	t.Logf("%d sessions finished, %d gave up honestly, %d recoveries", finished, gaveUp, recovered)
	if from == 0 && (finished < int(n)*5/3 || recovered < int(n)*5/3) {
		t.Errorf("only %d sessions of %d finished, with %d recoveries", finished, n*4, recovered)
	}
}

// weathered runs one session and compares every answer.
func weathered(t *testing.T, b head.Backend, n int) (steps, recoveries int, err error) {
	c := &chat{t: t, b: b}
	defer c.b.Close()
	if err := c.b.Begin(context.Background(), session(n), 4096, nil); err != nil {
		return 0, 0, err
	}
	for i := range 60 + n {
		c.ids = append(c.ids, int32(n*1000+i))
	}
	past := 0
	for range 25 {
		got, err := c.b.Forward(context.Background(), c.ids, past, 1)
		if err != nil {
			return steps, recoveries, err
		}
		if !slices.Equal(got, hoptest.Expect(c.ids, testLayers, testHidden, 1)) {
			return steps, recoveries, fmt.Errorf("step %d differs from the undisturbed run", steps)
		}
		steps++
		past = len(c.ids)
		c.ids = append(c.ids, int32(steps))
		time.Sleep(300 * time.Millisecond)
	}
	return steps, len(c.b.Stats().Recoveries), nil
}
