package offer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
)

// mesh is a few services on one network in memory, in virtual time.
type mesh struct {
	t     *testing.T
	net   *p2ptest.Network
	nodes []*node
}

type node struct {
	identity
	*Service
	stop func()
}

func newMesh(t *testing.T, size int) *mesh {
	m := &mesh{t: t, net: p2ptest.New()}
	for i := range size {
		m.nodes = append(m.nodes, nil)
		m.start(i, network)
	}
	return m
}

// start starts node i, anew if it was killed.
func (m *mesh) start(i int, networkName string) *node {
	id := newIdentity(i)
	peer := m.net.Peer(id.Self())
	s, err := New(Config{
		Network: networkName, Signer: id, Verify: verify, Streamer: peer, Mux: peer, Model: model,
		Peers: func() []p2p.Peer { return m.others(id.Self()) },
	})
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	m.nodes[i] = &node{id, s, func() { cancel(); wg.Wait() }}
	return m.nodes[i]
}

// others are the peers that are up: everyone is connected to everyone.
func (m *mesh) others(than p2p.PeerID) (peers []p2p.Peer) {
	for _, n := range m.nodes {
		if n != nil && n.Self() != than {
			peers = append(peers, p2p.Peer{ID: n.Self()})
		}
	}
	return peers
}

func (m *mesh) close() {
	for _, n := range m.nodes {
		if n != nil {
			n.stop()
		}
	}
	if err := m.net.Close(); err != nil {
		m.t.Error(err)
	}
}

// serve makes node i offer a range.
func (m *mesh) serve(i, start, end int) {
	m.t.Helper()
	o := wire.Offer{Model: model, Layers: 24, Start: uint32(start), End: uint32(end), State: wire.Online, CacheTypes: wire.AllCacheTypes}
	if err := m.nodes[i].SetOwn(o); err != nil {
		m.t.Fatal(err)
	}
}

// view is what node i sees once what is under way has ended: who is asked answers
// first and learns then.
func (m *mesh) view(i int) (who []string) {
	synctest.Wait()
	for _, o := range m.nodes[i].Table().View(model) {
		who = append(who, fmt.Sprintf("%d:%d", o.Start, o.End))
	}
	return who
}

func (m *mesh) expect(i int, want ...string) {
	m.t.Helper()
	if got := m.view(i); !slices.Equal(got, want) {
		m.t.Errorf("node %d sees %v, want %v", i, got, want)
	}
}

func TestOneAnswerFillsAView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 4)
		defer m.close()
		for i := 1; i < 4; i++ {
			m.nodes[i].stop() // by hand from here on
			m.serve(i, 8*i-8, 8*i)
		}
		m.nodes[0].stop()
		m.net.Latency(m.nodes[0].Self(), m.nodes[1].Self(), 20*time.Millisecond)
		for i := 2; i < 4; i++ {
			if _, err := m.nodes[1].Ask(t.Context(), p2p.Peer{ID: m.nodes[i].Self()}); err != nil {
				t.Fatal(err)
			}
		}
		h, err := m.nodes[0].Ask(t.Context(), p2p.Peer{ID: m.nodes[1].Self()})
		if err != nil {
			t.Fatal(err)
		}
		if h.Learned != 3 || h.Refused != 0 || h.RTT != 40*time.Millisecond {
			t.Errorf("heard %+v, want 3 offers in 40 ms", h)
		}
		m.expect(0, "0:8", "8:16", "16:24")
		m.expect(2, "0:8") // it was asked, and so heard the asker
	})
}

// A change of range or state reaches connected peers at once, without anyone asking.
func TestPush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 3)
		defer m.close()
		m.serve(1, 0, 12)
		m.serve(2, 12, 24)
		time.Sleep(time.Millisecond)
		m.expect(0, "0:12", "12:24")
		m.serve(2, 10, 24)
		time.Sleep(time.Millisecond)
		m.expect(0, "0:12", "10:24")
	})
}

