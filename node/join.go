package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/node/machine"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/shard"
	"github.com/meshnet/meshnet/shard/selftest"
)

// JoinConfig is a volunteer.
type JoinConfig struct {
	Config
	Weights *shard.Model
	Auto    bool  // choose the layers that the mesh lacks most
	Start   int   // first layer, without Auto
	End     int   // half-open
	Memory  int64 // bytes of weights that Auto may load; 0: half of what the machine has free
	Threads int
	Cache   cache.Config

	// Pause says when the node takes no work, as Machine tells; the zero values: never, this machine.
	Pause   machine.Rules
	Machine machine.Machine
	Looks   <-chan time.Time // when to look at Machine; nil: every machine.LookEvery

	// SelfTest says whether this machine computes the bits that all others do; nil: selftest.Run. On its error Run ends before the
	// node is on the network.
	SelfTest func(context.Context) error

	// For the person who waits; each may be nil.
	Chosen   func(start, end int, bytes int64)
	Progress func(done, total int64)
	Serving  func(Status)
	Draining func()
	Paused   func(why string) // "": it serves again
}

const (
	drainTime    = 30 * time.Second
	refreshOffer = 10 * time.Second
	settleTime   = 4 * time.Second // for the first offers to be heard, before Auto chooses
	placeRounds  = 4
	settleQuiet  = 700 * time.Millisecond // without news, after the first
)

// volunteer is a running JoinConfig.
type volunteer struct {
	cfg     JoinConfig
	node    *Node
	engine  *shard.Engine
	cache   *cache.Store
	server  *hop.Server
	serving atomic.Pointer[hop.Server] // nil while loading
	speed   speed
	shard   ShardStatus  // fixed before serving is set
	state   atomic.Int32 // wire.OfferState
	pause   *pause
}

// Run joins the mesh and serves layers until ctx ends or the node is told to
// drain; then it leaves: withdraws its offer, waits for the sessions it serves
// (30 s at most), and ends. It returns when every goroutine it started has ended.
func Run(ctx context.Context, cfg JoinConfig) (err error) {
	ctx, drain := context.WithCancel(ctx)
	defer drain()
	info := cfg.Weights.Info()
	if !cfg.Auto && (cfg.Start < 0 || cfg.Start >= cfg.End || cfg.End > info.Layers) {
		return fmt.Errorf("layers %d:%d: %s has the layers 0 to %d, so give a range within 0:%d", cfg.Start, cfg.End, cfg.Model.Name, info.Layers-1, info.Layers)
	}
	cfg.Model.Layers = info.Layers
	if err := cfg.selfTest(ctx); err != nil {
		return fmt.Errorf("this machine cannot join: %w", err)
	}
	v := &volunteer{cfg: cfg, pause: newPause()}
	v.state.Store(int32(wire.Joining))

	// On the network, not yet serving.
	if v.node, err = open(ctx, cfg.Config); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.node.close()) }()
	v.node.host.Handle(p2p.ActivationProtocol, v.whenServing((*hop.Server).Handle))
	v.node.host.Handle(p2p.HeartbeatProtocol, v.whenServing((*hop.Server).HandleHeartbeat))
	if v.cache, err = cache.New(cfg.Cache); err != nil {
		return err
	}
	defer v.cache.Close()
	v.node.registry.MustRegister(v.cache)
	ctl, err := v.node.serveControl(v.status, controls{evict: v.evict, drain: drain, pause: v.pause.ask})
	if err != nil {
		return err
	}
	defer ctl.close()

	// The layers.
	if err := v.choose(ctx); err != nil {
		return err
	}
	if err := v.load(ctx); err != nil {
		return err
	}
	defer v.engine.Close()
	v.server, err = hop.NewServer(hop.ServerConfig{
		Engine: HopEngine(v.engine), Cache: v.cache, Streamer: v.node.host, Hearts: v.node.hearts, Model: cfg.Model.Fingerprint,
		Start: v.cfg.Start, End: v.cfg.End, Layers: info.Layers, Hidden: info.Hidden, MaxLen: min(info.Context, head.MaxSessionLen), Sign: v.node.host.Sign, Logger: v.node.log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.server.Close()) }()
	v.node.registry.MustRegister(v.server)

	// Serving.
	v.serving.Store(v.server)
	v.state.Store(int32(wire.Online))
	if err := v.offer(); err != nil {
		return err
	}
	v.node.discover.Serve(cfg.Model.Fingerprint, v.cfg.Start, v.cfg.End)
	if cfg.Serving != nil {
		cfg.Serving(v.status())
	}
	v.node.log.Info("serving", "model", cfg.Model.Name, "start", v.cfg.Start, "end", v.cfg.End, "decode", v.speed.decode)
	looking := v.look(ctx)
	v.keepOffer(ctx)
	<-looking
	return v.leave(context.WithoutCancel(ctx))
}

