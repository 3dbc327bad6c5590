package offer

import (
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// identity is an ed25519 key whose peer id is the public key in hex.
type identity struct{ key ed25519.PrivateKey }

func newIdentity(n int) identity {
	seed := make([]byte, ed25519.SeedSize)
	copy(seed, fmt.Sprintf("peer %d", n))
	return identity{ed25519.NewKeyFromSeed(seed)}
}

func (i identity) Self() p2p.PeerID {
	return p2p.PeerID(hex.EncodeToString(i.key.Public().(ed25519.PublicKey)))
}

func (i identity) Sign(msg []byte) ([]byte, error) { return ed25519.Sign(i.key, msg), nil }

func verify(peer string, msg, sig []byte) error {
	key, err := hex.DecodeString(peer)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return errors.New("no peer id")
	}
	if !ed25519.Verify(key, msg, sig) {
		return errors.New("wrong signature")
	}
	return nil
}

const network = "test"

var (
	epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	model = wire.Fingerprint{1, 2, 3}
)

// clock is a time that tests set.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func newTable(c *clock) *Table { return NewTable(network, "me", verify, c.now) }

// offer is a plain one of layers 8 to 15, issued now.
func (i identity) offer(c *clock, change func(*wire.Offer)) wire.SignedOffer {
	o := wire.Offer{
		Network: network, Model: model, Layers: 24, Peer: string(i.Self()), Start: 8, End: 16, State: wire.Online, CacheTypes: wire.AllCacheTypes,
		Seq: uint64(c.t.UnixMilli()), Issued: c.t.UnixMilli(), Expires: c.t.Add(Lifetime).UnixMilli(), Version: "test",
	}
	if change != nil {
		change(&o)
	}
	return i.sign(o)
}

func (i identity) sign(o wire.Offer) wire.SignedOffer {
	payload, err := wire.AppendOffer(nil, &o)
	if err != nil {
		panic(err)
	}
	sig, _ := i.Sign(append([]byte(wire.OfferSignPrefix), payload...))
	return wire.SignedOffer{Payload: payload, Signature: sig}
}

func TestAddBelieves(t *testing.T) {
	c := &clock{epoch}
	p, q := newIdentity(1), newIdentity(2)
	good := p.offer(c, nil)
	flipped := func(so wire.SignedOffer) wire.SignedOffer {
		so.Signature = append([]byte{so.Signature[0] ^ 1}, so.Signature[1:]...)
		return so
	}
	times := func(issued, expires time.Duration) func(*wire.Offer) {
		return func(o *wire.Offer) {
			o.Issued, o.Expires = c.t.Add(issued).UnixMilli(), c.t.Add(expires).UnixMilli()
		}
	}
	for _, test := range []struct {
		name string
		so   wire.SignedOffer
		want error
	}{
		{"plain", good, nil},
		{"clock 29 s ahead", p.offer(c, times(29*time.Second, 149*time.Second)), nil},
		{"expired 29 s ago", p.offer(c, times(-149*time.Second, -29*time.Second)), nil},
		{"clock 31 s ahead", p.offer(c, times(31*time.Second, 151*time.Second)), ErrFuture},
		{"expired 31 s ago", p.offer(c, times(-151*time.Second, -31*time.Second)), ErrExpired},
		{"another network's", p.offer(c, func(o *wire.Offer) { o.Network = "other" }), ErrNetwork},
		{"bent signature", flipped(good), ErrSignature},
		{"no signature", wire.SignedOffer{Payload: good.Payload}, ErrSignature},
		{"signed by another", q.offer(c, func(o *wire.Offer) { o.Peer = string(p.Self()) }), ErrSignature},
		{"signature without the prefix", wire.SignedOffer{Payload: good.Payload, Signature: ed25519.Sign(p.key, good.Payload)}, ErrSignature},
		{"wrong number of layers", p.offer(c, func(o *wire.Offer) { o.Model, o.Layers = wire.Fingerprint{9}, 30 }), ErrLayers},
	} {
		t.Run(test.name, func(t *testing.T) {
			table := newTable(c)
			table.Expect(wire.Fingerprint{9}, 24)
			changed, err := table.Add(test.so, "informant")
			if !errors.Is(err, test.want) || changed != (test.want == nil) {
				t.Errorf("changed %v, %v; want %v", changed, err, test.want)
			}
			if n := len(table.All()); (n == 1) != (test.want == nil) {
				t.Errorf("%d offers in the table", n)
			}
		})
	}
	for _, payload := range [][]byte{nil, {0x90}, good.Payload[:len(good.Payload)-1], append(good.Payload[:len(good.Payload):len(good.Payload)], 0), make([]byte, 1<<20)} {
		if _, err := newTable(c).Add(wire.SignedOffer{Payload: payload}, "informant"); err == nil {
			t.Errorf("%d bytes of nonsense are believed", len(payload))
		}
	}
}

