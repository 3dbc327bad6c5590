package host

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/host/autorelay"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/net/connmgr"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	relayproto "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	tls "github.com/libp2p/go-libp2p/p2p/security/tls"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	ma "github.com/multiformats/go-multiaddr"
)

func (n *Host) options(addrs []ma.Multiaddr) ([]libp2p.Option, error) {
	res, err := resources()
	if err != nil {
		return nil, err
	}
	conns, err := connmgr.NewConnManager(connsLow, connsHigh, connmgr.WithGracePeriod(time.Minute))
	if err != nil {
		return nil, fmt.Errorf("connection manager: %w", err)
	}
	opts := []libp2p.Option{
		libp2p.Identity(n.key),
		libp2p.UserAgent("meshnet"),
		libp2p.ListenAddrs(addrs...),
		libp2p.Security(tls.ID, tls.New),
		libp2p.Security(noise.ID, noise.New),
		libp2p.Muxer(yamux.ID, muxer()),
		libp2p.Transport(tcp.NewTCPTransport, n.tcpOptions()...),
		libp2p.ResourceManager(res),
		libp2p.ConnectionManager(conns),
		libp2p.SwarmOpts(swarm.WithDialRanker(rank)),
		libp2p.WithDialTimeout(dialTimeout),
	}
	if !n.cfg.NoQUIC {
		opts = append(opts, libp2p.Transport(quic.NewTransport))
	}
	if len(n.cfg.announce) > 0 {
		opts = append(opts, libp2p.DisableIdentifyAddressDiscovery(),
			libp2p.AddrsFactory(func([]ma.Multiaddr) []ma.Multiaddr { return n.cfg.announce }))
	}
	if n.cfg.Registerer == nil {
		opts = append(opts, libp2p.DisableMetrics())
	} else {
		opts = append(opts, libp2p.PrometheusRegisterer(n.cfg.Registerer))
	}
	if n.cfg.Relay {
		r := relay.DefaultResources()
		r.Limit = nil // a circuit with a limit would be marked as one, and never carry activations
		r.BufferSize = 64 << 10
		everyAddr := relay.WithReservationAddressFilter(func(ma.Multiaddr) bool { return true }) // a LAN's relay too
		// Whoever sets up a relay says that it is reachable; libp2p would wait for proof.
		opts = append(opts, libp2p.EnableRelayService(relay.WithResources(r), everyAddr), libp2p.ForceReachabilityPublic())
	}
	if n.cfg.NoNAT {
		return opts, nil
	}
	opts = append(opts, libp2p.NATPortMap(), libp2p.EnableNATService(), libp2p.EnableAutoNATv2(),
		libp2p.EnableHolePunching(), libp2p.EnableAutoRelayWithPeerSource(n.relays, autorelay.WithMinInterval(time.Minute)))
	return opts, nil
}

func (n *Host) tcpOptions() []any {
	dial := n.cfg.Dial
	if dial == nil && n.cfg.DialFrom.IsValid() {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: n.cfg.DialFrom.AsSlice()}}
		dial = d.DialContext
	}
	if dial == nil {
		return nil
	}
	return []any{tcp.WithDialerForAddr(func(ma.Multiaddr) (tcp.ContextDialer, error) { return dialer(dial), nil })}
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

func (d dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return d(ctx, network, address)
}

// relays names the connected peers that carry traffic for others.
func (n *Host) relays(ctx context.Context, count int) <-chan peer.AddrInfo {
	out := make(chan peer.AddrInfo, count)
	defer close(out)
	n.mu.Lock()
	h := n.h
	n.mu.Unlock()
	if h == nil { // asked while libp2p still starts
		return out
	}
	for _, id := range h.Network().Peers() {
		if p, err := h.Peerstore().SupportsProtocols(id, relayproto.ProtoIDv2Hop); err != nil || len(p) == 0 {
			continue
		}
		select {
		case out <- h.Peerstore().PeerInfo(id):
		default:
			return out
		}
	}
	return out
}