// Frozen peers hold up neither a push nor the refresh of the others.
func TestFrozenPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 12)
		defer m.close()
		m.serve(1, 0, 12)
		time.Sleep(time.Second)
		for i := 2; i < 12; i++ {
			m.net.BlackHole(m.nodes[0].Self(), m.nodes[i].Self())
			m.net.BlackHole(m.nodes[1].Self(), m.nodes[i].Self())
		}
		for i := range 100 {
			time.Sleep(7 * time.Second)
			m.serve(1, 0, 12+i%2)
			time.Sleep(2 * askTimeout) // at worst behind one round of pushes to the frozen
			m.expect(0, fmt.Sprintf("0:%d", 12+i%2))
		}
		for i := 2; i < 12; i++ {
			m.net.Heal(m.nodes[0].Self(), m.nodes[i].Self())
			m.net.Heal(m.nodes[1].Self(), m.nodes[i].Self())
		}
	})
}

func TestLeavingAndCrashing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 5)
		defer m.close()
		for i := 1; i < 5; i++ {
			m.serve(i, 6*i-6, 6*i)
		}
		time.Sleep(time.Second)
		m.expect(0, "0:6", "6:12", "12:18", "18:24")

		// A leaving peer is gone from every view at once, also where only hearsay comes.
		if err := m.nodes[1].Withdraw(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.expect(0, "6:12", "12:18", "18:24")
		m.expect(4, "6:12", "12:18") // its own offer is not in its view

		// A crashed one is gone within two lifetimes, while the others go on talking.
		crashed := m.nodes[2]
		m.net.Kill(crashed.Self())
		m.nodes[2] = nil
		crashed.stop()
		at := time.Now()
		for slices.Contains(m.view(0), "6:12") {
			time.Sleep(time.Second)
		}
		if d := time.Since(at); d > 2*Lifetime {
			t.Errorf("a crashed peer stayed for %v", d)
		}
		for range 600 {
			time.Sleep(time.Second)
			if slices.Contains(m.view(0), "6:12") || slices.Contains(m.view(3), "6:12") {
				t.Fatalf("the crashed peer is back after %v", time.Since(at))
			}
		}
		m.expect(0, "12:18", "18:24")

		// Restarted, it is seen as soon as it serves.
		m.start(2, network)
		m.serve(2, 6, 12)
		time.Sleep(time.Second)
		m.expect(0, "6:12", "12:18", "18:24")
	})
}

// Offers outlive hours without anybody changing anything.
func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 3)
		defer m.close()
		m.serve(1, 0, 24)
		m.serve(2, 0, 12)
		time.Sleep(time.Second)
		first, _ := m.nodes[0].Table().Get(m.nodes[1].Self())
		for range 3600 {
			time.Sleep(time.Second)
			m.expect(0, "0:12", "0:24")
			o, _ := m.nodes[0].Table().Get(m.nodes[1].Self())
			if left := time.Until(time.UnixMilli(o.Expires)); left < Lifetime/4 {
				t.Fatalf("an offer was renewed only %v before its end", left)
			}
		}
		if last, _ := m.nodes[0].Table().Get(m.nodes[1].Self()); last.Seq <= first.Seq {
			t.Error("the sequence number did not rise")
		}
	})
}

func TestOtherNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 2)
		defer m.close()
		m.nodes[1].stop()
		m.start(1, "elsewhere")
		m.serve(0, 0, 12)
		m.serve(1, 12, 24)
		for i := range 2 {
			_, err := m.nodes[i].Ask(t.Context(), p2p.Peer{ID: m.nodes[1-i].Self()})
			if !errors.Is(err, ErrNetwork) {
				t.Errorf("node %d: %v", i, err)
			}
			m.expect(i)
		}
	})
}

