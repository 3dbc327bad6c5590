package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
)

// How other meshes are known to fail, and the test that it does not happen here:
//
//	a replacement starts at position 0, the history is at n        TestReplacementTakesUpTheHistory
//	the same dead peer is chosen again until the next refresh      TestDeadPeerIsNotChosenAgain
//	deterministic errors are retried for ever                      node/head TestDeterministicError
//	a stream ends without a reason, or with stop, as a stage dies  TestStageDies; as the client sees it: node/api TestFailures, TestTranscripts
//	a slot is kept after the client left                           TestClientLeft; a head that vanished: node/head TestHeadGone
//	a second request reads the first one's cache                   TestSecondRequest; with a foreign id: route/hop TestSessionIsItsHeads
//	two requests cross two hops and wait for each other            node/head TestCrossing
//	a retry storm                                                  node/head TestNoRetryStorm, TestFiftyKills
//	a join hangs on a peer that accepts and says nothing           TestSilentPeerIsLeft; node TestSilentPeer, p2p/offer TestFrozenPeers
//	one slow peer takes its neighbours' sessions down              node/head TestSlowNeighbour

// named is a scene of one of them.
func named(t *testing.T, sc scene) scene {
	t.Helper()
	sc.repeat = fmt.Sprintf("go test -run '%s$' ./testnet/sim", strings.Split(t.Name(), "/")[0])
	sc.latency, sc.row = time.Millisecond, 100*time.Microsecond
	return sc
}

// TestReplacementTakesUpTheHistory: whoever stands in for a peer that died with n
// tokens behind it computes those first, each once, and then goes on at n.
func TestReplacementTakesUpTheHistory(t *testing.T) {
	for _, victim := range []p2p.PeerID{"a", "b", "c"} {
		t.Run(string(victim), func(t *testing.T) {
			at, rows := 0, 0
			sc := named(t, scene{chats: []int{0}, finish: true})
			sc.told = func(m *mesh, _, tokens int) {
				switch {
				case tokens == 3:
					m.strike(m.Net, strike{kind: kill, victim: victim})
					at = lengths[0] + tokens
				case tokens == answer:
					rows = m.Peer(victim + "2").Engine.Rows()
				}
			}
			play(t, sc)
			if want := at + answer - 3 - 1; rows != want {
				t.Errorf("the replacement computed %d rows, want the %d of the text, each once", rows, want)
			}
		})
	}
}

// TestDeadPeerIsNotChosenAgain: nobody tells the head that a peer is gone, whose offer
// stands. It finds out once; neither this request nor the next one tries it again.
func TestDeadPeerIsNotChosenAgain(t *testing.T) {
	for _, k := range []kind{kill, freeze} {
		t.Run(k.String(), func(t *testing.T) {
			sc := named(t, scene{chats: []int{0, 1, 2}, inTurns: true, finish: true})
			before := 0
			sc.told = func(m *mesh, chat, tokens int) {
				if chat == 0 && tokens == 3 {
					m.strike(m.Net, strike{kind: k, victim: "b"})
					m.mu.Lock()
					before = len(m.out.sent)
					m.mu.Unlock()
				}
			}
			out := play(t, sc)
			if out.results[0].Stats.Recoveries == nil || before == 0 {
				t.Fatal("the peer was not lost")
			}
			opens := 0
			for _, s := range out.sent[before:] {
				if s.Kind == 0 && s.To == "b" && s.From == "head1" {
					opens++
				}
			}
			if opens > 1 {
				t.Errorf("the dead peer was tried %d times", opens)
			}
			for n := 1; n < 3; n++ {
				if r := out.results[n]; len(r.Stats.Recoveries) > 0 || r.took > time.Second {
					t.Errorf("request %d after it took %v, recoveries %+v", n, r.took, r.Stats.Recoveries)
				}
			}
		})
	}
}

// TestStageDies: with all holders of some layers gone in mid-answer, the answer ends
// with an error that names the layers, never as if it were whole.
func TestStageDies(t *testing.T) {
	for i, layers := range []string{"layers 0 to 3", "layers 4 to 7", "layers 8 to 11"} {
		for _, k := range []kind{kill, freeze, cut} {
			t.Run(fmt.Sprint(k, " ", layers), func(t *testing.T) {
				sc := named(t, scene{chats: []int{0}})
				sc.told = func(m *mesh, _, tokens int) {
					if tokens == 3 {
						for _, id := range []p2p.PeerID{spans[i].id, spans[i+3].id} {
							m.strike(m.Net, strike{kind: k, victim: id, border: border{from: "head1", to: id}})
						}
					}
				}
				r := play(t, sc).results[0]
				if r.err == nil || !strings.Contains(r.err.Error(), layers) {
					t.Errorf("got %v, want an error that names %s", r.err, layers)
				}
				if len(r.IDs) != 3 || r.took > 40*time.Second {
					t.Errorf("%d tokens after %v", len(r.IDs), r.took)
				}
			})
		}
	}
}

// TestClientLeft: two seconds after the client went, in the prompt or in the answer, no
// peer holds a byte for it.
func TestClientLeft(t *testing.T) {
	for _, goes := range []int{1, 3, answer - 1} {
		stage(t, named(t, scene{chats: []int{0}, goes: goes}), func(t *testing.T, m *mesh) {
			m.run(t)
			time.Sleep(2 * time.Second)
			for _, p := range spans {
				if st := m.Peer(p.id).Cache.Stats(); st.Sessions != 0 || st.Bytes != 0 || len(m.Peer(p.id).Server.Sessions()) != 0 {
					t.Errorf("%s holds %d sessions, %d bytes", p.id, st.Sessions, st.Bytes)
				}
			}
		})
	}
}

// TestSecondRequest: a request never reads what another has left: not one that follows
// under the same id, not one beside it of another head that has got the same id.
func TestSecondRequest(t *testing.T) {
	for name, sc := range map[string]scene{
		"one after the other":               {inTurns: true},
		"one after the other, of two heads": {inTurns: true, heads: 2},
		"beside each other, of two heads":   {heads: 2},
	} {
		t.Run(name, func(t *testing.T) {
			sc.chats, sc.oneID, sc.finish = []int{0, 1}, true, true
			play(t, named(t, sc))
		})
	}
}

// TestSilentPeerIsLeft: peers that accept a stream and say nothing hold up the begin
// of a request by seconds.
func TestSilentPeerIsLeft(t *testing.T) {
	silent := func(m *mesh) {
		for _, id := range []p2p.PeerID{"a", "b", "c"} {
			m.Net.Fault(p2ptest.Fault{From: id, Do: p2ptest.Drop})
		}
	}
	stage(t, named(t, scene{chats: []int{0, 1}, inTurns: true, finish: true}), func(t *testing.T, m *mesh) {
		silent(m)
		m.run(t)
		if r := m.out.results; r[0].took > 15*time.Second || r[1].took > time.Second {
			t.Errorf("the first request took %v, the next %v", r[0].took, r[1].took)
		}
	})
}
