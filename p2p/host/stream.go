package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/multiformats/go-multistream"

	"github.com/meshnet/meshnet/p2p"
)

// hintTTL is how long addresses that came with a call are kept for later ones.
const hintTTL = 10 * time.Minute

// stream is a libp2p stream as the rest of the program sees one.
type stream struct {
	network.Stream
	remote p2p.PeerID
}

func newStream(s network.Stream) *stream {
	return &stream{Stream: s, remote: p2p.PeerID(s.Conn().RemotePeer().String())}
}

func (s *stream) Remote() p2p.PeerID { return s.remote }
func (s *stream) Limited() bool      { return s.Conn().Stat().Limited }

// RemoteIP is for p2p.Origin. Over a relay the address is the relay's, and says
// nothing of the peer.
func (s *stream) RemoteIP() netip.Addr {
	a := s.Conn().RemoteMultiaddr()
	if _, relayed := value(a, ma.P_CIRCUIT); relayed {
		return netip.Addr{}
	}
	ip, err := manet.ToIP(a)
	if err != nil {
		return netip.Addr{}
	}
	addr, _ := netip.AddrFromSlice(ip)
	return addr
}

// Read names the refusals that libp2p reports late: the first write carries the
// protocol's name, so the answer to it comes with the first read.
func (s *stream) Read(b []byte) (int, error) {
	n, err := s.Stream.Read(b)
	if err != nil && refused(err) {
		err = fmt.Errorf("%w: %w", p2p.ErrRefused, err)
	}
	return n, err
}

func refused(err error) bool {
	var reset *network.StreamError
	return errors.As(err, new(multistream.ErrNotSupported[protocol.ID])) ||
		errors.Is(err, network.ErrResourceLimitExceeded) ||
		errors.As(err, &reset) && reset.Remote && reset.ErrorCode == network.StreamResourceLimitExceeded
}

// Open opens a stream, dialling if need be, for at most 5 s. A peer that is reached
// over a limited relay circuit only gets 5 s to become reachable directly for
// activations; other protocols run over the circuit.
func (n *Host) Open(ctx context.Context, to p2p.Peer, proto string) (p2p.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	id, err := n.introduce(to)
	if err != nil {
		return nil, err
	}
	if proto != p2p.ActivationProtocol {
		ctx = network.WithAllowLimitedConn(ctx, proto)
	}
	s, err := n.h.NewStream(ctx, id, protocol.ID(proto))
	if err != nil {
		return nil, fmt.Errorf("opening %s to %s: %w", proto, to.ID.Short(), n.explain(ctx, id, err))
	}
	return newStream(s), nil
}

// Dial connects to a peer and opens no stream.
func (n *Host) Dial(ctx context.Context, to p2p.Peer) error {
	id, err := n.introduce(to)
	if err != nil {
		return err
	}
	if err := n.connect(ctx, peer.AddrInfo{ID: id}); err != nil {
		return fmt.Errorf("connecting to %s: %w", to.ID.Short(), n.explain(ctx, id, err))
	}
	return nil
}

// introduce notes a peer's addresses and says who it is in libp2p's terms.
func (n *Host) introduce(to p2p.Peer) (peer.ID, error) {
	id, err := peer.Decode(string(to.ID))
	if err != nil {
		return "", fmt.Errorf("%w: %q is not a peer id: %w", p2p.ErrUnknown, to.ID, err)
	}
	if id == n.h.ID() {
		return "", fmt.Errorf("%w: %s is this node itself", p2p.ErrUnreachable, to.ID.Short())
	}
	if n.h.Network().Connectedness(id) == network.Connected {
		return id, nil
	}
	var addrs []ma.Multiaddr
	for _, text := range to.Addrs {
		a, err := ma.NewMultiaddr(text)
		if err != nil {
			continue // hints come from strangers
		}
		transport, last := peer.SplitAddr(a)
		if transport != nil && (last == "" || last == id) {
			addrs = append(addrs, transport)
		}
	}
	n.h.Peerstore().AddAddrs(id, addrs, hintTTL)
	n.unblock(id)
	return id, nil
}

// unblock forgets libp2p's own back-off, which grows to minutes: who calls has
// reasons, and a back-off of its own.
func (n *Host) unblock(id peer.ID) {
	if n.swarm != nil {
		n.swarm.Backoff().Clear(id)
	}
}

// explain puts libp2p's error under one of p2p's.
func (n *Host) explain(ctx context.Context, id peer.ID, err error) error {
	kind := p2p.ErrUnreachable
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case refused(err):
		kind = p2p.ErrRefused
	case errors.Is(err, swarm.ErrNoAddresses) || strings.Contains(err.Error(), swarm.ErrNoAddresses.Error()):
		kind = p2p.ErrUnknown
	case n.h.Network().Connectedness(id) == network.Limited:
		return fmt.Errorf("%w: only over a limited relay circuit: %w", kind, err)
	case n.h.Network().Connectedness(id) == network.Connected && !errors.Is(err, context.DeadlineExceeded):
		kind = p2p.ErrRefused // reached, and no stream
	}
	return fmt.Errorf("%w: %w", kind, err)
}
