package route

import (
	"time"

	"github.com/meshnet/meshnet/p2p"
)

const (
	banFirst  = 15 * time.Second
	banMost   = 10 * time.Minute
	banSpread = 0.2
	// severFirst is how long a link counts as down: a session that tries it in vain
	// waits 3 s for its first token.
	severFirst = time.Minute
	// banMemory: a peer that made no trouble for this long after its ban starts anew.
	banMemory = 30 * time.Minute
	maxBans   = 1024
	// doubtFor: a peer is the last choice for so long after its ban. Otherwise three
	// that claim to be fast and never answer would take turns, each back from its ban
	// when the next one fails, and nobody else be asked.
	doubtFor = 10 * time.Minute
	// A peer that was caught computing other than it should stays out for liarFor; of
	// two who accuse each other both do for suspectFor. Nothing ends that earlier: it
	// does all else well.
	liarFor    = 24 * time.Hour
	suspectFor = 10 * time.Minute
)

// Bans remembers which peers disappointed a head: 15 s × 2ⁿ, at most 10 min,
// ±20 % so that many heads do not come back at once. It is shared by the
// sessions of a head and is not safe for concurrent use. Times are since any
// fixed moment, the same for all calls.
type Bans struct {
	seed  uint64
	m     map[p2p.PeerID]ban
	links map[[2]p2p.PeerID]ban // from, to: cannot reach
}

type ban struct {
	until time.Duration
	doubt time.Duration // until when others are preferred
	times int
	lost  bool          // its connection broke: an offer made since shows that it is back
	seq   uint64        // of its offer then
	lied  time.Duration // until when it is banned whatever else it does
}

// NewBans returns an empty list; the seed fixes the spread.
func NewBans(seed uint64) *Bans {
	return &Bans{seed: seed, m: map[p2p.PeerID]ban{}, links: map[[2]p2p.PeerID]ban{}}
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
	e := b.longer(b.m[id], banFirst, now)
	put(b.m, id, e)
	return e.until
}

// Lost bans a peer whose connection broke. seq is that of its last offer: Back ends
// the ban when a newer one is heard.
func (b *Bans) Lost(id p2p.PeerID, seq uint64, now time.Duration) {
	e := b.m[id]
	switch {
	case now >= e.until:
		e = b.longer(e, banFirst, now)
		e.lost, e.seq = true, seq
	case e.lost:
		e.seq = max(e.seq, seq)
	}
	put(b.m, id, e)
}

// Doubt makes a peer the last choice until a time, without a ban.
func (b *Bans) Doubt(id p2p.PeerID, until time.Duration) {
	e := b.m[id]
	e.doubt = max(e.doubt, until)
	put(b.m, id, e)
}

// Lied bans a peer whose rows were wrong, for sure or as one of two.
func (b *Bans) Lied(id p2p.PeerID, sure bool, now time.Duration) {
	e, long := b.m[id], suspectFor
	if sure {
		long = liarFor
	}
	e.lied = max(e.lied, now+long)
	put(b.m, id, e)
}

// Liar says whether a peer is banned for its rows.
func (b *Bans) Liar(id p2p.PeerID, now time.Duration) bool { return now < b.m[id].lied }

// Back ends the ban of a peer that was lost if it made an offer since; it stays in
// doubt. A machine that was started again is there at once, and may hold what nobody
// else does.
func (b *Bans) Back(id p2p.PeerID, seq uint64, now time.Duration) {
	if e := b.m[id]; e.lost && seq > e.seq && now < e.until {
		e.until = now
		b.m[id] = e
	}
}

// longer is a ban after one more failure.
func (b *Bans) longer(e ban, first, now time.Duration) ban {
	if now > e.until+banMemory {
		e.times = 0
	}
	d := banMost
	if e.times < 6 {
		d = min(banMost, first<<e.times)
	}
	spread := 1 + banSpread*(2*b.unit()-1)
	d = time.Duration(float64(d) * spread)
	return ban{until: now + d, doubt: now + d + doubtFor, times: e.times + 1, lied: e.lied}
}

// Sever remembers that one peer cannot reach another, so that the next session
// need not find out by waiting. Not known to be better a while later, it is tried again.
func (b *Bans) Sever(from, to p2p.PeerID, now time.Duration) {
	pair := [2]p2p.PeerID{from, to}
	if e := b.links[pair]; now >= e.until {
		put(b.links, pair, b.longer(e, severFirst, now))
	}
}

// Severed are the links that are down, as far as is known.
func (b *Bans) Severed(now time.Duration) []Link {
	var down []Link
	for pair, e := range b.links {
		if now < e.until {
			down = append(down, Link{From: pair[0], To: pair[1], Down: true})
		}
	}
	return down
}

// Rest keeps a peer out until a time without counting it as a failure: it was
// busy and said when to come back.
func (b *Bans) Rest(id p2p.PeerID, until, now time.Duration) {
	e := b.m[id]
	e.until = max(e.until, min(until, now+banMost))
	put(b.m, id, e)
}

// Forgive ends a peer's ban: it did what was asked. What a liar did was no proof of
// anything.
func (b *Bans) Forgive(id p2p.PeerID) {
	if e := b.m[id]; e.lied > 0 {
		b.m[id] = ban{lied: e.lied}
		return
	}
	delete(b.m, id)
}

// Now is the set of peers banned at a time.
func (b *Bans) Now(now time.Duration) map[p2p.PeerID]bool {
	set := map[p2p.PeerID]bool{}
	for id, e := range b.m {
		if now < max(e.until, e.lied) {
			set[id] = true
		}
	}
	return set
}

// Doubts are the peers that disappointed not long ago, each as 1.
func (b *Bans) Doubts(now time.Duration) map[p2p.PeerID]int {
	set := map[p2p.PeerID]int{}
	for id, e := range b.m {
		if now < e.doubt {
			set[id] = 1
		}
	}
	return set
}

// put stores an entry; a full list forgets one of those that end first.
func put[K comparable](m map[K]ban, k K, e ban) {
	if _, ok := m[k]; !ok && len(m) >= maxBans {
		first := time.Duration(1<<63 - 1)
		for _, v := range m {
			first = min(first, max(v.until, v.lied))
		}
		for k, v := range m {
			if max(v.until, v.lied) == first {
				delete(m, k)
			}
		}
	}
	m[k] = e
}