func (c *JoinConfig) selfTest(ctx context.Context) error {
	if c.SelfTest != nil {
		return c.SelfTest(ctx)
	}
	_, err := selftest.Run(ctx, selftest.Config{Threads: c.Threads})
	return err
}

// whenServing passes streams to the server once there is one.
func (v *volunteer) whenServing(handle func(*hop.Server, context.Context, p2p.Stream)) p2p.Handler {
	return func(ctx context.Context, s p2p.Stream) {
		server := v.serving.Load()
		if server == nil {
			s.Reset()
			return
		}
		handle(server, ctx, s)
	}
}

// choose fixes the range, by the mesh's needs if asked to, and tells the mesh
// that this node is joining with it.
func (v *volunteer) choose(ctx context.Context) error {
	if v.cfg.Auto {
		if err := v.place(ctx); err != nil {
			return err
		}
	} else if err := v.offer(); err != nil {
		return err
	}
	var bytes int64
	for _, b := range v.cfg.Weights.Info().LayerBytes[v.cfg.Start:v.cfg.End] {
		bytes += b
	}
	if v.cfg.Chosen != nil {
		v.cfg.Chosen(v.cfg.Start, v.cfg.End, bytes)
	}
	return nil
}

// place chooses a range, offers it as joining, and looks again: of those that
// join at the same moment the one with the lowest id keeps its choice, so that
// they do not all take the same layers.
func (v *volunteer) place(ctx context.Context) error {
	info := v.cfg.Weights.Info()
	memory := v.cfg.Memory
	if memory == 0 {
		memory = freeMemory() / 2
	}
	self := string(v.node.Self())
	v.node.settle(ctx)
	for range placeRounds {
		others := slices.DeleteFunc(v.node.Offers(v.cfg.Model.Fingerprint), func(o wire.Offer) bool {
			return o.Peer == self || o.State == wire.Joining && o.Peer > self
		})
		start, end, err := route.Place(info.Layers, info.LayerBytes, memory, others)
		if err != nil {
			return fmt.Errorf("choose layers for %d MB of memory: %w", memory>>20, err)
		}
		if start == v.cfg.Start && end == v.cfg.End {
			return nil
		}
		v.cfg.Start, v.cfg.End = start, end
		if err := v.offer(); err != nil {
			return err
		}
		select {
		case <-time.After(settleQuiet):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// settle waits until the view of the mesh has stopped growing, or a few seconds.
func (n *Node) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for {
		changed := n.offers.Table().Changed()
		var quiet <-chan time.Time
		if len(n.offers.Table().All()) > 0 {
			quiet = time.After(settleQuiet)
		}
		select {
		case <-changed:
		case <-quiet:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (v *volunteer) load(ctx context.Context) (err error) {
	v.engine, err = v.cfg.Weights.LoadRange(v.cfg.Start, v.cfg.End, shard.Options{Threads: v.cfg.Threads, Progress: v.cfg.Progress})
	if err != nil {
		return fmt.Errorf("load layers %d:%d of %s: %w", v.cfg.Start, v.cfg.End, v.cfg.Model.Name, err)
	}
	if v.speed, err = measure(ctx, v.engine); err != nil {
		v.engine.Close()
		return err
	}
	v.shard = ShardStatus{v.cfg.Start, v.cfg.End, v.engine.Bytes(), v.engine.CPU(), v.speed.decode.Microseconds(), v.speed.prefill.Microseconds()}
	return nil
}

// offer tells the mesh what this node serves now.
func (v *volunteer) offer() error {
	st := v.cache.Stats()
	o := wire.Offer{
		Model: v.cfg.Model.Fingerprint, Layers: uint32(v.cfg.Model.Layers), Start: uint32(v.cfg.Start), End: uint32(v.cfg.End),
		State:        wire.OfferState(v.state.Load()),
		DecodeMicros: uint32(v.speed.decode.Microseconds()), PrefillMicros: uint32(v.speed.prefill.Microseconds()),
		CacheFree: uint64(max(0, st.MaxBytes-st.Bytes)), CacheBytes: uint64(st.MaxBytes), CacheTypes: cacheTypes(),
		Sessions: uint32(st.Sessions), MaxSessions: uint32(st.MaxSessions), TTLSeconds: uint32(st.TTL.Seconds()),
		Addrs: hostAddrs(v.node.Addrs()), Version: Version, RelayOnly: v.node.host.RelayOnly(), RTT: v.node.discover.Neighbours(v.cfg.Model.Fingerprint),
	}
	if err := v.node.offers.SetOwn(o); err != nil {
		return fmt.Errorf("make an offer: %w", err)
	}
	return nil
}

// keepOffer renews the offer with today's figures and pauses when there is a reason, until ctx ends.
func (v *volunteer) keepOffer(ctx context.Context) {
	t := time.NewTicker(refreshOffer)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.pause.changed:
			v.follow()
		case <-t.C:
		}
		if err := v.offer(); err != nil {
			v.node.log.Warn("the offer was not renewed", "err", err)
		}
	}
}

// leave is the drain of design/protocol.md: nobody who chats waits for us.
func (v *volunteer) leave(ctx context.Context) error {
	v.pause.end()
	v.state.Store(int32(wire.Draining))
	v.node.discover.Serve(v.cfg.Model.Fingerprint, 0, 0)
	if v.cfg.Draining != nil {
		v.cfg.Draining()
	}
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	if err := v.node.offers.Withdraw(ctx); err != nil {
		v.node.log.Info("not everybody heard that this node leaves", "err", err)
	}
	if err := v.server.Drain(ctx); err != nil {
		v.node.log.Warn("left with sessions open", "err", err)
	}
	return nil
}

func (v *volunteer) evict(session string) (int, error) {
	server := v.serving.Load()
	if server == nil {
		return 0, errors.New("still loading")
	}
	return server.Evict(session)
}

func (v *volunteer) status() Status {
	state := wire.OfferState(v.state.Load())
	s := v.node.status("volunteer", state.String())
	if why := v.pause.why(); why != "" {
		s.Node.State, s.Node.Paused = "paused", why
	}
	s.Cache = cacheStatus(v.cache.Stats())
	if server := v.serving.Load(); server != nil {
		s.Sessions = sessionStatus(string(v.node.Self()), server.Sessions())
		s.Shard = &v.shard
	}
	return s
}

// Offers are the valid offers of a model (zero: of all), this node's own among them.
func (n *Node) Offers(model wire.Fingerprint) []wire.Offer {
	all := n.offers.Table().All()
	if own, ok := n.offers.Own(); ok {
		all = append(all, own)
	}
	return slices.DeleteFunc(all, func(o wire.Offer) bool {
		return model != wire.Fingerprint{} && (o.Model != model || o.State == wire.Draining)
	})
}

// hostAddrs are at most eight addresses without the peer id, as offers carry them.
func hostAddrs(full []string) []string {
	var out []string
	for _, a := range full {
		out = append(out, a[:max(strings.LastIndex(a, "/p2p/"), 0)])
	}
	return out[:min(len(out), 8)]
}

// freeMemory is what the system says programs may still take; 2 GiB if it says nothing.
func freeMemory() int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err == nil {
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
				if kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64); err == nil {
					return kb << 10
				}
			}
		}
	}
	return 2 << 30
}
