package main

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"syscall"

	"github.com/meshnet/meshnet/node"
	"github.com/meshnet/meshnet/p2p/wire"
)

// netFlags are how a node meets others.
type netFlags struct {
	Network  string   `help:"Name of the mesh; nodes of other meshes are ignored." default:"main" env:"MESHNET_NETWORK" placeholder:"NAME" group:"Network"`
	Name     string   `help:"Name of this node's identity and socket under HOME/nodes." placeholder:"NAME" group:"Network"`
	Peer     []string `help:"Address of a node to begin with, ending in /p2p/ID (repeatable)." env:"MESHNET_PEERS" placeholder:"MULTIADDR" group:"Network"`
	Listen   []string `help:"Address to listen on: a multiaddr or HOST:PORT, port 0 picks one (repeatable; default: all, any port)." placeholder:"ADDR" group:"Network"`
	Announce []string `help:"Address to tell others instead of the own ones (repeatable)." placeholder:"MULTIADDR" group:"Network"`
	DialFrom string   `help:"Local IP address of outgoing TCP connections." placeholder:"IP" group:"Network"`
	MDNS     bool     `help:"Look for nodes on the LAN." name:"mdns" negatable:"" default:"true" group:"Network"`

	ExitWithParent bool `help:"End when standard input ends." hidden:""`

	QUIC bool `help:"Use QUIC besides TCP." name:"quic" negatable:"" default:"true" group:"Network"`
}

// config is a node's, without a model and a role.
func (f *netFlags) config(a *app, name string) (node.Config, error) {
	c := node.Config{
		Home: a.home, Name: f.Name, Network: f.Network, Listen: f.Listen, Announce: f.Announce, Peers: f.Peer,
		NoMDNS: !f.MDNS, NoQUIC: !f.QUIC, Logger: a.log,
	}
	if c.Name == "" {
		c.Name = name
	}
	if f.DialFrom != "" {
		ip, err := netip.ParseAddr(f.DialFrom)
		if err != nil {
			return c, usage("--dial-from %q: not an IP address", f.DialFrom)
		}
		c.DialFrom = ip
	}
	return c, nil
}

// cacheFlag is how the hops keep what a session of this head leaves behind.
type cacheFlag struct {
	CacheType string `help:"How the peers keep the keys and values of this head's sessions: f32, f16 or q8 (half and a quarter of the memory of f32)." enum:"f32,f16,q8" default:"${cache_type}" env:"MESHNET_CACHE_TYPE" placeholder:"TYPE"`
}

// cache is the type; kong lets only known names through.
func (f *cacheFlag) cache() wire.CacheType {
	t, err := wire.ParseCacheType(f.CacheType)
	if err != nil {
		return wire.DefaultCacheType
	}
	return t
}

// standbyFlag says whether second peers are kept ready.
type standbyFlag struct {
	Standby bool `help:"Keep another peer ready for every hop, where one holds the same layers and has room: a loss costs a few rows then, and the mesh computes everything twice." negatable:"" env:"MESHNET_STANDBY"`
}

// verifyFlag says how much of what the peers compute is checked.
type verifyFlag struct {
	Verify string `help:"Percent of what the peers compute, in spans of 32 tokens, that another peer is asked to compute too; auto: 2 on the mesh main, which is open to strangers, else 0." default:"auto" env:"MESHNET_VERIFY" placeholder:"PERCENT"`
}

// autoVerify is --verify between strangers.
const autoVerify = 2

// percent is what it comes to on a network.
func (f *verifyFlag) percent(network string) (float64, error) {
	if f.Verify == "auto" {
		if network == "main" {
			return autoVerify, nil
		}
		return 0, nil
	}
	p, err := strconv.ParseFloat(strings.TrimSuffix(f.Verify, "%"), 64)
	if err != nil || !(p >= 0 && p <= 100) {
		return 0, usage("--verify %s: a percentage from 0 to 100, or auto", f.Verify)
	}
	return p, nil
}

// tie makes the verb end, as by SIGTERM, when standard input does: a demo that is
// killed takes its nodes with it.
func (f *netFlags) tie(a *app) {
	if !f.ExitWithParent {
		return
	}
	ctx, cancel := context.WithCancelCause(a.ctx)
	a.ctx = ctx
	go func() { // ends with the process: a read of standard input can't be stopped
		io.Copy(io.Discard, a.stdin)
		cancel(interrupted{syscall.SIGTERM})
	}()
}

// openHead starts a head peer for a model.
func (a *app) openHead(w *weights, f *netFlags, cache wire.CacheType, standby bool, verify verifyFlag) (*node.HeadPeer, error) {
	percent, err := verify.percent(f.Network)
	if err != nil {
		return nil, err
	}
	c, err := f.config(a, "head")
	if err != nil {
		return nil, err
	}
	c.OrNext = f.Name == ""
	c.Model = w.info()
	c.Peers = append(c.Peers, a.neighbours(f)...)
	run, err := runner()
	if err != nil {
		return nil, err
	}
	h, err := node.OpenHead(a.ctx, node.HeadConfig{Config: c, Weights: w.model, Threads: a.threads, Cache: cache, Standby: standby, Verify: percent, Runner: run})
	return h, startError(err)
}

// neighbours are nodes of the same mesh that run on this machine under the same
// data directory: nobody should have to look for those. An address that was
// given, or --no-mdns, says that the person knows better.
func (a *app) neighbours(f *netFlags) []string {
	if len(f.Peer) > 0 || !f.MDNS {
		return nil
	}
	var addrs []string
	for _, s := range node.Local(a.ctx, a.home) {
		if s.Node.Network == f.Network {
			addrs = append(addrs, s.Node.Addrs...)
		}
	}
	return addrs
}

// startError gives what may go wrong at a start its exit code; the words are the host's.
func startError(err error) error {
	if errors.Is(err, node.ErrIdentityInUse) || errors.Is(err, syscall.EADDRINUSE) {
		return fail(exitInUse, err)
	}
	return err
}
