package node

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/host"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/shard"
	"github.com/meshnet/meshnet/shard/chat"
)

// HeadConfig is a head peer: it asks and serves nothing.
type HeadConfig struct {
	Config
	Weights *shard.Model
	Threads int
	Cache   wire.CacheType // of its sessions; 0: wire.DefaultCacheType
	Standby bool           // a second peer is kept ready for every hop, else for those that leave
	Verify  float64        // percent of the spans that another holder checks
	Runner  chat.Runner
}

// HeadPeer is a running head: node/head over a mesh.
type HeadPeer struct {
	*head.Head
	node    *Node
	weights *shard.Head
	mesh    *head.Mesh
	control *control
}

// OpenHead starts a head peer. Close ends it.
func OpenHead(ctx context.Context, cfg HeadConfig) (_ *HeadPeer, err error) {
	info := cfg.Weights.Info()
	cfg.Model.Layers = info.Layers
	h := &HeadPeer{}
	if h.node, err = open(ctx, cfg.Config); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	if h.weights, err = cfg.Weights.LoadHead(shard.Options{Threads: cfg.Threads}); err != nil {
		return nil, err
	}
	var seed uint64
	for _, b := range []byte(h.node.Self()) {
		seed = seed*131 + uint64(b)
	}
	standby := head.StandbyLeaving
	if cfg.Standby {
		standby = head.StandbyAll
	}
	h.mesh, err = head.NewMesh(head.MeshConfig{
		Client: hop.NewClient(h.node.host, h.node.hearts, h.node.log), Directory: directory{h.node}, Embed: h.weights, Head: h.node.Self(), Model: cfg.Model.Fingerprint,
		Layers: info.Layers, Hidden: info.Hidden, Cache: cfg.Cache, Standby: standby, Seed: seed, Logger: h.node.log,
		Verify: head.Verify{Percent: cfg.Verify, Signed: host.Verify, Compute: (&arbiter{weights: cfg.Weights, threads: cfg.Threads}).compute},
	})
	if err != nil {
		return nil, err
	}
	h.node.registry.MustRegister(h.mesh)
	if h.Head, err = head.ForModel(cfg.Weights, h.weights, cfg.Runner, h.mesh.Backend, h.mesh.Stateless); err != nil {
		return nil, err
	}
	h.control, err = h.node.serveControl(h.Status, controls{})
	return h, err
}

// arbiter computes layers on the head's machine where two peers come to different
// rows, one dispute at a time: the layers are loaded for it.
type arbiter struct {
	mu      sync.Mutex
	weights *shard.Model
	threads int
}

// arbiterChunk bounds the engine's scratch memory; the bits do not depend on it.
const arbiterChunk = 512

func (a *arbiter) compute(ctx context.Context, start, end int, t wire.CacheType, x []float32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, err := a.weights.LoadRange(start, end, shard.Options{Threads: a.threads})
	if err != nil {
		return err
	}
	defer e.Close()
	st, err := e.NewState(start, end, shard.CacheType(t))
	if err != nil {
		return err
	}
	defer st.Close()
	for n := e.Hidden(); len(x) > 0; {
		rows := min(arbiterChunk, len(x)/n)
		if err := e.Forward(ctx, []shard.Item{{State: st, Rows: rows, X: x[:rows*n]}}); err != nil {
			return err
		}
		x = x[rows*n:]
	}
	return nil
}

// Close ends the head and returns when all its goroutines have ended. Requests
// must have ended before.
func (h *HeadPeer) Close() error {
	h.control.close()
	if h.weights != nil {
		h.weights.Close()
	}
	return h.node.close()
}

// Node is the peer on the network.
func (h *HeadPeer) Node() *Node { return h.node }

// Plan is the route that a chat would take now.
func (h *HeadPeer) Plan() (route.Route, error) { return h.mesh.Plan() }

// WaitRoute waits until some route stands, or ctx ends; then it says what is missing.
func (h *HeadPeer) WaitRoute(ctx context.Context) (route.Route, error) {
	return h.node.waitRoute(ctx, h.mesh.Plan)
}

// Route is the present route of a session in progress; zero: of any.
func (h *HeadPeer) Route(session wire.SessionID) []route.Hop {
	for _, l := range h.mesh.Live() {
		if l.Session == session || session == (wire.SessionID{}) {
			return l.Route.Hops
		}
	}
	return nil
}

