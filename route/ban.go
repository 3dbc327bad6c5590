package route

import (
	"time"

	"github.com/meshnet/meshnet/p2p"
)

const (
	banFirst  = 15 * time.Second
	banMost   = 10 * time.Minute
	banSpread = 0.2
	// banMemory: a peer that made no trouble for this long after its ban starts anew.
	banMemory = 30 * time.Minute
	maxBans   = 1024
)

// Bans remembers which peers disappointed a head: 15 s × 2ⁿ, at most 10 min,
// ±20 % so that many heads do not come back at once. It is shared by the
// sessions of a head and is not safe for concurrent use. Times are since any
// fixed moment, the same for all calls.
type Bans struct {
	seed uint64
	m    map[p2p.PeerID]ban
}

type ban struct {
	until time.Duration
	times int
}

// NewBans returns an empty list; the seed fixes the spread.
func NewBans(seed uint64) *Bans {
	return &Bans{seed: seed, m: map[p2p.PeerID]ban{}}
}

// unit is the next number of [0, 1): SplitMix64 (Steele, Lea, Flood 2014).
func (b *Bans) unit() float64 {
	b.seed += 0x9e3779b97f4a7c15
	z := b.seed
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return float64(z>>11) / (1 << 53)
}

// Ban adds one failure of a peer and returns until when it is banned.
func (b *Bans) Ban(id p2p.PeerID, now time.Duration) time.Duration {
	e := b.m[id]
	if now > e.until+banMemory {
		e.times = 0
	}
	d := banMost
	if e.times < 6 {
		d = min(banMost, banFirst<<e.times)
	}
	e.times++
	spread := 1 + banSpread*(2*b.unit()-1)
	e.until = now + time.Duration(float64(d)*spread)
	b.put(id, e, now)
	return e.until
}

// Rest keeps a peer out until a time without counting it as a failure: it was
// busy and said when to come back.
func (b *Bans) Rest(id p2p.PeerID, until, now time.Duration) {
	e := b.m[id]
	e.until = max(e.until, min(until, now+banMost))
	b.put(id, e, now)
}

// Forgive ends a peer's ban: it did what was asked.
func (b *Bans) Forgive(id p2p.PeerID) { delete(b.m, id) }

// Now is the set of peers banned at a time.
func (b *Bans) Now(now time.Duration) map[p2p.PeerID]bool {
	set := map[p2p.PeerID]bool{}
	for id, e := range b.m {
		if now < e.until {
			set[id] = true
		}
	}
	return set
}

// put stores an entry; a full list forgets the one that ended or ends first.
func (b *Bans) put(id p2p.PeerID, e ban, now time.Duration) {
	if _, ok := b.m[id]; !ok && len(b.m) >= maxBans {
		var first p2p.PeerID
		for k, v := range b.m {
			if f := b.m[first]; first == "" || v.until < f.until || v.until == f.until && k < first {
				first = k
			}
		}
		delete(b.m, first)
	}
	b.m[id] = e
}
