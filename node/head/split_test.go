package head_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/route/hop/hoptest"
	"github.com/meshnet/meshnet/shard"
	"github.com/meshnet/meshnet/shard/tiny"
)

// layers is a shard's engine as the protocol wants it.
type layers struct{ *shard.Engine }

func (e layers) CacheTypes() wire.CacheTypes { return wire.AllCacheTypes }

func (e layers) NewState(start, end int, t wire.CacheType) (cache.State, error) {
	return e.Engine.NewState(start, end, shard.CacheType(t))
}

func (e layers) StateBytes(start, end int, t wire.CacheType, maxLen int) int64 {
	return e.Engine.StateBytes(start, end, shard.CacheType(t), maxLen)
}

func (e layers) Forward(ctx context.Context, batch []hop.Work) error {
	items := make([]shard.Item, len(batch))
	for i, w := range batch {
		items[i] = shard.Item{State: w.State.(*shard.State), Rows: w.Rows, X: w.X}
	}
	return e.Engine.Forward(ctx, items)
}

// TestEverySplit: a real (tiny) model cut in two at every layer answers, over the
// protocol, with the same bits as in one piece, also after evictions.
func TestEverySplit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tiny.WriteFile(path, 1); err != nil {
		t.Fatal(err)
	}
	m, err := shard.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	info, o := m.Info(), shard.Options{Threads: 2}
	h, err := m.LoadHead(o)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	load := func(start, end int) *shard.Engine {
		e, err := m.LoadRange(start, end, o)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	whole := load(0, info.Layers)
	defer whole.Close()
	run := func(b head.Backend, between func(step int)) (out [][]float32) {
		defer b.Close()
		if err := b.Begin(context.Background(), session(1), 1200, nil); err != nil {
			t.Fatal(err)
		}
		var ids []int32
		for i := range 700 { // more than one frame
			ids = append(ids, int32(i*7%info.Vocab))
		}
		past := 0
		for i := range 8 {
			rows, err := b.Forward(context.Background(), ids, past, 3)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, slices.Clone(rows))
			past = len(ids)
			ids = append(ids, int32(i+1), int32(i+2), int32(i+3))
			between(i)
		}
		return out
	}
	want := run(head.NewLocal(layers{whole}, h, info.Layers, info.Hidden, wire.DefaultCacheType, false).Backend(), func(int) {})
	for cut := 1; cut < info.Layers; cut++ {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			n := p2ptest.New()
			dir := hoptest.NewDirectory()
			var servers []*hop.Server
			for i, r := range [][2]int{{0, cut}, {cut, info.Layers}} {
				id := p2p.PeerID(fmt.Sprint("peer", i))
				e := load(r[0], r[1])
				defer e.Close()
				store, err := cache.New(cache.Config{TTL: time.Minute, MaxSessions: 4, MaxBytes: 1 << 30})
				if err != nil {
					t.Fatal(err)
				}
				defer store.Close()
				peer := n.Peer(id)
				hearts := hop.NewHearts(peer, nil)
				defer hearts.Close()
				s, err := hop.NewServer(hop.ServerConfig{
					Engine: layers{e}, Cache: store, Streamer: peer, Hearts: hearts, Model: hoptest.Model,
					Start: r[0], End: r[1], Layers: info.Layers, Hidden: info.Hidden, MaxLen: 4096,
				})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				servers = append(servers, s)
				peer.Handle(p2p.ActivationProtocol, s.Handle)
				peer.Handle(p2p.HeartbeatProtocol, s.HandleHeartbeat)
				dir.Put(wire.Offer{Model: hoptest.Model, Layers: uint32(info.Layers), Peer: string(id), Start: uint32(r[0]), End: uint32(r[1]), State: wire.Online, CacheTypes: wire.AllCacheTypes})
			}
			defer n.Close()
			hearts := hop.NewHearts(n.Peer("head"), nil)
			defer hearts.Close()
			mesh, err := head.NewMesh(head.MeshConfig{
				Client: hop.NewClient(n.Peer("head"), hearts, nil), Directory: dir, Embed: h, Head: "head",
				Model: hoptest.Model, Layers: info.Layers, Hidden: info.Hidden,
			})
			if err != nil {
				t.Fatal(err)
			}
			b := mesh.Backend()
			got := run(b, func(step int) {
				if step == 3 || step == 5 {
					servers[step%2].Evict("all")
				}
			})
			for i := range want {
				if !slices.Equal(got[i], want[i]) {
					t.Fatalf("step %d differs from the model in one piece", i)
				}
			}
		})
	}
}