// A peer whose clock is wrong is not believed, and both sides are told why, once.
func TestWrongClock(t *testing.T) {
	for _, wrong := range []time.Duration{time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			net := p2ptest.New()
			var logs [2]bytes.Buffer
			var services []*Service
			for i := range 2 {
				id := newIdentity(i)
				s, err := New(Config{
					Network: network, Signer: id, Verify: verify, Streamer: net.Peer(id.Self()), Mux: net.Peer(id.Self()),
					Logger: slog.New(slog.NewTextHandler(&logs[i], nil)), Now: func() time.Time { return time.Now().Add(time.Duration(i) * wrong) },
				})
				if err != nil {
					t.Fatal(err)
				}
				if err := s.SetOwn(wire.Offer{Model: model, Layers: 24, End: 24, State: wire.Online, CacheTypes: wire.AllCacheTypes}); err != nil {
					t.Fatal(err)
				}
				services = append(services, s)
			}
			for range 5 {
				h, err := services[0].Ask(t.Context(), p2p.Peer{ID: newIdentity(1).Self()})
				if err != nil || h.Learned != 0 || h.Refused != 1 {
					t.Errorf("heard %+v, %v", h, err)
				}
			}
			if err := net.Close(); err != nil {
				t.Error(err)
			}
			for i := range logs {
				if n := strings.Count(logs[i].String(), "check the clocks"); n != 1 {
					t.Errorf("side %d was told %d times: %s", i, n, logs[i].String())
				}
			}
		})
	}
}

// A peer that sends nonsense, or nothing, costs one bounded exchange.
func TestHostilePeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 2)
		defer m.close()
		m.serve(0, 0, 12)
		m.nodes[1].stop()
		bad := m.net.Peer("bad")
		target := p2p.Peer{ID: m.nodes[0].Self()}
		frames := map[string][]byte{
			"nothing":           nil,
			"a huge length":     binary.BigEndian.AppendUint32(nil, 1<<31),
			"half a frame":      {0, 0, 1, 0, 0x94, 16},
			"another kind":      mustAppend(&wire.Close{}),
			"an answer":         mustAppend(&wire.OfferAnswer{Network: network}),
			"deep nesting":      append(binary.BigEndian.AppendUint32(nil, 4096), slices.Repeat([]byte{0x91}, 4096)...),
			"forged offers":     mustAppend(&wire.OfferRequest{Network: network, Offers: forged()}),
			"an oversize offer": mustAppendRaw(),
		}
		for name, frame := range frames {
			st, err := bad.Open(t.Context(), target, p2p.OfferProtocol)
			if err != nil {
				t.Fatal(err)
			}
			st.Write(frame)
			st.CloseWrite()
			st.SetDeadline(time.Now().Add(10 * time.Second))
			began := time.Now()
			wire.NewReader(st, wire.MaxOfferFrame).ReadFrame()
			if d := time.Since(began); d > serveTimeout {
				t.Errorf("%s: the server waited %v", name, d)
			}
			st.Reset()
			m.expect(0)
		}
		// silence holds a slot for a bounded time, and never more than all slots
		for i := range serveAtOnce + 10 {
			st, err := m.net.Peer(p2p.PeerID(fmt.Sprint("silent ", i/serveEach))).Open(t.Context(), target, p2p.OfferProtocol)
			if err != nil {
				t.Fatal(err)
			}
			defer st.Reset()
		}
		synctest.Wait()
		if _, err := m.nodes[1].Ask(t.Context(), target); err == nil {
			t.Error("answered beyond the bound")
		}
		time.Sleep(serveTimeout)
		if _, err := m.nodes[1].Ask(t.Context(), target); err != nil {
			t.Errorf("not answered when the silent ones had timed out: %v", err)
		}

		// and the other way round: a peer that answers badly
		for name, answer := range map[string][]byte{
			"nothing": nil, "another kind": mustAppend(&wire.Close{}), "a request": mustAppend(&wire.OfferRequest{Network: network}),
			"forged offers": mustAppend(&wire.OfferAnswer{Network: network, Offers: forged()}),
		} {
			bad.Handle(p2p.OfferProtocol, func(_ context.Context, s p2p.Stream) {
				s.Write(answer)
				s.Close()
			})
			h, err := m.nodes[0].Ask(t.Context(), p2p.Peer{ID: "bad"})
			if err == nil && h.Refused == 0 || h.Learned != 0 {
				t.Errorf("%s: heard %+v, %v", name, h, err)
			}
		}
		bad.Handle(p2p.OfferProtocol, func(ctx context.Context, s p2p.Stream) { <-ctx.Done(); s.Reset() })
		began := time.Now()
		if _, err := m.nodes[0].Ask(t.Context(), p2p.Peer{ID: "bad"}); err == nil || time.Since(began) != askTimeout {
			t.Errorf("a silent peer: %v after %v", err, time.Since(began))
		}
	})
}

