package host

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"sync"
	"time"

	golog "github.com/ipfs/go-log/v2"
	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/gologshim"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/x/rate"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/meshnet/meshnet/p2p"
)

const (
	connsLow, connsHigh = 400, 600 // the connection manager trims from high to low
	connsPerIP          = 64       // a home or a lab behind one address; the default of 8 refuses the ninth node
	streamsPerPeer      = 512      // of one of our protocols, from one peer
	streamsTotal        = 4096
	quicLag             = 300 * time.Millisecond
)

// lan are networks whose hosts don't count against limits by address: a mesh is
// often one rack, and then all of it shares a prefix.
var lan = []string{
	"127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10",
	"::1/128", "fc00::/7", "fe80::/10",
}

// resources are libp2p's limits with ours: more streams of our protocols, more
// connections from one address, none of it counted on a LAN.
func resources() (network.ResourceManager, error) {
	limits := rcmgr.DefaultLimits
	libp2p.SetDefaultServiceLimits(&limits)
	ours := rcmgr.BaseLimit{
		Streams: streamsTotal, StreamsInbound: streamsTotal, StreamsOutbound: streamsTotal, Memory: 512 << 20,
	}
	one := rcmgr.BaseLimit{
		Streams: 2 * streamsPerPeer, StreamsInbound: streamsPerPeer, StreamsOutbound: streamsPerPeer, Memory: 256 << 20,
	}
	for _, id := range []protocol.ID{p2p.ActivationProtocol, p2p.HeartbeatProtocol, p2p.OfferProtocol} {
		limits.AddProtocolLimit(id, ours, rcmgr.BaseLimitIncrease{})
		limits.AddProtocolPeerLimit(id, one, rcmgr.BaseLimitIncrease{})
	}
	// A small machine's share by memory would be 64 connections, fewer than the
	// connection manager keeps.
	limits.SystemBaseLimit.Conns = 2 * connsHigh
	limits.SystemBaseLimit.ConnsInbound = connsHigh
	limits.SystemBaseLimit.ConnsOutbound = connsHigh
	limits.SystemBaseLimit.Streams = 2 * streamsTotal
	limits.SystemBaseLimit.StreamsInbound = streamsTotal
	limits.SystemBaseLimit.StreamsOutbound = streamsTotal
	limits.PeerBaseLimit.Streams = 2 * streamsPerPeer
	limits.PeerBaseLimit.StreamsInbound = streamsPerPeer
	limits.PeerBaseLimit.StreamsOutbound = streamsPerPeer
	// A long-lived stream reserves its window at once: hundreds of sessions from one
	// head must fit.
	limits.PeerBaseLimit.Memory = 256 << 20

	var v4, v6 []rcmgr.NetworkPrefixLimit
	var free []rate.PrefixLimit
	for _, s := range lan {
		p := netip.MustParsePrefix(s)
		l := rcmgr.NetworkPrefixLimit{Network: p, ConnCount: math.MaxInt}
		if p.Addr().Is4() {
			v4 = append(v4, l)
		} else {
			v6 = append(v6, l)
		}
		free = append(free, rate.PrefixLimit{Prefix: p})
	}
	m, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(limits.AutoScale()),
		rcmgr.WithNetworkPrefixLimit(v4, v6),
		rcmgr.WithLimitPerSubnet(
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 32, ConnCount: connsPerIP}},
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 56, ConnCount: connsPerIP}, {PrefixLength: 48, ConnCount: 4 * connsPerIP}}),
		rcmgr.WithConnRateLimiters(&rate.Limiter{
			NetworkPrefixLimits: free,
			SubnetRateLimiter: rate.SubnetLimiter{
				IPv4SubnetLimits: []rate.SubnetLimit{{PrefixLength: 32, Limit: rate.Limit{RPS: 5, Burst: 100}}},
				IPv6SubnetLimits: []rate.SubnetLimit{{PrefixLength: 56, Limit: rate.Limit{RPS: 5, Burst: 100}}},
				GracePeriod:      time.Minute,
			},
		}))
	if err != nil {
		return nil, fmt.Errorf("resource manager: %w", err)
	}
	return m, nil
}

// muxer is yamux for our traffic: a first prefill over a long path must not wait for
// the window to grow, and a record with its header fits into one of Noise.
func muxer() *yamux.Transport {
	t := *yamux.DefaultTransport
	t.InitialStreamWindowSize = 4 << 20
	t.MaxMessageSize = 65000
	t.KeepAliveInterval = 5 * time.Second
	t.ConnectionWriteTimeout = 5 * time.Second
	return &t
}

// rank dials TCP first on private addresses, where it has half the latency and a
// third of the cost of QUIC; elsewhere as libp2p does, where QUIC gets through NATs.
func rank(addrs []ma.Multiaddr) []network.AddrDelay {
	var tcp, quic, rest []ma.Multiaddr
	for _, a := range addrs {
		_, isTCP := value(a, ma.P_TCP)
		_, isRelay := value(a, ma.P_CIRCUIT)
		switch {
		case isRelay || !manet.IsPrivateAddr(a):
			rest = append(rest, a)
		case isTCP:
			tcp = append(tcp, a)
		default:
			quic = append(quic, a)
		}
	}
	out := swarm.DefaultDialRanker(rest)
	out = append(out, swarm.DefaultDialRanker(tcp)...)
	lag := time.Duration(0)
	if len(tcp) > 0 {
		lag = quicLag
	}
	for _, d := range swarm.DefaultDialRanker(quic) {
		d.Delay += lag
		out = append(out, d)
	}
	return out
}

// quiet keeps the log lines of libp2p and of what it uses off the terminal, unless
// GOLOG_LOG_LEVEL asks for them. The loggers are global in libp2p, so this happens once a process.
var quiet = sync.OnceFunc(func() {
	if os.Getenv("GOLOG_LOG_LEVEL") != "" {
		return
	}
	os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") // advice for root, printed on every start
	if log.Writer() == os.Stderr {                              // zeroconf speaks through package log wherever an address family is missing
		log.SetOutput(without{os.Stderr, []byte("[zeroconf]")})
	}
	gologshim.SetDefaultHandler(slog.DiscardHandler)
	golog.SetAllLoggers(golog.LevelFatal)
})

// without passes on writes that don't contain a word.
type without struct {
	to   io.Writer
	word []byte
}

func (w without) Write(p []byte) (int, error) {
	if bytes.Contains(p, w.word) {
		return len(p), nil
	}
	return w.to.Write(p)
}
