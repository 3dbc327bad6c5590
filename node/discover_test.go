package node

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/host"
	"github.com/meshnet/meshnet/p2p/offer"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
)

var testModel = wire.Fingerprint{7, 7, 7}

// fakeDHT is a DHT that never loses a record: who was provided when.
type fakeDHT struct {
	mu    sync.Mutex
	lists map[string]map[p2p.PeerID]time.Time
}

// fakeHost is a Finder on it.
type fakeHost struct {
	*p2ptest.Peer
	key       ed25519.PrivateKey
	dht       *fakeDHT
	mu        sync.Mutex
	alone     bool
	connected []p2p.Peer
	watches   []chan host.Event
	provides  int
	finds     int
}

func (h *fakeHost) Sign(msg []byte) ([]byte, error) { return ed25519.Sign(h.key, msg), nil }

func (h *fakeHost) Provide(_ context.Context, key []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.alone {
		return host.ErrAlone
	}
	h.provides++
	h.dht.mu.Lock()
	defer h.dht.mu.Unlock()
	if h.dht.lists[string(key)] == nil {
		h.dht.lists[string(key)] = map[p2p.PeerID]time.Time{}
	}
	h.dht.lists[string(key)][h.Self()] = time.Now()
	return nil
}

func (h *fakeHost) Find(ctx context.Context, key []byte) <-chan p2p.Peer {
	h.mu.Lock()
	h.finds++
	h.mu.Unlock()
	h.dht.mu.Lock()
	defer h.dht.mu.Unlock()
	out := make(chan p2p.Peer, 100)
	for id, at := range h.dht.lists[string(key)] {
		if time.Since(at) < host.RecordTTL && id != h.Self() {
			out <- p2p.Peer{ID: id, Addrs: []string{"mem"}}
		}
	}
	close(out)
	return out
}

func (h *fakeHost) Watch() (<-chan host.Event, func()) {
	w := make(chan host.Event, 64)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watches = append(h.watches, w)
	return w, func() {}
}

func (h *fakeHost) Connected() []p2p.Peer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]p2p.Peer(nil), h.connected...)
}

func (h *fakeHost) TableSize() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.alone {
		return 0
	}
	return 3
}

func (h *fakeHost) setAlone(alone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.alone = alone
}

// connect makes two hosts connected, as both see it.
func connect(a, b *fakeHost) {
	for range 2 {
		a.mu.Lock()
		p := p2p.Peer{ID: b.Self(), Addrs: []string{"mem"}}
		a.connected = append(a.connected, p)
		for _, w := range a.watches {
			w <- host.Event{Peer: p, Connected: true}
		}
		a.mu.Unlock()
		a, b = b, a
	}
}

// disconnect undoes connect.
func disconnect(a, b *fakeHost) {
	for range 2 {
		a.mu.Lock()
		p := p2p.Peer{ID: b.Self(), Addrs: []string{"mem"}}
		a.connected = slices.DeleteFunc(a.connected, func(q p2p.Peer) bool { return q.ID == p.ID })
		for _, w := range a.watches {
			w <- host.Event{Peer: p}
		}
		a.mu.Unlock()
		a, b = b, a
	}
}

type fakeMesh struct {
	t     *testing.T
	net   *p2ptest.Network
	dht   fakeDHT
	hosts []*fakeHost
	discs []*Discovery
	offs  []*offer.Service
	stop  []func()
}

func (m *fakeMesh) add(alone bool) (*fakeHost, *Discovery) {
	m.t.Helper()
	seed := make([]byte, ed25519.SeedSize)
	copy(seed, fmt.Sprint("node ", len(m.hosts)))
	key := ed25519.NewKeyFromSeed(seed)
	id := p2p.PeerID(hex.EncodeToString(key.Public().(ed25519.PublicKey)))
	h := &fakeHost{Peer: m.net.Peer(id), key: key, dht: &m.dht, alone: alone}
	offers, err := offer.New(offer.Config{
		Network: "test", Signer: h, Streamer: h, Mux: h, Peers: h.Connected, Model: testModel,
		Verify: func(peer string, msg, sig []byte) error {
			if key, err := hex.DecodeString(peer); err != nil || len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, msg, sig) {
				return errors.New("forged")
			}
			return nil
		},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	d := NewDiscovery(DiscoveryConfig{Network: "test", Host: h, Offers: offers})
	ctx, cancel := context.WithCancel(m.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { d.Run(ctx) })
	wg.Go(func() { offers.Run(ctx) })
	m.hosts, m.discs, m.offs = append(m.hosts, h), append(m.discs, d), append(m.offs, offers)
	m.stop = append(m.stop, func() { cancel(); wg.Wait() })
	return h, d
}

func (m *fakeMesh) serve(i, start, end int) {
	m.t.Helper()
	o := wire.Offer{Model: testModel, Layers: 24, Start: uint32(start), End: uint32(end), State: wire.Online, CacheTypes: wire.AllCacheTypes}
	if err := m.offs[i].SetOwn(o); err != nil {
		m.t.Fatal(err)
	}
	m.discs[i].Seek(testModel, 24)
	m.discs[i].Serve(testModel, start, end)
}

func (m *fakeMesh) close() {
	for _, stop := range m.stop {
		stop()
	}
	if err := m.net.Close(); err != nil {
		m.t.Error(err)
	}
}

func newFakeMesh(t *testing.T) *fakeMesh {
	return &fakeMesh{t: t, net: p2ptest.New(), dht: fakeDHT{lists: map[string]map[p2p.PeerID]time.Time{}}}
}

func whole(layers int) func([]wire.Offer) bool {
	return func(v []wire.Offer) bool { return len(missingLayers(layers, v)) == 0 }
}

// wait waits for a whole view and says how long that took.
func (m *fakeMesh) wait(d *Discovery, most time.Duration) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), most)
	defer cancel()
	if v, err := d.WaitView(ctx, testModel, whole(24)); err != nil {
		m.t.Fatalf("after %v %d offers, layers %v missing", most, len(v), missingLayers(24, v))
	}
}

func TestConvergesThroughConnectionsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMesh(t)
		defer m.close()
		for range 4 {
			m.add(true) // no DHT at all
		}
		for i := range 3 {
			m.serve(i, 8*i, 8*i+8)
		}
		m.discs[3].Seek(testModel, 24)
		time.Sleep(10 * time.Second)
		connect(m.hosts[1], m.hosts[0])
		connect(m.hosts[2], m.hosts[0])
		time.Sleep(time.Millisecond)
		connect(m.hosts[3], m.hosts[0]) // a star around node 0: the head is connected to one peer
		m.wait(m.discs[3], time.Second)
	})
}

func TestConvergesThroughTheDHT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMesh(t)
		defer m.close()
		for range 4 {
			m.add(false)
		}
		m.discs[3].Seek(testModel, 24) // the head is there first
		time.Sleep(time.Minute)
		for i := range 3 {
			m.serve(i, 8*i, 8*i+8)
		}
		m.wait(m.discs[3], seekMost+time.Second)

		// With an answer of everyone, a later head needs one look-up.
		_, late := m.add(false)
		late.Seek(testModel, 24)
		m.wait(late, time.Second)
		if rtts := late.Links(); len(rtts) == 0 {
			t.Error("no link was measured")
		}
		if models := late.Models(); len(models) != 1 || models[0].Peers != 3 || len(models[0].Missing) != 0 {
			t.Errorf("models seen: %+v", models)
		}
	})
}

// Providing waits for the first other peer, comes again before records expire, and
// follows a change of range at once.
func TestProviding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMesh(t)
		defer m.close()
		h, d := m.add(true)
		m.serve(0, 4, 20)
		listed := func(bucket int) bool {
			for range h.Find(t.Context(), bucketKey("test", testModel, bucket)) {
				return true
			}
			m.dht.mu.Lock()
			defer m.dht.mu.Unlock()
			at, ok := m.dht.lists[string(bucketKey("test", testModel, bucket))][h.Self()]
			return ok && time.Since(at) < host.RecordTTL
		}
		time.Sleep(time.Hour)
		if listed(0) {
			t.Fatal("listed without a peer to keep the record")
		}
		h.setAlone(false)
		time.Sleep(seekMost + time.Second)
		for range 3600 {
			if !listed(0) || !listed(1) || !listed(2) {
				t.Fatal("a record has expired")
			}
			time.Sleep(time.Second)
		}
		if h.provides > 4*16 {
			t.Errorf("%d provides of 4 keys in an hour", h.provides)
		}
		d.Serve(testModel, 0, 4)
		time.Sleep(time.Second)
		time.Sleep(host.RecordTTL)
		if !listed(0) || listed(1) || listed(2) {
			t.Error("the records are not those of the new range")
		}
	})
}

// When a peer goes, its layers are looked for at once; while nobody has them, look-ups
// grow rare, and asking the dead does not take all the time.
func TestGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMesh(t)
		defer m.close()
		for range 3 {
			m.add(false)
		}
		m.serve(0, 0, 12)
		m.serve(1, 12, 24)
		time.Sleep(time.Second)
		head := m.hosts[2]
		m.discs[2].Seek(testModel, 24)
		m.wait(m.discs[2], time.Second)
		time.Sleep(5 * time.Second) // a look-up may still be under way

		m.net.Kill(m.hosts[1].Self())
		m.stop[1]()
		m.stop[1] = func() {}
		m.offs[2].Table().Forget(m.hosts[1].Self()) // the data path has failed
		head.mu.Lock()
		head.finds = 0
		head.mu.Unlock()
		time.Sleep(time.Second)
		head.mu.Lock()
		soon := head.finds
		head.mu.Unlock()
		if soon == 0 {
			t.Error("no look-up within a second of the gap")
		}
		time.Sleep(10 * time.Minute)
		head.mu.Lock()
		if head.finds > 300 {
			t.Errorf("%d look-ups in ten minutes", head.finds)
		}
		head.mu.Unlock()

		m.add(false)
		m.serve(3, 12, 24)
		m.discs[2].Kick()
		m.wait(m.discs[2], 2*time.Second)
	})
}