func mustAppend(f wire.Frame) []byte {
	b, err := wire.Append(nil, f)
	if err != nil {
		panic(err)
	}
	return b
}

func forged() []wire.SignedOffer {
	c := &clock{time.Now()}
	so := newIdentity(7).offer(c, nil)
	so.Signature = make([]byte, 64)
	return []wire.SignedOffer{so, newIdentity(8).offer(c, func(o *wire.Offer) { o.Peer = string(newIdentity(7).Self()) })}
}

// mustAppendRaw is a request whose one offer is longer than offers may be.
func mustAppendRaw() []byte {
	b := mustAppend(&wire.OfferRequest{Network: network, Offers: []wire.SignedOffer{{Payload: make([]byte, 1000), Signature: []byte{1}}}})
	for i := range b {
		if b[i] == 0x03 && b[i+1] == 0xe8 { // the payload's length, 1000
			b[i] = 0x7f
			break
		}
	}
	return b
}

// One peer can't keep us busy, and does not keep others out.
func TestAsksOfOnePeerAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 3)
		defer m.close()
		target := p2p.Peer{ID: m.nodes[0].Self()}
		for _, n := range m.nodes {
			n.stop()
		}
		answers := 0
		for range 1000 {
			if _, err := m.nodes[1].Ask(t.Context(), target); err == nil {
				answers++
			}
		}
		if answers != askBurst {
			t.Errorf("%d answers at once, want %d", answers, askBurst)
		}
		if _, err := m.nodes[2].Ask(t.Context(), target); err != nil {
			t.Errorf("another peer is kept out: %v", err)
		}
		time.Sleep(time.Second)
		if _, err := m.nodes[1].Ask(t.Context(), target); err != nil {
			t.Errorf("a second later: %v", err)
		}
	})
}

// Nobody keeps every answer for itself: with more offers than one answer holds, who
// asks again hears the rest.
func TestAnswersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 2)
		defer m.close()
		m.nodes[0].stop()
		m.nodes[1].stop()
		c := &clock{time.Now()}
		for i := range 150 {
			p := newIdentity(100 + i)
			so := p.offer(c, func(o *wire.Offer) { o.Start, o.End = uint32(i%20), uint32(i%20)+1 })
			if _, err := m.nodes[1].Table().Add(so, p.Self()); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			if _, err := m.nodes[0].Ask(t.Context(), p2p.Peer{ID: m.nodes[1].Self()}); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(m.nodes[0].Table().All()); n != 150 {
			t.Errorf("heard %d of 150 in 3 answers", n)
		}
	})
}

// More addresses and round trips than an offer holds are cut, not refused.
func TestOwnOfferFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 1)
		defer m.close()
		o := wire.Offer{Model: model, Layers: 24, Start: 0, End: 24, State: wire.Online, CacheTypes: wire.AllCacheTypes}
		for i := range 20 {
			o.Addrs = append(o.Addrs, fmt.Sprintf("/ip6/2001:db8:1111:2222:3333:4444:5555:%x/udp/4001/quic-v1", 4096+i))
			o.RTT = append(o.RTT, wire.RTT{Peer: string(newIdentity(i).Self()), Micros: 1})
		}
		if err := m.nodes[0].SetOwn(o); err != nil {
			t.Fatal(err)
		}
		own, _ := m.nodes[0].Own()
		if len(own.Addrs) == 0 || own.Addrs[0] != o.Addrs[0] {
			t.Errorf("kept the addresses %v", own.Addrs)
		}
		o.End = 99
		if err := m.nodes[0].SetOwn(o); err == nil {
			t.Error("an impossible range was signed")
		}
	})
}
