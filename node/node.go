// Package node wires a daemon: a host on the network, offers, discovery, and
// either a shard that it serves (Run) or a head that asks (OpenHead), with a
// control socket and a status.
//
// Invariant: whatever starts here has ended when Run or Close returns, in the
// reverse order of its start. Start reading at Run.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/host"
	"github.com/meshnet/meshnet/p2p/offer"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Version is the engine's version, as offers and status say it.
const Version = "0.1.0"

// Config is what every node has, whatever it does.
type Config struct {
	Home    string // data directory; the node's own is Home/nodes/Name
	Name    string // names identity and control socket
	OrNext  bool   // if Name is in use, take the next free of Name-2, Name-3, ...
	Passing bool   // no directory at all: an identity for this run, no control socket

	Network  string
	Listen   []string // multiaddrs or host:port
	Announce []string
	Peers    []string // multiaddrs with /p2p/ID
	DialFrom netip.Addr
	NoMDNS   bool
	NoQUIC   bool

	Model  ModelInfo // the model that it is about
	Logger *slog.Logger
}

// ModelInfo identifies a model on the mesh.
type ModelInfo struct {
	Name        string
	Fingerprint wire.Fingerprint
	Layers      int // 0: not known
}

// Node is a peer of a network: it meets others, hears their offers and says its
// own. What it does besides is up to its owner.
type Node struct {
	cfg      Config
	name     string
	dir      string
	started  time.Time
	host     *host.Host
	offers   *offer.Service
	discover *Discovery
	hearts   *hop.Hearts
	registry *prometheus.Registry
	log      *slog.Logger

	stop    context.CancelFunc
	running sync.WaitGroup
}

// ErrIdentityInUse: another process runs under the same name.
var ErrIdentityInUse = host.ErrIdentityInUse

const maxNames = 64 // name, name-2, ... that OrNext tries

// open starts a node. It listens when open returns; peers are met in the background.
func open(ctx context.Context, cfg Config) (_ *Node, err error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Network == "" || cfg.Name == "" && !cfg.Passing {
		return nil, errors.New("node: network and name are needed")
	}
	n := &Node{cfg: cfg, started: time.Now(), log: cfg.Logger, registry: prometheus.NewRegistry()}
	n.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := n.listen(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.host.Close()
		}
	}()
	n.offers, err = offer.New(offer.Config{
		Network: cfg.Network, Signer: n.host, Verify: host.Verify, Streamer: n.host, Mux: n.host,
		Peers: n.host.Connected, Model: cfg.Model.Fingerprint, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("start offers: %w", err)
	}
	n.discover = NewDiscovery(DiscoveryConfig{Network: cfg.Network, Host: n.host, Offers: n.offers, Logger: cfg.Logger})
	if cfg.Model.Layers > 0 {
		n.offers.Table().Expect(cfg.Model.Fingerprint, cfg.Model.Layers)
		n.discover.Seek(cfg.Model.Fingerprint, cfg.Model.Layers)
	}
	n.hearts = hop.NewHearts(n.host, cfg.Logger)
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	n.stop = stop
	n.running.Go(func() { n.offers.Run(run) })
	n.running.Go(func() { n.discover.Run(run) })
	return n, nil
}

// listen takes an identity and starts the host with it.
func (n *Node) listen(ctx context.Context) (err error) {
	cfg := n.cfg
	for i := 1; ; i++ {
		n.name = cfg.Name
		if i > 1 {
			n.name = fmt.Sprintf("%s-%d", cfg.Name, i)
		}
		if !cfg.Passing {
			n.dir = filepath.Join(cfg.Home, "nodes", n.name)
		}
		n.host, err = host.New(ctx, host.Config{
			Dir: n.dir, Network: cfg.Network, Listen: cfg.Listen, Announce: cfg.Announce, Peers: cfg.Peers, DialFrom: cfg.DialFrom,
			NoQUIC: cfg.NoQUIC, NoMDNS: cfg.NoMDNS, Logger: cfg.Logger, Registerer: n.registry,
		})
		if !errors.Is(err, host.ErrIdentityInUse) || !cfg.OrNext || i == maxNames {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("start node %q: %w", n.name, err)
	}
	return nil
}

// close ends what open started.
func (n *Node) close() error {
	n.stop()
	n.running.Wait()
	n.hearts.Close()
	return n.host.Close()
}

// Self is the node's peer id.
func (n *Node) Self() p2p.PeerID { return n.host.Self() }

// Addrs are the node's addresses with its id, for others' --peer.
func (n *Node) Addrs() []string { return n.host.Addrs() }

// Name is the name that the node took.
func (n *Node) Name() string { return n.name }

// Registry holds the node's metrics.
func (n *Node) Registry() *prometheus.Registry { return n.registry }
