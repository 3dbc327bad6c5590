package offer

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

func from(ip string) netip.Prefix {
	a := netip.MustParseAddr(ip)
	p, err := a.Prefix(a.BitLen())
	if err != nil {
		panic(err)
	}
	return p
}

// TestSybilsThatSpeak: 10,000 keys that each tell their own offer of one range, from
// few addresses, whatever addresses they claim. The table stays small, who was known
// before stays, and an honest peer that comes after them gets in.
func TestSybilsThatSpeak(t *testing.T) {
	for name, origin := range map[string]func(i int) netip.Prefix{
		"one public /24":             func(i int) netip.Prefix { return from(fmt.Sprintf("198.51.100.%d", i%250)) },
		"one IPv6 customer":          func(i int) netip.Prefix { return from(fmt.Sprintf("2001:db8::%x", i)) },
		"one machine on the LAN":     func(int) netip.Prefix { return from("192.168.1.66") },
		"twenty machines on the LAN": func(i int) netip.Prefix { return from(fmt.Sprintf("192.168.1.%d", 100+i%20)) },
		"fifty public /24s":          func(i int) netip.Prefix { return from(fmt.Sprintf("203.0.%d.%d", i%50, i/50%250)) },
		"through relays":             func(int) netip.Prefix { return netip.Prefix{} },
	} {
		t.Run(name, func(t *testing.T) {
			c := &clock{epoch}
			// Keys that sign are tested elsewhere, and take long.
			table := NewTable(network, "me", func(string, []byte, []byte) error { return nil }, c.now)
			tell := func(n int, origin netip.Prefix, addr string) error {
				o := wire.Offer{
					Network: network, Model: model, Layers: 24, Peer: fmt.Sprint("peer ", n), Start: 8, End: 16, State: wire.Online, CacheTypes: wire.AllCacheTypes,
					Seq: 1, Issued: c.t.UnixMilli(), Expires: c.t.Add(Lifetime).UnixMilli(), Addrs: []string{addr},
				}
				payload, err := wire.AppendOffer(nil, &o)
				if err != nil {
					t.Fatal(err)
				}
				_, err = table.AddFrom(wire.SignedOffer{Payload: payload}, p2p.PeerID(o.Peer), origin)
				return err
			}
			const early, late = 20_000, 20_001 // by the sybils
			if err := tell(early, from("192.0.2.7"), "/ip4/192.0.2.7/tcp/1"); err != nil {
				t.Fatal(err)
			}
			for i := range 10_000 {
				_ = tell(i, origin(i), fmt.Sprintf("/ip4/10.%d.%d.1/tcp/1", i/256, i%256))
			}
			if n := len(table.View(model)); n > 64 {
				t.Errorf("%d candidates", n)
			}
			if n := len(table.entries); n > maxOffers+maxForgotten {
				t.Errorf("%d entries", n)
			}
			if err := tell(late, from("192.168.1.5"), "/ip4/192.168.1.5/tcp/1"); err != nil {
				t.Errorf("an honest peer that comes late: %v", err)
			}
			for _, n := range []int{early, late} {
				if _, ok := table.Get(p2p.PeerID(fmt.Sprint("peer ", n))); !ok {
					t.Errorf("honest peer %d is not to be found", n)
				}
			}
			if err := tell(early, from("192.0.2.7"), "/ip4/192.0.2.7/tcp/2"); !errors.Is(err, ErrOld) {
				t.Errorf("the same number with other words: %v", err)
			}
		})
	}
}

// TestOriginCounts: three of one block in a range, whatever addresses they state.
func TestOriginCounts(t *testing.T) {
	c := &clock{epoch}
	table := newTable(c)
	for i := range 5 {
		p := newIdentity(i)
		so := p.offer(c, func(o *wire.Offer) { o.Addrs = []string{fmt.Sprintf("/ip4/10.0.0.%d/tcp/1", i)} })
		if _, err := table.AddFrom(so, p.Self(), from(fmt.Sprintf("198.51.100.%d", i))); (err == nil) != (i < maxPerPrefix) {
			t.Errorf("peer %d: %v", i, err)
		}
	}
}

// TestHearsayKeepsTheOrigin: a renewal that comes by way of others is still the
// offer of the peer that once told us itself.
func TestHearsayKeepsTheOrigin(t *testing.T) {
	c := &clock{epoch}
	table := newTable(c)
	p := newIdentity(1)
	if _, err := table.AddFrom(p.offer(c, nil), p.Self(), from("192.0.2.7")); err != nil {
		t.Fatal(err)
	}
	if _, err := table.AddFrom(p.offer(c, func(o *wire.Offer) { o.Seq++ }), "gossip", from("198.51.100.1")); err != nil {
		t.Fatal(err)
	}
	if e := table.entries[string(p.Self())]; !e.direct || e.origin != blockOf(from("192.0.2.7")) {
		t.Errorf("the entry is %+v", e)
	}
}

// TestSilentAskers: many peers that open exchanges and say nothing hold a few slots
// each; an honest peer finds one.
func TestSilentAskers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 2)
		defer m.close()
		target := p2p.Peer{ID: m.nodes[0].Self()}
		m.nodes[1].stop()
		m.nodes[1].stop = func() {}
		for i := range 30 * askBurst {
			st, err := m.net.Peer(p2p.PeerID(fmt.Sprint("silent ", i/askBurst))).Open(t.Context(), target, p2p.OfferProtocol)
			if err != nil {
				t.Fatal(err)
			}
			defer st.Reset()
		}
		synctest.Wait()
		if _, err := m.nodes[1].Ask(t.Context(), target); err != nil {
			t.Errorf("kept out: %v", err)
		}
		time.Sleep(serveTimeout)
		synctest.Wait()
		m.nodes[0].mu.Lock()
		defer m.nodes[0].mu.Unlock()
		if n := m.nodes[0].serving; n != 0 {
			t.Errorf("%d slots are held for ever", n)
		}
	})
}

// TestManyAskers: 100,000 keys that ask once leave nothing behind.
func TestManyAskers(t *testing.T) {
	c := &clock{epoch}
	s := &Service{cfg: Config{Now: c.now}, asks: map[p2p.PeerID]*bucket{}}
	most := 0
	for i := range 100_000 {
		if id := p2p.PeerID(fmt.Sprint(i)); s.begin(id) {
			s.end(id)
		}
		most = max(most, len(s.asks))
		c.t = c.t.Add(time.Millisecond)
	}
	if most > maxAsks {
		t.Errorf("%d rates of asking are remembered", most)
	}
	c.t = c.t.Add(time.Minute)
	s.sweepPeers()
	if len(s.asks) != 0 {
		t.Errorf("%d are left", len(s.asks))
	}
}
