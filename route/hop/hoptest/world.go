package hoptest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/route/hop"
)

// Model is the fingerprint of the oracle.
var Model = wire.Fingerprint{'o', 'r', 'a', 'c', 'l', 'e'}

// World is a mesh in memory. Make it inside a synctest bubble.
type World struct {
	T      testing.TB
	Net    *p2ptest.Network
	Layers int
	Hidden int
	Dir    *Directory
	Cache  cache.Config // of peers that join from now on
	Keep   int64        // their bound of kept output a session; 0: the default
	Log    *slog.Logger
	// Spy, if set, is called with every peer that joins before it serves, and may
	// stand in front of its activation protocol.
	Spy func(v *Volunteer, h p2p.Handler) p2p.Handler

	mu     sync.Mutex // of what follows
	seq    uint64
	peers  map[p2p.PeerID]*Volunteer
	hearts []*hop.Hearts
}

// Volunteer is one peer that serves layers.
type Volunteer struct {
	ID     p2p.PeerID
	Server *hop.Server
	Cache  *cache.Store
	Engine *Engine
	Hearts *hop.Hearts
	Offer  wire.Offer
}

// NewWorld makes a mesh without peers.
func NewWorld(t testing.TB, layers, hidden int) *World {
	return &World{T: t, Net: p2ptest.New(), Layers: layers, Hidden: hidden, Dir: NewDirectory(), Log: slog.New(slog.DiscardHandler), peers: map[p2p.PeerID]*Volunteer{}}
}

// Join starts a peer over [start, end) and puts its offer into the directory.
func (w *World) Join(id p2p.PeerID, start, end int) *Volunteer {
	w.T.Helper()
	cfg := w.Cache
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 1 << 20
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	store, err := cache.New(cfg)
	if err != nil {
		w.T.Fatal(err)
	}
	peer := w.Net.Peer(id)
	v := &Volunteer{ID: id, Cache: store, Engine: &Engine{Hidden: w.Hidden}, Hearts: hop.NewHearts(peer, w.Log)}
	v.Server, err = hop.NewServer(hop.ServerConfig{
		Engine: v.Engine, Cache: store, Streamer: peer, Hearts: v.Hearts, Model: Model,
		Start: start, End: end, Layers: w.Layers, Hidden: w.Hidden, MaxLen: 8192, Logger: w.Log.With("peer", id),
		NewBurst: 1000, KeepSession: w.Keep, Sign: Signer(id),
	})
	if err != nil {
		w.T.Fatal(err)
	}
	handle := p2p.Handler(v.Server.Handle)
	if w.Spy != nil {
		handle = w.Spy(v, handle)
	}
	peer.Handle(p2p.ActivationProtocol, handle)
	peer.Handle(p2p.HeartbeatProtocol, v.Server.HandleHeartbeat)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	v.Offer = wire.Offer{
		Model: Model, Layers: uint32(w.Layers), Peer: string(id), Start: uint32(start), End: uint32(end),
		State: wire.Online, Seq: w.seq, CacheTypes: wire.AllCacheTypes, DecodeMicros: uint32(end-start) * 1000,
	}
	w.Dir.Put(v.Offer)
	w.peers[id] = v
	return v
}

// Signer signs as a peer, in a way that anybody can: who says something in whose name
// is up to the test.
func Signer(id p2p.PeerID) func(msg []byte) ([]byte, error) {
	return func(msg []byte) ([]byte, error) {
		sum := sha256.Sum256(append([]byte(id+"\n"), msg...))
		return sum[:], nil
	}
}

// Verify checks what a Signer signed.
func Verify(peer string, msg, sig []byte) error {
	if want, _ := Signer(p2p.PeerID(peer))(msg); !bytes.Equal(sig, want) {
		return fmt.Errorf("not signed by %s", peer)
	}
	return nil
}

// Peer is a volunteer that joined.
func (w *World) Peer(id p2p.PeerID) *Volunteer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peers[id]
}