// A lost connection is no lost peer; a peer that is gone leaves the view soon, and
// what others still say of it does not bring it back.
func TestLostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMesh(t)
		defer m.close()
		for range 3 {
			m.add(true)
		}
		m.serve(1, 0, 12)
		m.serve(2, 12, 24)
		connect(m.hosts[0], m.hosts[1])
		connect(m.hosts[0], m.hosts[2])
		connect(m.hosts[1], m.hosts[2])
		m.wait(m.discs[0], time.Second)
		view := func() int { return len(m.discs[0].View(testModel)) }

		disconnect(m.hosts[0], m.hosts[2])
		time.Sleep(5 * time.Second)
		if view() != 2 {
			t.Errorf("%d in the view after a connection was lost", view())
		}
		connect(m.hosts[0], m.hosts[2])
		time.Sleep(time.Second)

		// Nor is a silent one, at once: its machine may be busy for some seconds.
		m.net.Freeze(m.hosts[2].Self())
		disconnect(m.hosts[0], m.hosts[2])
		time.Sleep(10 * time.Second)
		if view() != 2 {
			t.Errorf("%d in the view after ten seconds of silence", view())
		}
		m.net.Thaw(m.hosts[2].Self())
		connect(m.hosts[0], m.hosts[2])
		time.Sleep(20 * time.Second)
		if view() != 2 {
			t.Errorf("%d in the view after a silence that ended", view())
		}

		m.net.Kill(m.hosts[2].Self())
		m.stop[2]()
		m.stop[2] = func() {}
		disconnect(m.hosts[0], m.hosts[2])
		time.Sleep(2 * time.Second)
		for range 300 {
			if view() != 1 {
				t.Fatalf("%d in the view after a peer was killed", view())
			}
			time.Sleep(time.Second)
		}
	})
}

// A peer that stays silent is forgotten long before its offer expires.
func TestSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMesh(t)
		defer m.close()
		for range 2 {
			m.add(true)
		}
		m.serve(1, 0, 24)
		connect(m.hosts[0], m.hosts[1])
		m.wait(m.discs[0], time.Second)
		synctest.Wait() // its own discovery may have heard of nothing yet
		m.net.Freeze(m.hosts[1].Self())
		defer m.net.Thaw(m.hosts[1].Self())
		disconnect(m.hosts[0], m.hosts[1])
		time.Sleep(20 * time.Second)
		if n := len(m.discs[0].View(testModel)); n > 0 {
			t.Errorf("%d in the view after 20 s of silence", n)
		}
	})
}

// Four real hosts on loopback, of which each knows only the first, see each other's
// ranges within two seconds of the last one's start.
func TestRealMeshConverges(t *testing.T) {
	type member struct {
		h *host.Host
		d *Discovery
	}
	var members []member
	var peers []string
	for i := range 4 {
		h, err := host.New(t.Context(), host.Config{Network: "converge", Listen: []string{"127.0.0.1:0"}, Peers: peers, NoMDNS: true})
		if err != nil {
			t.Fatal(err)
		}
		offers, err := offer.New(offer.Config{
			Network: "converge", Signer: h, Verify: host.Verify, Streamer: h, Mux: h, Peers: h.Connected, Model: testModel})
		if err != nil {
			t.Fatal(err)
		}
		d := NewDiscovery(DiscoveryConfig{Network: "converge", Host: h, Offers: offers})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { d.Run(ctx) })
		wg.Go(func() { offers.Run(ctx) })
		t.Cleanup(func() {
			cancel()
			wg.Wait()
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		})
		d.Seek(testModel, 24)
		if i < 3 {
			o := wire.Offer{Model: testModel, Layers: 24, Start: uint32(8 * i), End: uint32(8*i + 8), State: wire.Online, CacheTypes: wire.AllCacheTypes, Addrs: h.Addrs()}
			if err := offers.SetOwn(o); err != nil {
				t.Fatal(err)
			}
			d.Serve(testModel, 8*i, 8*i+8)
		}
		if i == 0 {
			peers = h.Addrs()[:1]
		}
		members = append(members, member{h, d})
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if v, err := members[3].d.WaitView(ctx, testModel, whole(24)); err != nil {
		t.Fatalf("after 10 s: %v, layers %v missing", v, missingLayers(24, v))
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("the view took %v", took)
	} else {
		t.Logf("whole view after %v", took)
	}
	// and every volunteer sees the two others
	for i := range 3 {
		if _, err := members[i].d.WaitView(ctx, testModel, func(v []wire.Offer) bool { return len(v) == 2 }); err != nil {
			t.Errorf("volunteer %d sees %v", i, members[i].d.View(testModel))
		}
	}
}
