package host

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// pick fixes the addresses to listen on, with port numbers. last is the port of the
// last run, tried first. again: another try may find other ports.
//
// libp2p's sockets may share a port with another process (SO_REUSEPORT), which would
// then get half of our connections. So we look before whether a port is free.
func (p *plan) pick(last string) (addrs []ma.Multiaddr, again bool, err error) {
	port := last
	for _, l := range p.listen {
		if !l.portless {
			continue
		}
		again = true
		if port == "" || port == "0" {
			if port, err = freePort(l.addr); err != nil {
				if !l.asked {
					err = nil
					continue // no such address family here
				}
				return nil, again, explainListen(l.addr, err)
			}
		}
	}
	for _, l := range p.listen {
		a := l.addr
		if l.portless {
			a = withPort(a, port)
		}
		if err := probe(a); err != nil {
			if !l.asked && !errors.Is(err, syscall.EADDRINUSE) {
				continue
			}
			return nil, again, explainListen(a, err)
		}
		addrs = append(addrs, a)
	}
	if len(addrs) == 0 {
		return nil, again, errors.New("no address to listen on: give one with --listen")
	}
	return addrs, again, nil
}

func freePort(a ma.Multiaddr) (string, error) {
	_, hostport, err := manet.DialArgs(a)
	if err != nil {
		return "", err
	}
	ip, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// probe says why an address can't be listened on.
func probe(a ma.Multiaddr) error {
	if _, quic := value(a, ma.P_QUIC_V1); quic {
		a, _ = ma.SplitLast(a)
	}
	network, address, err := manet.DialArgs(a)
	if err != nil {
		return err
	}
	if _, udp := value(a, ma.P_UDP); udp {
		c, err := net.ListenPacket(network, address)
		if err != nil {
			return err
		}
		return c.Close()
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	return l.Close()
}

func explainListen(a ma.Multiaddr, err error) error {
	advice := "choose another address with --listen"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		advice = "the port is in use by another program: choose another with --listen, or port 0 for any free port"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		advice = "this machine has no such address: choose another with --listen"
	case errors.Is(err, syscall.EACCES):
		advice = "ports below 1024 need privileges: choose a higher one with --listen"
	}
	return fmt.Errorf("can't listen on %s: %s: %w", a, advice, err)
}