// Settle gives a head that has just started the moment that it needs to hear of
// others, so that its first words are not that nobody is there.
func (h *HeadPeer) Settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstLook-time.Since(h.node.started))
	defer cancel()
	h.WaitRoute(ctx)
}

const firstLook = 2 * time.Second

// Status is the head's view of the mesh.
func (h *HeadPeer) Status() Status {
	s := h.node.status("head", "online")
	s.Route = NewRouteStatus(h.mesh.Plan())
	for _, l := range h.mesh.Live() {
		for _, hp := range l.Route.Hops {
			s.Sessions = append(s.Sessions, SessionStatus{
				Session: hex.EncodeToString(l.Session[:4]), Head: string(h.node.Self()), Peer: string(hp.Peer.ID), Start: hp.Start, End: hp.End, Epoch: int(l.Epoch),
			})
		}
		for _, sb := range l.Standbys {
			s.Sessions = append(s.Sessions, SessionStatus{
				Session: hex.EncodeToString(l.Session[:4]), Head: string(h.node.Self()), Peer: sb.Peer, Start: sb.Start, End: sb.End, Epoch: int(l.Epoch),
				Rows: uint64(sb.Rows), Standby: true, Behind: sb.Behind,
			})
		}
	}
	found, checks := h.mesh.Findings()
	s.Checks = &CheckStatus{Agreed: checks.Agreed, Differed: checks.Differed, Skipped: checks.Skipped}
	for _, f := range found {
		s.Checks.Findings = append(s.Checks.Findings, FindingStatus{
			Session: hex.EncodeToString(f.Session[:4]), Peers: f.Peers, Sure: f.Sure, Start: f.Start, End: f.End, Rows: f.Rows, At: f.At, What: f.Text,
		})
	}
	for _, r := range h.mesh.Recent() {
		rep := head.NewRecoveryReport(r)
		rep.Session = hex.EncodeToString(r.Session[:4])
		s.Recoveries = append(s.Recoveries, rep)
	}
	return s
}

// directory is a Node as a head's mesh wants it.
type directory struct{ n *Node }

func (d directory) View(m wire.Fingerprint) []wire.Offer { return d.n.discover.View(m) }
func (d directory) Changed() <-chan struct{}             { return d.n.discover.Changed() }
func (d directory) Links() []route.Link                  { return d.n.discover.Links() }

func (d directory) Peer(id p2p.PeerID) p2p.Peer {
	p := p2p.Peer{ID: id}
	if o, ok := d.n.offers.Table().Get(id); ok {
		p.Addrs = o.Addrs
	}
	return p
}

// waitRoute asks plan again at every change of the view.
func (n *Node) waitRoute(ctx context.Context, plan func() (route.Route, error)) (route.Route, error) {
	for {
		changed := n.discover.Changed()
		r, err := plan()
		var gap *route.GapError
		if err == nil || !errors.As(err, &gap) {
			return r, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return r, err
		}
	}
}

// Visitor is a node that only looks: it serves nothing, asks nothing and has an
// identity for this run only.
type Visitor struct{ *Node }

// OpenVisitor starts one. cfg.Model may be zero: then it looks at all models.
func OpenVisitor(ctx context.Context, cfg Config) (*Visitor, error) {
	cfg.Passing = true
	n, err := open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Visitor{n}, nil
}

// Close ends it.
func (v *Visitor) Close() error { return v.close() }

// Look waits for the first news, a few seconds at most, and tells what it sees.
func (v *Visitor) Look(ctx context.Context) Status {
	v.settle(ctx)
	s := v.status("visitor", "passing")
	if v.cfg.Model.Layers > 0 {
		s.Route = NewRouteStatus(v.plan())
	}
	return s
}

// Plan is the route that a head here would take, once one stands or ctx ends.
func (v *Visitor) Plan(ctx context.Context) (route.Route, error) {
	if v.cfg.Model.Layers == 0 {
		return route.Route{}, fmt.Errorf("plan a route: the number of layers of %q is not known", v.cfg.Model.Name)
	}
	if r, err := v.waitRoute(ctx, v.plan); err != nil {
		return r, err
	}
	v.settle(ctx) // more peers and round trips than the first that make a route
	return v.plan()
}

func (v *Visitor) plan() (route.Route, error) {
	return route.Plan(route.Query{
		Layers: v.cfg.Model.Layers, Model: v.cfg.Model.Fingerprint, Offers: v.discover.View(v.cfg.Model.Fingerprint), Links: v.discover.Links(), Head: v.Self(),
	})
}