func (w *World) all() []*Volunteer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.peers))
}

// Kill ends a peer's process; its offer stays known, as it does for a while.
func (w *World) Kill(id p2p.PeerID) {
	w.Net.Kill(id)
	w.stop(w.Peer(id))
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.peers, id)
}

func (w *World) stop(v *Volunteer) {
	if err := v.Server.Close(); err != nil {
		w.T.Error(err)
	}
	v.Hearts.Close()
	v.Cache.Close()
	if n := v.Engine.Open(); n != 0 {
		w.T.Errorf("peer %s left %d states open", v.ID, n)
	}
}

// Client is the protocol's end of a head.
func (w *World) Client(id p2p.PeerID) *hop.Client {
	p := w.Net.Peer(id)
	h := hop.NewHearts(p, w.Log)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hearts = append(w.hearts, h)
	return hop.NewClient(p, h, w.Log)
}

// Beat has one peer send heartbeats to another, as a head does to its hops.
func (w *World) Beat(from, to p2p.PeerID) {
	h := hop.NewHearts(w.Net.Peer(from), w.Log)
	h.Watch(w.Dir.Peer(to))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hearts = append(w.hearts, h)
}

// Close ends everything and fails the test for what was left behind.
func (w *World) Close() {
	for _, v := range w.all() {
		w.Net.Thaw(v.ID)
	}
	if !w.Forgotten(10 * time.Second) {
		w.T.Error("a peer still holds a session")
	}
	for _, h := range w.hearts {
		h.Close()
	}
	time.Sleep(100 * time.Millisecond) // what was closed reaches the other side
	if err := w.Net.Close(); err != nil {
		w.T.Error(err)
	}
	for _, v := range w.all() {
		w.stop(v)
	}
}

// Forgotten waits until no peer holds anything of any session, at most d.
func (w *World) Forgotten(d time.Duration) bool {
	for end := time.Now().Add(d); ; time.Sleep(50 * time.Millisecond) {
		clean := true
		for _, v := range w.all() {
			clean = clean && v.Cache.Stats().Sessions == 0 && len(v.Server.Sessions()) == 0
		}
		if clean || time.Now().After(end) {
			return clean
		}
	}
}

// Directory is a list of offers that tests change at will.
type Directory struct {
	mu      sync.Mutex
	offers  []wire.Offer
	links   []route.Link
	changed chan struct{}
}

// NewDirectory is empty.
func NewDirectory() *Directory { return &Directory{changed: make(chan struct{})} }

func (d *Directory) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	close(d.changed)
	d.changed = make(chan struct{})
}

// Put adds or replaces a peer's offer.
func (d *Directory) Put(o wire.Offer) {
	d.change(func() {
		d.offers = slices.DeleteFunc(d.offers, func(x wire.Offer) bool { return x.Peer == o.Peer })
		d.offers = append(d.offers, o)
	})
}

// Remove forgets a peer's offer.
func (d *Directory) Remove(id p2p.PeerID) {
	d.change(func() {
		d.offers = slices.DeleteFunc(d.offers, func(x wire.Offer) bool { return x.Peer == string(id) })
	})
}

// Link adds what is known of a link.
func (d *Directory) Link(l route.Link) { d.change(func() { d.links = append(d.links, l) }) }

// View implements head.Directory.
func (d *Directory) View(wire.Fingerprint) []wire.Offer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.offers)
}

// Changed implements head.Directory.
func (d *Directory) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// Links implements head.Directory.
func (d *Directory) Links() []route.Link {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.links)
}

// Peer implements head.Directory.
func (d *Directory) Peer(id p2p.PeerID) p2p.Peer { return p2p.Peer{ID: id, Addrs: []string{"mem"}} }

// Drain is Server.Drain with a limit, for a peer that leaves in order.
func (v *Volunteer) Drain(d time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return v.Server.Drain(ctx)
}
