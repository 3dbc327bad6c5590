package host

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/meshnet/p2p"
)

// descriptors are those of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		all, err = os.ReadDir("/dev/fd")
	}
	if err != nil {
		t.Fatalf("this test counts descriptors: %v", err)
	}
	return len(all)
}

// TestFloodOfConnections: connections that say nothing take a bounded number of
// descriptors, and when they are gone everything is as before.
func TestFloodOfConnections(t *testing.T) {
	h := start(t, func(c *Config) { c.NoQUIC = true })
	h.Handle(p2p.OfferProtocol, echo)
	addr := strings.Split(h.Addrs()[0], "/")
	before := descriptors(t)
	const flood = 1500
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range flood {
		c, err := net.Dial("tcp", net.JoinHostPort(addr[2], addr[4]))
		if err != nil {
			t.Fatalf("connection %d: %v", len(conns), err)
		}
		conns = append(conns, c)
	}
	most := 0
	eventually(t, "few descriptors", func() bool {
		n := descriptors(t) - before - flood // what the host's side holds
		most = max(most, n)
		return n <= connsHigh
	})
	t.Logf("%d connections that say nothing: at most %d descriptors", flood, most)
	for _, c := range conns {
		c.Close()
	}
	conns = nil
	eventually(t, "as before", func() bool { return descriptors(t) <= before+10 })
	other := start(t, func(c *Config) { c.NoQUIC = true })
	eventually(t, "an honest peer gets in", func() bool { return call(t.Context(), other, self(h), p2p.OfferProtocol) == nil })
}

// TestFloodOfStreams: one peer's streams are bounded, and others have theirs.
func TestFloodOfStreams(t *testing.T) {
	h, bad, good := start(t, nil), start(t, nil), start(t, nil)
	hold := func(ctx context.Context, s p2p.Stream) { <-ctx.Done(); s.Reset() }
	h.Handle(p2p.ActivationProtocol, hold)
	h.Handle(p2p.OfferProtocol, echo)
	held := 0
	for range 2 * streamsPerPeer {
		s, err := bad.Open(t.Context(), self(h), p2p.ActivationProtocol)
		if err != nil {
			break // our own side has the same bound
		}
		defer s.Reset()
		_ = s.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := s.Write([]byte("x")); err == nil {
			held++
		}
	}
	if held > streamsPerPeer {
		t.Errorf("%d streams of one peer, at most %d", held, streamsPerPeer)
	}
	if err := call(t.Context(), good, self(h), p2p.OfferProtocol); err != nil {
		t.Errorf("another peer: %v", err)
	}
}
