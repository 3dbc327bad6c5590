package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/prometheus/client_golang/prometheus"
)

// Config says who the host is and how it meets others. Only Network must be set.
type Config struct {
	// Dir keeps identity.key, lock and peers.json. Empty: an identity for this run
	// only, nothing is remembered.
	Dir string
	// Network is the mesh to be part of. Hosts of different networks never share a
	// DHT and ignore each other's mDNS.
	Network string
	// Listen are multiaddrs (/ip4/0.0.0.0/tcp/4001, /ip4/0.0.0.0/udp/4001/quic-v1) or
	// host:port, which means TCP and, unless NoQUIC, QUIC on one port. Port 0 picks
	// the port of the last run if it is free, else any. Empty: all addresses, port 0.
	Listen []string
	// Announce replaces every address that is told to others.
	Announce []string
	// Peers are multiaddrs with /p2p/ID, dialled until connected, and again when lost.
	Peers []string
	// DialFrom is the source address of TCP connections that we open, if set.
	DialFrom netip.Addr
	// Dial opens TCP connections in place of the usual dialer, if set.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// NoQUIC, NoMDNS and NoNAT switch off QUIC, the search for peers on the LAN, and
	// everything that deals with NATs (port mapping, AutoNAT, hole punching, relays).
	// NoNAT is implied when all listeners are on loopback.
	NoQUIC bool
	NoMDNS bool
	NoNAT  bool
	// Relay offers to carry the traffic of peers behind NATs, without limits a circuit.
	Relay bool

	Logger     *slog.Logger          // nil: silent
	Registerer prometheus.Registerer // nil: no metrics
}

// plan is a Config that was checked.
type plan struct {
	Config
	listen   []listenAddr
	announce []ma.Multiaddr
	peers    []peer.AddrInfo
}

// listenAddr is one listener to open. The default ones may fail one by one (a machine
// without IPv6), those asked for may not. Those of one group share a port number.
type listenAddr struct {
	addr     ma.Multiaddr
	asked    bool
	portless bool // port 0
}

// check lists all faults at once.
func (c Config) check() (plan, error) {
	p := plan{Config: c}
	var faults []error
	if c.Network == "" || len(c.Network) > 64 || strings.ContainsAny(c.Network, "/ \t\n") {
		faults = append(faults, fmt.Errorf("network name %q: must be 1 to 64 characters without slashes and spaces", c.Network))
	}
	specs, asked := c.Listen, true
	if len(specs) == 0 {
		specs, asked = []string{"0.0.0.0:0", "[::]:0"}, false
	}
	for _, s := range specs {
		addrs, err := listenAddrs(s, !c.NoQUIC)
		if err != nil {
			faults = append(faults, err)
		}
		for _, a := range addrs {
			p.listen = append(p.listen, listenAddr{addr: a, asked: asked, portless: portOf(a) == "0"})
		}
	}
	for _, s := range c.Announce {
		a, err := ma.NewMultiaddr(s)
		if err != nil {
			faults = append(faults, fmt.Errorf("address to announce %q: not a multiaddr such as /ip4/192.0.2.7/tcp/4001: %w", s, err))
			continue
		}
		if transport, _ := peer.SplitAddr(a); transport != nil {
			a = transport
		}
		p.announce = append(p.announce, a)
	}
	for _, s := range c.Peers {
		info, err := peer.AddrInfoFromString(s)
		if err != nil {
			faults = append(faults, fmt.Errorf("peer address %q: not a multiaddr such as /ip4/192.0.2.7/tcp/4001/p2p/12D3Koo… (copy the whole line that the other node prints): %w", s, err))
			continue
		}
		p.peers = append(p.peers, *info)
	}
	if c.Logger == nil {
		p.Logger = slog.New(slog.DiscardHandler)
	}
	p.NoNAT = c.NoNAT || p.loopbackOnly()
	return p, errors.Join(faults...)
}

func (p *plan) loopbackOnly() bool {
	for _, l := range p.listen {
		if !manet.IsIPLoopback(l.addr) {
			return false
		}
	}
	return true
}

// listenAddrs reads one listen setting.
func listenAddrs(s string, quic bool) ([]ma.Multiaddr, error) {
	if strings.HasPrefix(s, "/") {
		a, err := ma.NewMultiaddr(s)
		if err != nil {
			return nil, fmt.Errorf("listen address %q: not a multiaddr such as /ip4/0.0.0.0/tcp/4001: %w", s, err)
		}
		_, isTCP := value(a, ma.P_TCP)
		_, isQUIC := value(a, ma.P_QUIC_V1)
		switch {
		case !isTCP && !isQUIC:
			return nil, fmt.Errorf("listen address %q: only /tcp/PORT and /udp/PORT/quic-v1 are spoken", s)
		case isQUIC && !quic:
			return nil, fmt.Errorf("listen address %q: QUIC is switched off", s)
		}
		return []ma.Multiaddr{a}, nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: neither HOST:PORT nor a multiaddr: %w", s, err)
	}
	if host == "" {
		host = "0.0.0.0"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: the host must be an IP address: %w", s, err)
	}
	family := "ip4"
	if ip.Is6() && !ip.Is4In6() {
		family = "ip6"
	}
	texts := []string{fmt.Sprintf("/%s/%s/tcp/%s", family, ip.Unmap(), port)}
	if quic {
		texts = append(texts, fmt.Sprintf("/%s/%s/udp/%s/quic-v1", family, ip.Unmap(), port))
	}
	var out []ma.Multiaddr
	for _, t := range texts {
		a, err := ma.NewMultiaddr(t)
		if err != nil {
			return nil, fmt.Errorf("listen address %q: %w", s, err)
		}
		out = append(out, a)
	}
	return out, nil
}

func value(a ma.Multiaddr, code int) (string, bool) {
	v, err := a.ValueForProtocol(code)
	return v, err == nil
}

func portOf(a ma.Multiaddr) string {
	if v, ok := value(a, ma.P_TCP); ok {
		return v
	}
	v, _ := value(a, ma.P_UDP)
	return v
}

// withPort is a with another port number.
func withPort(a ma.Multiaddr, port string) ma.Multiaddr {
	parts := strings.Split(a.String(), "/")
	for i := 1; i+1 < len(parts); i++ {
		if parts[i] == "tcp" || parts[i] == "udp" {
			parts[i+1] = port
		}
	}
	out, err := ma.NewMultiaddr(strings.Join(parts, "/"))
	if err != nil {
		return a
	}
	return out
}
