package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/node/machine"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/shard"
	"github.com/meshnet/meshnet/shard/selftest"
	"github.com/meshnet/meshnet/shard/tiny"
	"go.uber.org/goleak"
)

func TestCoverage(t *testing.T) {
	o := func(start, end uint32, state wire.OfferState) wire.Offer {
		return wire.Offer{Start: start, End: end, State: state}
	}
	for name, c := range map[string]struct {
		offers []wire.Offer
		want   string
	}{
		"nobody":              {nil, "[{0 8 0}] [[0 8]]"},
		"one for all":         {[]wire.Offer{o(0, 8, wire.Online)}, "[{0 8 1}] []"},
		"overlap and a hole":  {[]wire.Offer{o(0, 4, wire.Online), o(2, 6, wire.Online)}, "[{0 2 1} {2 4 2} {4 6 1} {6 8 0}] [[6 8]]"},
		"joining, leaving":    {[]wire.Offer{o(0, 8, wire.Joining), o(0, 8, wire.Draining)}, "[{0 8 0}] [[0 8]]"},
		"longer than a model": {[]wire.Offer{o(4, 800, wire.Online)}, "[{0 4 0} {4 8 1}] [[0 4]]"},
	} {
		spans, holes := coverage(8, c.offers)
		if got := fmt.Sprint(spans, holes); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// mesh is volunteers and what they have in common.
type mesh struct {
	t     *testing.T
	home  string
	model *shard.Model
	info  ModelInfo
	first string
}

func newMesh(t *testing.T) *mesh {
	t.Helper()
	home := t.TempDir()
	path := filepath.Join(home, "tiny.gguf")
	if err := tiny.WriteFile(path, 1); err != nil {
		t.Fatal(err)
	}
	m, err := shard.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return &mesh{t: t, home: home, model: m, info: ModelInfo{Name: "tiny", Fingerprint: wire.Fingerprint{1}, Layers: m.Info().Layers}}
}

func (m *mesh) config(name string) Config {
	c := Config{Home: m.home, Name: name, Network: "test", Listen: []string{"127.0.0.1:0"}, NoMDNS: true, NoQUIC: true, Model: m.info}
	if m.first != "" {
		c.Peers = []string{m.first}
	}
	return c
}

// join runs a volunteer until the returned stop is called, which waits for Run.
func (m *mesh) join(name string, change func(*JoinConfig)) (Status, func() error) {
	m.t.Helper()
	serving := make(chan Status, 1)
	cfg := JoinConfig{Config: m.config(name), Weights: m.model, Threads: 1, Serving: func(s Status) { serving <- s }}
	change(&cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg) }()
	var once error
	stopped := false
	stop := func() error {
		cancel()
		if !stopped {
			stopped, once = true, <-ended
		}
		return once
	}
	m.t.Cleanup(func() { stop() })
	select {
	case s := <-serving:
		if m.first == "" {
			m.first = s.Node.Addrs[0]
		}
		return s, stop
	case err := <-ended:
		m.t.Fatalf("%s: %v", name, err)
	case <-time.After(20 * time.Second):
		m.t.Fatalf("%s does not serve", name)
	}
	panic("unreachable")
}

// A machine that computes other bits than its mesh is never seen on it.
func TestOtherBitsDoNotJoin(t *testing.T) {
	m := newMesh(t)
	cfg := JoinConfig{Config: m.config("a"), Weights: m.model, End: 8, SelfTest: func(context.Context) error {
		return &selftest.DiffersError{Result: selftest.Result{Hash: "abcd", CPU: "odd"}}
	}}
	err := Run(t.Context(), cfg)
	var differs *selftest.DiffersError
	if !errors.As(err, &differs) || !strings.Contains(err.Error(), "cannot join") || !strings.Contains(err.Error(), "abcd with its odd kernels") {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(m.home, "nodes")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it took an identity: %v", err)
	}
}

// TestMesh is a small life: two volunteers, the second choosing what is missing,
// a head that asks through both, a look from outside, an eviction, a leaver.
func TestMesh(t *testing.T) {
	m := newMesh(t)
	a, stopA := m.join("a", func(c *JoinConfig) { c.Start, c.End = 0, 5 })
	if a.Shard.DecodeMicros <= 0 || a.Shard.PrefillMicros <= 0 || a.Cache.MaxSessions != 16 || a.Cache.TTLSeconds != 600 {
		t.Errorf("a: %+v %+v", a.Shard, a.Cache)
	}
	var layer int64
	for _, b := range m.model.Info().LayerBytes {
		layer = max(layer, b)
	}
	b, stopB := m.join("b", func(c *JoinConfig) { c.Auto, c.Memory = true, 3*layer })
	if b.Shard.Start != 5 || b.Shard.End != 8 {
		t.Errorf("b chose %d:%d, the mesh lacks 5:8", b.Shard.Start, b.Shard.End)
	}

	cfg := m.config("head")
	h, err := OpenHead(t.Context(), HeadConfig{Config: cfg, Weights: m.model, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			h.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := h.WaitRoute(ctx)
	if err != nil || len(r.Hops) != 2 {
		t.Fatalf("route %s, %v", r, err)
	}

	// A piece in the middle: the caches of both are in use; then they are lost.
	var misses int
	evicted := false
	res, err := h.Generate(ctx, head.Request{Text: "Hello", MaxTokens: 12}, func(d head.Delta) error {
		if d.Text != "" && !evicted {
			evicted = true
			for _, s := range Local(ctx, m.home) {
				if s.Node.Role == "volunteer" && (s.Cache.Sessions != 1 || len(s.Sessions) != 1) {
					t.Errorf("%s has %d cached sessions, %d open", s.Node.Name, s.Cache.Sessions, len(s.Sessions))
				}
			}
			var out struct{ Evicted int }
			if err := call(ctx, filepath.Join(m.home, "nodes", "a", "control.sock"), "POST", "/evict", strings.NewReader(`{"session":"all"}`), &out); err != nil || out.Evicted != 1 {
				t.Errorf("evicted %d, %v", out.Evicted, err)
			}
		}
		return nil
	})
	misses = res.Stats.Misses
	if err != nil || len(res.IDs) != 12 || misses != 1 || len(res.Stats.Recoveries) != 1 {
		t.Fatalf("%d tokens, %d misses, %+v, %v", len(res.IDs), misses, res.Stats.Recoveries, err)
	}
	again, err := h.Generate(ctx, head.Request{Text: "Hello", MaxTokens: 12, Stateless: true}, nil)
	if err != nil || !slices.Equal(again.IDs, res.IDs) {
		t.Errorf("stateless %v, with an eviction %v, %v", again.IDs, res.IDs, err)
	}

	v, err := OpenVisitor(t.Context(), func() Config { c := m.config("x"); c.Passing = true; return c }())
	if err != nil {
		t.Fatal(err)
	}
	s := v.Look(ctx)
	if len(s.Peers) != 2 || len(s.Holes) != 0 || s.Route == nil || len(s.Route.Hops) != 2 {
		t.Errorf("from outside: %+v", s)
	}
	if err := v.Close(); err != nil {
		t.Errorf("close the visitor: %v", err)
	}

	// b leaves: the head hears of it, and says what is missing.
	if err := stopB(); err != nil {
		t.Errorf("b left with %v", err)
	}
	for {
		changed := h.node.discover.Changed()
		if _, err := h.Plan(); err != nil {
			var gap *route.GapError
			if !errors.As(err, &gap) || gap.First != 5 {
				t.Errorf("after b left: %v", err)
			}
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("the head never heard that b left")
		}
	}
	if holes := h.Status().Holes; len(holes) != 1 || holes[0] != [2]int{5, 8} {
		t.Errorf("holes %v", holes)
	}
	closed = true
	if err := h.Close(); err != nil {
		t.Errorf("close the head: %v", err)
	}
	if err := stopA(); err != nil {
		t.Errorf("a left with %v", err)
	}
	if left := Local(t.Context(), m.home); len(left) != 0 {
		t.Errorf("sockets left: %+v", left)
	}
}

// TestStart: what a start can trip over is one clear error.
func TestStart(t *testing.T) {
	m := newMesh(t)
	_, stop := m.join("a", func(c *JoinConfig) { c.Start, c.End = 0, 8 })
	run := func(change func(*JoinConfig)) error {
		cfg := JoinConfig{Config: m.config("b"), Weights: m.model, Threads: 1, End: 8}
		change(&cfg)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return Run(ctx, cfg)
	}
	if err := run(func(c *JoinConfig) { c.Name = "a" }); !errors.Is(err, ErrIdentityInUse) {
		t.Errorf("the same identity: %v", err)
	}
	if err := run(func(c *JoinConfig) { c.Start, c.End = 3, 9 }); err == nil || !strings.Contains(err.Error(), "3:9") {
		t.Errorf("layers that the model has not: %v", err)
	}
	if err := run(func(c *JoinConfig) { c.Auto, c.Memory = true, 10 }); err == nil {
		t.Error("no room for a layer: no error")
	}
	if err := run(func(c *JoinConfig) { c.Cache.MaxSessions = -1 }); err == nil || !strings.Contains(err.Error(), "MaxSessions") {
		t.Errorf("bad cache settings: %v", err)
	}
	if err := run(func(c *JoinConfig) { c.Network = "" }); err == nil {
		t.Error("no network: no error")
	}
	// A head takes the next free name.
	cfg := m.config("a")
	cfg.OrNext = true
	h, err := OpenHead(t.Context(), HeadConfig{Config: cfg, Weights: m.model, Threads: 1})
	if err != nil || h.Node().Name() != "a-2" {
		t.Fatalf("a head beside it: %v", err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	// Told to drain over its socket, a volunteer ends by itself.
	var out struct{ Draining bool }
	if err := call(t.Context(), filepath.Join(m.home, "nodes", "a", "control.sock"), "POST", "/drain", nil, &out); err != nil || !out.Draining {
		t.Errorf("drain: %+v, %v", out, err)
	}
	if err := stop(); err != nil {
		t.Errorf("drained with %v", err)
	}
}

// TestMain: Run and Close return only when all that they started has ended.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// TestTogether: volunteers that join at the same moment share the layers.
func TestTogether(t *testing.T) {
	m := newMesh(t)
	m.join("first", func(c *JoinConfig) { c.Start, c.End = 0, 2 })
	var layer int64
	for _, b := range m.model.Info().LayerBytes {
		layer = max(layer, b)
	}
	var joining sync.WaitGroup
	got := make([]Status, 2)
	for i := range got {
		joining.Go(func() {
			got[i], _ = m.join(fmt.Sprint("auto", i), func(c *JoinConfig) { c.Auto, c.Memory = true, 3*layer })
		})
	}
	joining.Wait()
	slices.SortFunc(got, func(a, b Status) int { return a.Shard.Start - b.Shard.Start })
	if got[0].Shard.Start != 2 || got[0].Shard.End != 5 || got[1].Shard.Start != 5 || got[1].Shard.End != 8 {
		t.Errorf("they took %d:%d and %d:%d; 2:8 was missing", got[0].Shard.Start, got[0].Shard.End, got[1].Shard.Start, got[1].Shard.End)
	}
}

// TestPause: a node whose machine is on battery drains, is seen to, and comes back; so does one that was asked to.
func TestPause(t *testing.T) {
	root := t.TempDir()
	plug := filepath.Join(root, "sys/class/power_supply/AC")
	if err := os.MkdirAll(plug, 0o755); err != nil {
		t.Fatal(err)
	}
	power := func(online string) {
		for name, text := range map[string]string{"type": "Mains", "online": online} {
			if err := os.WriteFile(filepath.Join(plug, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		battery := filepath.Join(filepath.Dir(plug), "BAT0")
		if err := os.MkdirAll(battery, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(battery, "type"), []byte("Battery"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	power("1")
	m := newMesh(t)
	looks := make(chan time.Time)
	paused := make(chan string, 1)
	s, _ := m.join("a", func(c *JoinConfig) {
		c.Start, c.End = 0, 8
		c.Pause, c.Machine, c.Looks = machine.Rules{Battery: true}, machine.At(root), looks
		c.Paused = func(why string) { paused <- why }
	})
	m.join("b", func(c *JoinConfig) { c.Start, c.End = 0, 8 })
	socket := filepath.Join(m.home, "nodes", "a", "control.sock")
	ask := func(what string) {
		var out any
		if err := call(t.Context(), socket, "POST", what, nil, &out); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Unix(1000, 0)
	look := func() { // twice, a minute apart: what holds then is believed
		for range 2 {
			looks <- at
			at = at.Add(time.Minute)
		}
	}
	for _, step := range []struct {
		what       string
		do         func()
		why, state string
		seen       string
	}{
		{"unplugged", func() { power("0"); look() }, "on battery", "paused", "draining"},
		{"plugged in", func() { power("1"); look() }, "", "online", "online"},
		{"asked", func() { ask("/pause") }, "as asked", "paused", "draining"},
		{"asked back", func() { ask("/resume") }, "", "online", "online"},
	} {
		step.do()
		select {
		case why := <-paused:
			if why != step.why {
				t.Errorf("%s: %q, want %q", step.what, why, step.why)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the node does nothing", step.what)
		}
		deadline := time.Now().Add(20 * time.Second)
		for {
			var own, other Status
			err := errors.Join(call(t.Context(), socket, "GET", "/status", nil, &own),
				call(t.Context(), filepath.Join(m.home, "nodes", "b", "control.sock"), "GET", "/status", nil, &other))
			i := slices.IndexFunc(other.Peers, func(p PeerStatus) bool { return p.Peer == s.Node.Peer })
			if err == nil && own.Node.State == step.state && own.Node.Paused == step.why && i >= 0 && other.Peers[i].State == step.seen {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v; state %q (%q), others see %+v", step.what, err, own.Node.State, own.Node.Paused, other.Peers)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// TestControl: the socket works under a path that is too long for one, refuses
// nonsense, and leaves nothing.
func TestControl(t *testing.T) {
	m := newMesh(t)
	m.home = filepath.Join(m.home, strings.Repeat("long", 30))
	s, stop := m.join("a", func(c *JoinConfig) { c.Start, c.End = 0, 8 })
	socket := filepath.Join(m.home, "nodes", "a", "control.sock")
	found := Local(t.Context(), m.home)
	if len(found) != 1 || found[0].Node.Peer != s.Node.Peer || found[0].Node.State != "online" {
		t.Errorf("found %+v", found)
	}
	for _, body := range []string{``, `{`, `{"session":""}`, `{"session":"xyz"}`, `{"session":7}`, strings.Repeat("x", 5000)} {
		var out any
		if err := call(t.Context(), socket, "POST", "/evict", strings.NewReader(body), &out); err == nil {
			t.Errorf("evict %.20q: %v", body, out)
		}
	}
	real, err := os.Readlink(socket)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(real)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{socket, filepath.Dir(real)} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}
