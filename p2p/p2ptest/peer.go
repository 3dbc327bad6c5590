package p2ptest

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/meshnet/meshnet/p2p"
)

// Peer is one peer's door to the network.
type Peer struct {
	net      *Network
	id       p2p.PeerID
	ip       netip.Addr // set before it opens streams
	ctx      context.Context
	cancel   context.CancelFunc
	handlers map[string]p2p.Handler
	dead     bool
	frozen   bool
}

var (
	_ p2p.Streamer = (*Peer)(nil)
	_ p2p.Mux      = (*Peer)(nil)
)

// Self is the peer's name.
func (p *Peer) Self() p2p.PeerID { return p.id }

// Place gives the peer an address that its streams come from. Do it first.
func (p *Peer) Place(ip netip.Addr) *Peer {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	p.ip = ip
	return p
}

// Handle registers or, with a nil handler, removes the handler of a protocol.
func (p *Peer) Handle(protocol string, h p2p.Handler) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if h == nil {
		delete(p.handlers, protocol)
		return
	}
	p.handlers[protocol] = h
}

// Open opens a stream as p2p.Streamer says. It takes one round trip.
func (p *Peer) Open(ctx context.Context, to p2p.Peer, protocol string) (p2p.Stream, error) {
	fail := func(err error) (p2p.Stream, error) {
		return nil, fmt.Errorf("open %s to %s: %w", protocol, to.ID, err)
	}
	fault := p.net.openFault(route{p.id, to.ID}, protocol)
	if fault != nil && fault.On != nil {
		fault.On(p.net, Sent{From: p.id, To: to.ID, Protocol: protocol})
	}
	if fault != nil && fault.Then != nil {
		fault.Then(p.net)
	}
	if err := p.roundTrip(ctx, to, fault); err != nil {
		return fail(err)
	}
	n := p.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := p.reach(to); err != nil { // the link may have changed meanwhile
		return fail(err)
	}
	remote := n.peers[to.ID]
	h := remote.handlers[protocol]
	if h == nil || fault != nil && fault.Do == Refuse {
		return fail(p2p.ErrRefused)
	}
	s := n.newPair(p, remote, protocol)
	n.count(p.id, to.ID).Streams++
	n.wg.Go(func() { h(remote.ctx, &s.b) })
	return &s.a, nil
}

// reach says why no stream to a peer can be opened at all.
func (p *Peer) reach(to p2p.Peer) error {
	n := p.net
	remote := n.peers[to.ID]
	switch {
	case remote == nil && len(to.Addrs) == 0:
		return p2p.ErrUnknown
	case remote == nil || remote.dead || p.dead || n.closed || remote == p || n.link(p.id, to.ID).cut:
		return p2p.ErrUnreachable
	}
	return nil
}

// roundTrip waits until the link and both peers let a round trip through.
func (p *Peer) roundTrip(ctx context.Context, to p2p.Peer, fault *Fault) error {
	var arrive time.Time
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		p.net.mu.Lock()
		err := p.reach(to)
		if err == nil && fault != nil && fault.Do == ResetBefore {
			err = p2p.ErrUnreachable
		}
		if err != nil {
			p.net.mu.Unlock()
			return err
		}
		link, changed, now := p.net.link(p.id, to.ID), p.net.changed, time.Now()
		if arrive.IsZero() {
			arrive = now.Add(2 * link.latency)
			if fault != nil {
				arrive = arrive.Add(fault.Delay)
			}
		}
		stuck := link.hole || p.frozen || p.net.peers[to.ID].frozen || fault != nil && fault.Do == Drop
		p.net.mu.Unlock()
		if !stuck && !now.Before(arrive) {
			return nil
		}
		if stuck {
			arrive = time.Time{}
		}
		wait(ctx, changed, arrive)
	}
}

// wait returns when ctx or changed is done or, if it is set, at a time.
func wait(ctx context.Context, changed <-chan struct{}, at time.Time) {
	var timer <-chan time.Time
	if !at.IsZero() {
		t := time.NewTimer(time.Until(at))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-ctx.Done():
	case <-changed:
	case <-timer:
	}
}
