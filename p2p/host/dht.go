package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/ipfs/go-cid"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p-kad-dht/records"
	kbucket "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/multiformats/go-multihash"

	"github.com/meshnet/meshnet/p2p"
)

// RecordTTL is how long a node lists a provider that it has not heard of again. The
// storing node enforces it, so all nodes of a network must agree.
const RecordTTL = 15 * time.Minute

// ErrAlone: no other peer of the network is known yet. What was provided is kept
// here; provide it again when a peer has come.
var ErrAlone = errors.New("no other peer of this network is known yet")

func newDHT(h host.Host, p plan, remembered func() []peer.AddrInfo) (*dht.IpfsDHT, error) {
	mode := dht.ModeAutoServer // server until AutoNAT says that nobody reaches us
	if p.NoNAT {
		mode = dht.ModeServer
	}
	return dht.New(h,
		dht.ProtocolPrefix(protocol.ID("/meshnet/"+p.Network)),
		dht.Mode(mode),
		dht.DisableValues(),
		dht.ProviderManagerOpts(
			records.ProvideValidity(RecordTTL), records.ProviderAddrTTL(RecordTTL), records.CleanupInterval(time.Minute)),
		dht.RoutingTableRefreshPeriod(2*time.Minute),
		dht.RoutingTableRefreshQueryTimeout(5*time.Second),
		dht.BootstrapPeersFunc(func() []peer.AddrInfo { return append(remembered(), p.peers...) }),
	)
}

// record is the DHT's name of a key.
func record(key []byte) cid.Cid {
	sum := sha256.Sum256(key)
	mh, err := multihash.Encode(sum[:], multihash.SHA2_256)
	if err != nil {
		panic(err) // a fixed code and length
	}
	return cid.NewCidV1(cid.Raw, mh)
}

// Provide lists the host in the DHT under a key, for RecordTTL. It may take tens of
// seconds where peers have died: give it a context and call it in the background.
func (n *Host) Provide(ctx context.Context, key []byte) error {
	err := n.dht.Provide(ctx, record(key), true)
	if errors.Is(err, kbucket.ErrLookupFailure) {
		return ErrAlone
	}
	if err != nil {
		return fmt.Errorf("providing a key in the DHT: %w", err)
	}
	return nil
}

// Find streams the peers listed under a key, as they are found, in no order, the
// host itself left out. The channel is closed when the look-up is complete or ctx
// ends; read it to the end. What it says is a hint of whom to ask, not the truth.
func (n *Host) Find(ctx context.Context, key []byte) <-chan p2p.Peer {
	out := make(chan p2p.Peer)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(n.ctx, cancel)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		cancel()
		close(out)
		return out
	}
	n.own.Go(func() {
		defer close(out)
		defer cancel()
		defer stop()
		for info := range n.dht.FindProvidersAsync(ctx, record(key), 0) {
			if info.ID == n.h.ID() {
				continue
			}
			p := p2p.Peer{ID: p2p.PeerID(info.ID.String())}
			for _, a := range info.Addrs {
				p.Addrs = append(p.Addrs, a.String())
			}
			select {
			case out <- p:
			case <-ctx.Done():
			}
		}
	})
	return out
}

// TableSize is the number of peers in the DHT's routing table.
func (n *Host) TableSize() int { return n.dht.RoutingTable().Size() }

// serviceName is the mDNS service of a network. DNS allows 15 letters, so the
// network's name is in it as a hash.
func serviceName(network string) string {
	sum := sha256.Sum256([]byte("meshnet " + network))
	return "_mesh-" + hex.EncodeToString(sum[:4]) + "._udp"
}
