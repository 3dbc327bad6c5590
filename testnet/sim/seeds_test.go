package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
)

var (
	seeds = flag.Uint64("sim.seeds", 400, "how many seeds TestSeeds plays")
	from  = flag.Uint64("sim.from", 0, "the first of them")
)

// seeded is the scene of a seed: up to three chats of one or two heads, and two faults
// of any kind, the second at some border after the first.
func seeded(seed uint64) scene {
	rng := rand.New(rand.NewPCG(seed, 0))
	sc := scene{
		repeat: fmt.Sprintf("go test -run TestSeeds ./testnet/sim -sim.from %d -sim.seeds 1", seed),
		chats:  rng.Perm(len(lengths) - 1)[:1+rng.IntN(3)], heads: 1 + rng.IntN(2),
		latency: time.Duration(rng.IntN(20)) * time.Millisecond, row: time.Duration(rng.IntN(500)) * time.Microsecond,
	}
	sc.rigid, sc.forget = rng.IntN(4) == 0, rng.IntN(4) == 0
	if rng.IntN(16) == 0 {
		sc.chats[0] = len(lengths) - 1
	}
	if rng.IntN(8) == 0 {
		sc.goes = 1 + rng.IntN(answer-1)
	}
	if rng.IntN(4) == 0 {
		sc.pace = 400 * time.Millisecond
	}
	chain := []p2p.PeerID{p2p.PeerID(fmt.Sprint("head", 1+rng.IntN(min(sc.heads, len(sc.chats))))), "a", "b", "c"}
	for range 2 {
		s := anyStrike(rng, chain, sc.pace > 0)
		sc.strikes = append(sc.strikes, s)
		for i, p := range chain[1:] { // the second fault is where the chats go after the first
			if lost([]strike{s})[p] && s.kind != restart {
				chain[i+1] += "2"
			}
		}
	}
	if sc.strikes[0].kind.passes() || sc.strikes[1].kind.passes() {
		sc.pace = while / answer
	}
	sc.finish = holds(sc.strikes)
	return sc
}

// anyStrike draws a frame that goes along a chain (of the head and its hops) or
// between the head and one of them, and what happens there.
func anyStrike(rng *rand.Rand, chain []p2p.PeerID, slow bool) strike {
	at := func(from, to p2p.PeerID, nth int) border {
		return border{from: from, to: to, protocol: p2p.ActivationProtocol, nth: 1 + rng.IntN(nth), at: p2ptest.Border(rng.IntN(3))}
	}
	var b border
	switch i := rng.IntN(3); rng.IntN(8) {
	case 0:
		b = at(chain[i], chain[i+1], 1)
		b.opens, b.at = true, p2ptest.Before
	case 1:
		b = at(chain[0], chain[i+1], 1)
		b.protocol = p2p.HeartbeatProtocol
		if slow {
			b.nth = 1 + rng.IntN(3)
		}
	case 2: // besides the chain: OPEN, PING, CLOSE
		b = at(chain[0], chain[1+i], 3)
	case 3: // READY and answers to PING; after the last hop the result
		b = at(chain[1+i], chain[0], 3)
	case 4:
		b = at(chain[3], chain[0], answer)
	case 5: // READY and CREDIT
		b = at(chain[i+1], chain[i], 1)
	default:
		b = at(chain[i], chain[i+1], answer)
	}
	s := strike{border: b, kind: kind(rng.IntN(int(kinds)))}
	if s.kind.ofPeer() {
		s.victim = b.to
		if b.to == chain[0] || b.from != chain[0] && rng.IntN(2) == 0 {
			s.victim = b.from
		}
	}
	return s
}

// lost are the peers that not every head can use after strikes, or not at once.
func lost(strikes []strike) map[p2p.PeerID]bool {
	out := map[p2p.PeerID]bool{}
	for _, s := range strikes {
		switch s.kind {
		case kill, freeze, nap, leave, restart:
			out[s.victim] = true
		case cut, hole, blink:
			if strings.HasPrefix(string(s.from), "head") || strings.HasPrefix(string(s.to), "head") {
				out[s.from], out[s.to] = true, true
			}
		}
	}
	return out
}

// holds says that after all strikes every span has a holder whom every head reaches.
func holds(strikes []strike) bool {
	gone := lost(strikes)
	for i := range 3 {
		if gone[spans[i].id] && gone[spans[i+3].id] {
			return false
		}
	}
	return true
}

// TestSeeds plays scenes with two faults.
func TestSeeds(t *testing.T) {
	var mu sync.Mutex
	var struck [3]int
	var chats, gaveUp, recovered int
	var slowest time.Duration
	lanes(t, *seeds, func(t *testing.T, i uint64) {
		sc := seeded(*from + i)
		out := play(t, sc)
		mu.Lock()
		defer mu.Unlock()
		struck[out.struck]++
		chats += len(sc.chats)
		gaveUp += out.gaveUp
		recovered += out.recovered
		slowest = max(slowest, out.slowest)
	})
	t.Logf("%d seeds: no fault struck in %d, one in %d, two in %d; %d chats, %d gave up with an error, %d recoveries, the slowest chat took %v of virtual time",
		*seeds, struck[0], struck[1], struck[2], chats, gaveUp, recovered, slowest)
	if *seeds >= 400 && (struck[2] < int(*seeds)/4 || recovered < int(*seeds)/2 || gaveUp > chats/4) {
		t.Error("too little was tried")
	}
}

// TestSeedRepeats: a seed is the same scene every time, and another one another.
func TestSeedRepeats(t *testing.T) {
	if a, b := fmt.Sprint(seeded(7)), fmt.Sprint(seeded(7)); a != b {
		t.Errorf("%s, then %s", a, b)
	}
	different := map[string]bool{}
	for seed := range uint64(1000) {
		different[fmt.Sprint(seeded(seed).strikes)] = true
	}
	if len(different) < 990 {
		t.Errorf("1000 seeds give %d scenes", len(different))
	}
}
