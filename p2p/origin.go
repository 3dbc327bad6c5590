package p2p

import "net/netip"

// Origin is the block of addresses that a stream comes from, as large as what one
// customer of a network gets: an IPv4 address, a /64 of IPv6. Keys are free,
// addresses are not, so quotas go by it. Invalid: unknown, as over a relay.
func Origin(s Stream) netip.Prefix {
	placed, ok := s.(interface{ RemoteIP() netip.Addr })
	if !ok {
		return netip.Prefix{}
	}
	ip := placed.RemoteIP().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // of an invalid address: invalid
	return p
}

// shared is the address space of carrier NATs and of most overlay networks.
var shared = netip.MustParsePrefix("100.64.0.0/10")

// Near says that an address is of this machine or of a private network, where a
// whole mesh may sit behind one address, and any address is to be had.
func Near(ip netip.Addr) bool {
	ip = ip.Unmap()
	return ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() || shared.Contains(ip)
}