func TestSequence(t *testing.T) {
	c := &clock{epoch}
	table := newTable(c)
	p := newIdentity(1)
	seq := func(n uint64, state wire.OfferState) wire.SignedOffer {
		return p.offer(c, func(o *wire.Offer) { o.Seq, o.State = n, state })
	}
	online, draining := seq(5, wire.Online), seq(6, wire.Draining)
	expect := func(what string, so wire.SignedOffer, from p2p.PeerID, changed bool, want error, inView int) {
		t.Helper()
		got, err := table.Add(so, from)
		if got != changed || !errors.Is(err, want) {
			t.Errorf("%s: changed %v, %v; want %v, %v", what, got, err, changed, want)
		}
		if n := len(table.View(model)); n != inView {
			t.Errorf("%s: %d in the view, want %d", what, n, inView)
		}
	}
	expect("first", online, "x", true, nil, 1)
	expect("again", online, "y", false, nil, 1)
	expect("the same number, other words", seq(5, wire.Joining), "x", false, ErrOld, 1)
	expect("older", seq(4, wire.Online), "x", false, ErrOld, 1)
	expect("leaving", draining, "x", true, nil, 0)
	if all := table.All(); len(all) != 1 || all[0].State != wire.Draining {
		t.Errorf("a leaving peer is not in All: %v", all)
	}
	expect("replayed after leaving", online, "x", false, ErrOld, 0)
	expect("back", seq(7, wire.Online), "x", true, nil, 1)

	table.Forget(p.Self())
	expect("hearsay of a failed peer", seq(7, wire.Online), "x", false, ErrOld, 0)
	expect("the failed peer itself", seq(7, wire.Online), p.Self(), true, nil, 1)
	table.Forget(p.Self())
	expect("hearsay, newer", seq(8, wire.Online), "x", true, nil, 1)
}

// Repeating a dead peer's last offer keeps it in the view no longer than its own
// lifetime and skew, and its sequence number outlives every offer it can have made.
func TestExpiry(t *testing.T) {
	c := &clock{epoch}
	table := newTable(c)
	p := newIdentity(1)
	last, older := p.offer(c, nil), p.offer(c, func(o *wire.Offer) { o.Seq-- })
	table.Add(last, p.Self())
	gone := time.Duration(0)
	for after := time.Duration(0); after < 10*time.Minute; after += time.Second {
		c.t = epoch.Add(after)
		table.Sweep()
		table.Add(last, "parrot")
		table.Add(older, "parrot")
		present := len(table.View(model)) > 0
		switch {
		case present && gone > 0:
			t.Fatalf("back %v after the last offer", after)
		case !present && gone == 0:
			gone = after
		}
	}
	if gone == 0 || gone > 2*Lifetime {
		t.Errorf("left the view after %v, want at most %v", gone, 2*Lifetime)
	}
	if len(table.entries) != 0 {
		t.Errorf("%d entries are kept for ever", len(table.entries))
	}
}

func TestBounds(t *testing.T) {
	c := &clock{epoch}
	at := func(ip string) func(*wire.Offer) {
		return func(o *wire.Offer) { o.Addrs = []string{"/ip4/" + ip + "/tcp/4001"} }
	}
	t.Run("one /24", func(t *testing.T) {
		table := newTable(c)
		for i := range 5 {
			p := newIdentity(i)
			_, err := table.Add(p.offer(c, at(fmt.Sprintf("198.51.100.%d", i))), p.Self())
			if (err == nil) != (i < maxPerPrefix) {
				t.Errorf("peer %d: %v", i, err)
			}
		}
		for i, ip := range []string{"198.51.101.1", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "127.0.0.1", "100.64.0.1"} {
			p := newIdentity(10 + i)
			if _, err := table.Add(p.offer(c, at(ip)), p.Self()); err != nil {
				t.Errorf("%s: %v", ip, err)
			}
		}
		p := newIdentity(30)
		other := func(o *wire.Offer) { at("198.51.100.77")(o); o.Start = 0 }
		if _, err := table.Add(p.offer(c, other), p.Self()); err != nil {
			t.Errorf("another range: %v", err)
		}
	})
	t.Run("one /48", func(t *testing.T) {
		table := newTable(c)
		for i := range 5 {
			p := newIdentity(i)
			so := p.offer(c, func(o *wire.Offer) { o.Addrs = []string{fmt.Sprintf("/ip6/2001:db8:1:%d::1/udp/1/quic-v1", i)} })
			if _, err := table.Add(so, p.Self()); (err == nil) != (i < maxPerPrefix) {
				t.Errorf("peer %d: %v", i, err)
			}
		}
	})
	t.Run("who speaks for himself comes before hearsay", func(t *testing.T) {
		table := newTable(c)
		for i := range 3 * maxPerRange {
			table.Add(newIdentity(i).offer(c, nil), "liar")
		}
		if n := len(table.View(model)); n != maxPerRange {
			t.Fatalf("%d candidates of one range", n)
		}
		for i := range maxPerRange {
			p := newIdentity(1000 + i)
			if _, err := table.Add(p.offer(c, nil), p.Self()); err != nil {
				t.Fatalf("honest peer %d: %v", i, err)
			}
		}
		if _, err := table.Add(newIdentity(5000).offer(c, nil), newIdentity(5000).Self()); !errors.Is(err, ErrFull) {
			t.Errorf("one more than fits: %v", err)
		}
	})
	t.Run("a known peer moves", func(t *testing.T) {
		table := newTable(c)
		for i := range maxPerRange {
			p := newIdentity(i)
			table.Add(p.offer(c, nil), p.Self())
		}
		p := newIdentity(3)
		if _, err := table.Add(p.offer(c, func(o *wire.Offer) { o.Seq++ }), p.Self()); err != nil {
			t.Errorf("renewing in a full range: %v", err)
		}
	})
}