// TestStandbyRealModel: a standby of a real (tiny) model that was filled while its hop
// served goes on with the same bits, whatever the type of cache.
func TestStandbyRealModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tiny.WriteFile(path, 1); err != nil {
		t.Fatal(err)
	}
	m, err := shard.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	info := m.Info()
	h, err := m.LoadHead(shard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var engines [3]*shard.Engine // whole, first half, second half
	for i, r := range [][2]int{{0, info.Layers}, {0, info.Layers / 2}, {info.Layers / 2, info.Layers}} {
		if engines[i], err = m.LoadRange(r[0], r[1], shard.Options{}); err != nil {
			t.Fatal(err)
		}
		defer engines[i].Close()
	}
	for _, kept := range []wire.CacheType{wire.CacheF32, wire.CacheQ8} {
		for killed := range 2 {
			t.Run(fmt.Sprintf("%v, hop %d", kept, killed), func(t *testing.T) {
				n := p2ptest.New()
				defer n.Close()
				dir := hoptest.NewDirectory()
				for i, id := range []p2p.PeerID{"a", "b", "a2", "b2"} {
					store, err := cache.New(cache.Config{TTL: time.Minute, MaxSessions: 4, MaxBytes: 1 << 30})
					if err != nil {
						t.Fatal(err)
					}
					defer store.Close()
					hearts := hop.NewHearts(n.Peer(id), nil)
					defer hearts.Close()
					start, end := i%2*info.Layers/2, (i%2+1)*info.Layers/2
					s, err := hop.NewServer(hop.ServerConfig{
						Engine: layers{engines[1+i%2]}, Cache: store, Streamer: n.Peer(id), Hearts: hearts, Model: hoptest.Model,
						Start: start, End: end, Layers: info.Layers, Hidden: info.Hidden, MaxLen: 4096,
					})
					if err != nil {
						t.Fatal(err)
					}
					defer s.Close()
					n.Peer(id).Handle(p2p.ActivationProtocol, s.Handle)
					n.Peer(id).Handle(p2p.HeartbeatProtocol, s.HandleHeartbeat)
					dir.Put(wire.Offer{
						Model: hoptest.Model, Layers: uint32(info.Layers), Peer: string(id), Start: uint32(start), End: uint32(end), State: wire.Online,
						CacheTypes: wire.AllCacheTypes, DecodeMicros: uint32(1000 * (1 + i/2)),
					})
				}
				hearts := hop.NewHearts(n.Peer("head"), nil)
				defer hearts.Close()
				mesh, err := head.NewMesh(head.MeshConfig{
					Client: hop.NewClient(n.Peer("head"), hearts, nil), Directory: dir, Embed: h, Head: "head", Standby: head.StandbyAll,
					Model: hoptest.Model, Layers: info.Layers, Hidden: info.Hidden, Cache: kept,
				})
				if err != nil {
					t.Fatal(err)
				}
				b, plain := mesh.Backend(), head.NewLocal(layers{engines[0]}, h, info.Layers, info.Hidden, kept, false).Backend()
				defer b.Close()
				defer plain.Close()
				for _, x := range []head.Backend{b, plain} {
					if err := x.Begin(context.Background(), session(1), 1200, nil); err != nil {
						t.Fatal(err)
					}
				}
				var ids []int32
				for i := range 300 {
					ids = append(ids, int32(i*7%info.Vocab))
				}
				past := 0
				step := func() {
					t.Helper()
					got, err := b.Forward(context.Background(), ids, past, 1)
					if err != nil {
						t.Fatal(err)
					}
					if want, err := plain.Forward(context.Background(), ids, past, 1); err != nil || !slices.Equal(got, want) {
						t.Fatalf("after %d tokens the rows differ from the model in one piece (%v)", len(ids), err)
					}
					past = len(ids)
					ids = append(ids, int32(past%info.Vocab))
				}
				step()
				step()
				for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
					st := b.Stats().Standbys
					if len(st) == 2 && st[0].Behind == 0 && st[1].Behind == 0 {
						break
					}
					if time.Now().After(end) {
						t.Fatalf("standbys %+v", st)
					}
				}
				n.Kill([]p2p.PeerID{"a", "b"}[killed])
				for range 10 {
					step()
				}
				st := b.Stats()
				// How few rows are computed again is asserted where no clock runs (TestStandby).
				if len(st.Recoveries) == 0 || st.Route[killed].Peer != []string{"a2", "b2"}[killed] {
					t.Errorf("route %+v, recoveries %+v", st.Route, st.Recoveries)
				}
			})
		}
	}
}
