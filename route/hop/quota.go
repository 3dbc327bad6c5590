package hop

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// What strangers may hold here. Each bound leaves room for an honest head with all
// the sessions that it may have, and for others beside whoever takes all it can get.
const (
	maxOpening, maxOpeningEach = 512, 32  // streams that have not said OPEN, for 5 s at most
	maxParked, maxParkedEach   = 64, 16   // links that wait for the head's OPEN, for 5 s at most
	maxBeats, maxBeatsEach     = 1024, 16 // heartbeat streams

	leastSessions = 64 // bound of sessions, where the cache does not hold a quarter of that
	perCached     = 4  // sessions that take turns on one place in the cache
	perIP         = 16 // sessions of all heads of one address
	ipPerSecond   = 2  // new ones of an address
	ipBurst       = 16

	// frameTimeout is how long a frame may take to come when its first bytes are here,
	// and a second more for each 32 KiB: half the speed that a writer gives up at.
	frameTimeout   = 10 * time.Second
	bytesPerSecond = 32 << 10
)

// crowd counts who is in a place that is bounded, for all and for each.
type crowd struct {
	most, each int

	mu sync.Mutex
	n  int
	by map[p2p.PeerID]int
}

func newCrowd(most, each int) *crowd { return &crowd{most: most, each: each, by: map[p2p.PeerID]int{}} }

// enter says whether there is room. Whoever enters leaves.
func (c *crowd) enter(peer p2p.PeerID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n >= c.most || c.by[peer] >= c.each {
		return false
	}
	c.n++
	c.by[peer]++
	return true
}

func (c *crowd) leave(peer p2p.PeerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	if c.by[peer]--; c.by[peer] == 0 {
		delete(c.by, peer)
	}
}

func (c *crowd) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// framePatience is the time for the rest of a frame.
func framePatience(rest int) time.Duration {
	return frameTimeout + time.Second*time.Duration(rest/bytesPerSecond)
}

// admitNew counts a head's new session against the limits. The lock is held.
func (s *Server) admitNew(owner string, from netip.Prefix) *refusal {
	busy := func(format string, args ...any) *refusal {
		return &refusal{code: wire.CodeBusy, retry: time.Second, text: fmt.Sprintf(format, args...)}
	}
	heads, ips := 0, 0
	for _, ss := range s.sessions {
		if ss.owner == owner {
			heads++
		}
		if ss.from == from {
			ips++
		}
	}
	far := from.IsValid() && !p2p.Near(from.Addr())
	switch {
	case heads >= s.cfg.SessionsPerHead:
		return busy("at most %d sessions a head", s.cfg.SessionsPerHead)
	case far && ips >= s.cfg.SessionsPerIP:
		return busy("at most %d sessions an address", s.cfg.SessionsPerIP)
	case len(s.sessions) >= s.cfg.Sessions:
		return busy("at most %d sessions", s.cfg.Sessions)
	}
	now := time.Now()
	if wait := s.spend(owner, s.cfg.NewPerSecond, s.cfg.NewBurst, now); wait > 0 {
		return &refusal{code: wire.CodeBusy, retry: wait, text: "too many new sessions"}
	}
	if !far {
		return nil
	}
	if wait := s.spend(from.String(), ipPerSecond, ipBurst, now); wait > 0 {
		return &refusal{code: wire.CodeBusy, retry: wait, text: "too many new sessions of one address"}
	}
	return nil
}

// bucket limits new sessions of a head or of an address.
type bucket struct {
	left, burst float64 // new ones that it may have now, and at most
	each        float64 // a second
	at          time.Time
}

// now is what a bucket holds at a time.
func (b bucket) now(t time.Time) float64 { return min(b.burst, b.left+t.Sub(b.at).Seconds()*b.each) }

// spend takes one out of who's bucket, or says when there will be one.
func (s *Server) spend(who string, each float64, burst int, now time.Time) (wait time.Duration) {
	b, ok := s.buckets[who]
	if !ok {
		if len(s.buckets) >= maxOwners {
			s.forgetBuckets(now)
		}
		b = bucket{left: float64(burst), burst: float64(burst), each: each, at: now}
	}
	b.left, b.at = b.now(now), now
	if b.left < 1 {
		wait = time.Duration((1 - b.left) / each * float64(time.Second))
	} else {
		b.left--
	}
	s.buckets[who] = b
	return wait
}

// forgetBuckets drops those that are full again, or all if none is.
func (s *Server) forgetBuckets(now time.Time) {
	for k, b := range s.buckets {
		if b.now(now) >= b.burst {
			delete(s.buckets, k)
		}
	}
	if len(s.buckets) >= maxOwners {
		clear(s.buckets)
	}
}

// endIdle ends the sessions in which nothing has come for two lifetimes of a cache
// entry: nothing of them is held any more but their place.
func (s *Server) endIdle(now time.Time) {
	most := max(2*s.cfg.Cache.Stats().TTL, time.Minute)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ss := range s.sessions {
		if now.Sub(time.Unix(0, ss.came.Load())) > most {
			ss.end(errIdle)
		}
	}
}
