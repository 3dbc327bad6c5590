package host

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/meshnet/p2p"
)

// All restart with nothing but their directories, and meet again.
func TestRememberedPeers(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	var addr []string
	for i := range 2 {
		h, err := New(t.Context(), Config{Network: "test", Dir: dirs[i], Listen: []string{"127.0.0.1:0"}, Peers: addr, NoMDNS: true})
		if err != nil {
			t.Fatal(err)
		}
		h.Handle(p2p.OfferProtocol, echo)
		defer h.Close()
		if i == 0 {
			addr = h.Addrs()[:1]
			continue
		}
		eventually(t, "the other is remembered", func() bool { return len(h.known.infos()) == 1 })
		h.Close()
	}
	// the first one restarts too, on the port of its last run
	first, err := New(t.Context(), Config{Network: "test", Dir: t.TempDir(), Listen: []string{"127.0.0.1:0"}, NoMDNS: true})
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	b := start(t, func(c *Config) { c.Dir = dirs[1] })
	eventually(t, "they meet again", func() bool { return len(b.Connected()) == 1 })
}

// A given peer that starts later, and restarts, is met without anybody asking again.
func TestGivenPeerComesLater(t *testing.T) {
	dir := t.TempDir()
	first, err := New(t.Context(), Config{Network: "test", Dir: dir, Listen: []string{"127.0.0.1:0"}, NoMDNS: true})
	if err != nil {
		t.Fatal(err)
	}
	addr := first.Addrs()[:1]
	first.Close()
	var log lines
	a := start(t, func(c *Config) { c.Peers, c.Logger = addr, slog.New(slog.NewTextHandler(&log, nil)) })
	eventually(t, "the failure is logged", func() bool { return strings.Contains(log.String(), "trying on") })
	second := start(t, func(c *Config) { c.Dir = dir })
	eventually(t, "the peer is met", func() bool { return len(a.Connected()) == 1 })
	second.Close()
	eventually(t, "the peer is lost", func() bool { return len(a.Connected()) == 0 })
	start(t, func(c *Config) { c.Dir = dir })
	eventually(t, "the peer is met again", func() bool { return len(a.Connected()) == 1 })
	if n := strings.Count(log.String(), "trying on"); n != 1 {
		t.Errorf("%d warnings about one peer", n)
	}
}

func TestMDNS(t *testing.T) {
	var log lines
	change := func(c *Config) {
		c.Network, c.NoMDNS, c.Logger = t.Name(), false, slog.New(slog.NewTextHandler(&log, nil))
	}
	a, b := start(t, change), start(t, change)
	events, stop := a.Watch()
	defer stop()
	for end := time.After(5 * time.Second); len(a.Connected()) == 0; {
		select {
		case <-events:
		case <-time.After(50 * time.Millisecond):
		case <-end:
			if log.String() == "" {
				t.Log("no multicast here, and no word about it: mDNS can't be tested")
			}
			return
		}
	}
	if got := a.Connected()[0].ID; got != b.Self() {
		t.Errorf("met %v", got)
	}
}

// Three hosts in a line: the ends meet through the DHT of the middle.
func TestProvideAndFind(t *testing.T) {
	middle := start(t, nil)
	a := start(t, func(c *Config) { c.Peers = middle.Addrs()[:1] })
	b := start(t, func(c *Config) { c.Peers = middle.Addrs()[:1] })
	other := start(t, func(c *Config) { c.Network, c.Peers = "another", middle.Addrs()[:1] })
	b.Handle(p2p.OfferProtocol, echo)
	for _, h := range []*Host{a, b} {
		eventually(t, "the routing table has a peer", func() bool { return h.TableSize() > 0 })
	}
	key := []byte("model x, layers 8 to 15")
	if err := b.Provide(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	var found []p2p.Peer
	eventually(t, "a finds b", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		for p := range a.Find(ctx, key) {
			found = append(found, p)
		}
		return len(found) > 0
	})
	if found[0].ID != b.Self() {
		t.Fatalf("found %v, want %v", found, b.Self())
	}
	if err := call(t.Context(), a, found[0], p2p.OfferProtocol); err != nil {
		t.Errorf("calling what was found: %v", err)
	}

	eventually(t, "the other network's peer is connected", func() bool { return len(other.Connected()) > 0 })
	if err := other.Provide(t.Context(), key); !errors.Is(err, ErrAlone) {
		t.Errorf("alone in its network: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	for p := range other.Find(ctx, key) {
		t.Errorf("the other network's DHT knows %v", p)
	}
}

// Of two connections to one peer the one over QUIC goes, and so its death is noticed
// at once.
func TestOneConnectionIsEnough(t *testing.T) {
	dialling, gate := make(chan struct{}, 8), make(chan struct{})
	a := start(t, nil)
	b := start(t, func(c *Config) {
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			dialling <- struct{}{}
			<-gate
			var d net.Dialer
			return d.DialContext(ctx, network, address)
		}
	})
	over := func(h *Host, word string) p2p.Peer {
		p := self(h)
		p.Addrs = slices.DeleteFunc(p.Addrs, func(a string) bool { return !strings.Contains(a, word) })
		return p
	}
	dialled := make(chan error)
	go func() { dialled <- b.Dial(t.Context(), over(a, "/tcp/")) }()
	<-dialling
	if err := a.Dial(t.Context(), over(b, "/quic-v1")); err != nil {
		t.Fatal(err)
	}
	if got := a.h.Network().Conns()[0].ConnState().Transport; got != "quic-v1" {
		t.Fatalf("connected over %s", got)
	}
	close(gate)
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
	eventually(t, "one connection is left, over TCP", func() bool {
		c := a.h.Network().Conns()
		return len(c) == 1 && c[0].ConnState().Transport == "tcp"
	})
}

// The port of the last run is a wish; when somebody has it, another will do.
func TestLastPortIsTaken(t *testing.T) {
	for _, kind := range []string{"tcp", "udp"} {
		dir := t.TempDir()
		first, err := New(t.Context(), Config{Network: "test", Dir: dir, Listen: []string{"127.0.0.1:0"}, NoMDNS: true})
		if err != nil {
			t.Fatal(err)
		}
		port := first.known.Port
		first.Close()
		var taken io.Closer
		if kind == "tcp" {
			taken, err = net.Listen("tcp", "127.0.0.1:"+port)
		} else {
			taken, err = net.ListenPacket("udp", "127.0.0.1:"+port)
		}
		if err != nil {
			t.Fatal(err)
		}
		second := start(t, func(c *Config) { c.Dir = dir })
		taken.Close()
		if second.known.Port == port || len(second.Addrs()) != 2 || second.Self() != first.Self() {
			t.Errorf("%s: port %s was taken, now at %v", kind, port, second.Addrs())
		}
	}
}