// 10,000 made-up peers, told by ten liars, with ranges and addresses as they like.
func TestSybils(t *testing.T) {
	c := &clock{epoch}
	table := newTable(c)
	for i := range 10000 {
		start := uint32(i % 24)
		so := newIdentity(i).offer(c, func(o *wire.Offer) {
			o.Start, o.End = start, start+1+uint32(i/24)%(24-start)
			o.Model[31] = byte(i % 7)
			o.Addrs = []string{fmt.Sprintf("/ip4/203.%d.%d.1/tcp/1", i/256%256, i%256)}
		})
		table.Add(so, p2p.PeerID(fmt.Sprint("liar ", i%10)))
		if i%1000 == 0 {
			table.Forget(newIdentity(i).Self())
		}
	}
	if n := len(table.All()); n > maxOffers {
		t.Errorf("%d offers are kept", n)
	}
	for liar := range 10 {
		n := table.count(func(e *entry) bool { return e.offer != nil && e.from == p2p.PeerID(fmt.Sprint("liar ", liar)) })
		if n > maxHearsay {
			t.Errorf("liar %d has placed %d", liar, n)
		}
	}
	honest := newIdentity(20000)
	if _, err := table.Add(honest.offer(c, nil), honest.Self()); err != nil {
		t.Errorf("an honest peer is kept out: %v", err)
	}
}

func TestChanged(t *testing.T) {
	c := &clock{epoch}
	table := newTable(c)
	p := newIdentity(1)
	changed := func() bool {
		select {
		case <-table.Changed():
			return true
		default:
			return false
		}
	}
	before := table.Changed()
	table.Add(p.offer(c, nil), "x")
	select {
	case <-before:
	default:
		t.Error("a new offer is no change")
	}
	before = table.Changed()
	table.Add(p.offer(c, nil), "y")
	table.Sweep()
	if changed() || before != table.Changed() {
		t.Error("nothing new is a change")
	}
	c.t = c.t.Add(Lifetime + Skew)
	table.Sweep()
	select {
	case <-before:
	default:
		t.Error("an expired offer is no change")
	}
}

func TestExpectDropsWhatDisagrees(t *testing.T) {
	c := &clock{epoch}
	table := newTable(c)
	table.Add(newIdentity(1).offer(c, nil), "x")
	table.Add(newIdentity(2).offer(c, func(o *wire.Offer) { o.Layers = 99 }), "x")
	table.Expect(model, 24)
	if v := table.View(model); len(v) != 1 || v[0].Layers != 24 {
		t.Errorf("the view is %v", v)
	}
}

func TestOwnOffersAreNotHearsay(t *testing.T) {
	c := &clock{epoch}
	p := newIdentity(1)
	table := NewTable(network, p.Self(), verify, c.now)
	if changed, err := table.Add(p.offer(c, nil), "x"); changed || err != nil || len(table.All()) != 0 {
		t.Errorf("our own offer came back: %v %v", changed, err)
	}
}

func FuzzAdd(f *testing.F) {
	c := &clock{epoch}
	good := newIdentity(1).offer(c, nil)
	f.Add(good.Payload, good.Signature)
	f.Add(good.Payload[:40], good.Signature)
	f.Add([]byte{}, []byte{})
	f.Add(append([]byte{0xdc, 0xff, 0xff}, good.Payload...), good.Signature[:10])
	f.Fuzz(func(t *testing.T, payload, sig []byte) {
		table := newTable(c)
		changed, err := table.Add(wire.SignedOffer{Payload: payload, Signature: sig}, "fuzz")
		if changed != (err == nil) || changed != (len(table.All()) == 1) {
			t.Fatalf("changed %v, err %v, %d offers", changed, err, len(table.All()))
		}
		if !changed {
			return
		}
		o := table.All()[0]
		if o.Network != network || verify(o.Peer, append([]byte(wire.OfferSignPrefix), payload...), sig) != nil {
			t.Fatalf("believed %+v", o)
		}
	})
}
