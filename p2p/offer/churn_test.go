package offer

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
)

// plain is an identity whose signatures cost nothing.
type plain struct{ id p2p.PeerID }

func (p plain) Self() p2p.PeerID            { return p.id }
func (p plain) Sign([]byte) ([]byte, error) { return []byte(p.id), nil }

func plainVerify(peer string, _, sig []byte) error {
	if string(sig) != peer {
		return fmt.Errorf("forged")
	}
	return nil
}

// crowdOf is peers that come and go among a few that stay.
type crowdOf struct {
	t    *testing.T
	net  *p2ptest.Network
	stay []*Service
	home []p2p.PeerID // theirs, known before they run

	mu    sync.Mutex
	alive map[p2p.PeerID]bool
	ended map[p2p.PeerID]time.Time // of those that may still be in a view
}

func (c *crowdOf) service(id p2p.PeerID, peers func() []p2p.Peer) (*Service, func()) {
	peer := c.net.Peer(id)
	s, err := New(Config{
		Network: network, Signer: plain{id}, Verify: plainVerify, Streamer: peer, Mux: peer, Model: model,
		Peers: peers, Refresh: time.Minute,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	return s, func() { cancel(); wg.Wait() }
}

// now are all that are alive.
func (c *crowdOf) now() (peers []p2p.Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.alive {
		peers = append(peers, p2p.Peer{ID: id})
	}
	return peers
}

// visit is one peer's life: it serves a while, then leaves or crashes.
func (c *crowdOf) visit(i int) {
	id := p2p.PeerID(fmt.Sprint("visitor ", i))
	s, stop := c.service(id, func() []p2p.Peer {
		var stay []p2p.Peer
		for _, id := range c.home {
			stay = append(stay, p2p.Peer{ID: id})
		}
		return stay
	})
	c.mu.Lock()
	c.alive[id] = true
	c.mu.Unlock()
	if err := s.SetOwn(wire.Offer{Model: model, Layers: 24, Start: uint32(i % 24), End: uint32(i%24) + 1, State: wire.Online, CacheTypes: wire.AllCacheTypes}); err != nil {
		c.t.Error(err)
	}
	time.Sleep(time.Duration(10+i*7%50) * time.Second)
	if i%2 == 0 {
		if err := s.Withdraw(context.Background()); err != nil {
			c.t.Error(err)
		}
	}
	c.mu.Lock()
	delete(c.alive, id)
	c.ended[id] = time.Now()
	c.mu.Unlock()
	c.net.Kill(id)
	stop()
	c.net.Forget(id)
}

// ghosts looks for peers that have been gone for two lifetimes and are still, or
// again, in a view.
func (c *crowdOf) ghosts() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.stay {
		for _, o := range s.Table().View(model) {
			id := p2p.PeerID(o.Peer)
			if at, known := c.ended[id]; !c.alive[id] && (!known || time.Since(at) > 2*Lifetime) {
				c.t.Errorf("%s is still in a view", id)
			}
		}
	}
	for id, at := range c.ended {
		if time.Since(at) > 2*Lifetime {
			delete(c.ended, id)
		}
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestDayOfChurn: 10,000 peers come and go in a day (1,000 in a tenth of it) among four that stay and pass
// on what they hear. No ghost stays or comes back, and in the end nothing of it is left.
func TestDayOfChurn(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // the network in memory is mostly what it collects
	visits := 10_000
	if testing.Short() {
		visits = 1000
	}
	synctest.Test(t, func(t *testing.T) {
		c := &crowdOf{t: t, net: p2ptest.New(), alive: map[p2p.PeerID]bool{}, ended: map[p2p.PeerID]time.Time{}}
		var stops []func()
		for i := range 4 {
			c.home = append(c.home, p2p.PeerID(fmt.Sprint("resident ", i)))
		}
		for _, id := range c.home {
			s, stop := c.service(id, func() []p2p.Peer {
				peers := c.now()
				for _, other := range c.home {
					if other != id {
						peers = append(peers, p2p.Peer{ID: other})
					}
				}
				return peers
			})
			c.stay, stops = append(c.stay, s), append(stops, stop)
		}
		time.Sleep(5 * time.Minute)
		before, heapBefore := runtime.NumGoroutine(), heap()
		var all sync.WaitGroup
		seen := 0
		for i := range visits {
			all.Go(func() { c.visit(i) })
			time.Sleep(24 * time.Hour / 10_000)
			if i%100 == 99 {
				c.ghosts()
			}
			seen = max(seen, len(c.stay[0].Table().View(model)))
		}
		all.Wait()
		if seen < 3 {
			t.Errorf("%d visitors were seen at a time: nothing was tested", seen)
		}
		time.Sleep(memory + rttMemory + time.Minute)
		synctest.Wait()
		for i, s := range c.stay {
			s.mu.Lock()
			s.table.mu.Lock()
			// What residents measure of each other stays.
			if e, r, a := len(s.table.entries), len(s.rtts), len(s.asks); e != 0 || r > 3 || a > 3 || s.serving != 0 {
				t.Errorf("resident %d keeps %d entries, %d round trips, %d rates, %d exchanges", i, e, r, a, s.serving)
			}
			s.table.mu.Unlock()
			s.mu.Unlock()
		}
		if n := runtime.NumGoroutine(); n > before+10 { // the runtime starts some of its own; one in a thousand visits would be a leak
			t.Errorf("%d goroutines, before %d", n, before)
		}
		grown := heap() - heapBefore
		if grown > 2<<20 { // 200 bytes a visitor would be a leak
			t.Errorf("the heap grew by %d bytes", grown)
		}
		t.Logf("%d visitors, up to %d seen at a time; the heap grew by %d KiB", visits, seen, grown>>10)
		for _, stop := range stops {
			stop()
		}
		if err := c.net.Close(); err != nil {
			t.Error(err)
		}
	})
}
