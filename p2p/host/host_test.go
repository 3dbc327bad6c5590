package host

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshnet/meshnet/p2p"
)

// start makes a quiet host on loopback that is closed at the end of the test.
func start(t *testing.T, change func(*Config)) *Host {
	t.Helper()
	cfg := Config{Network: "test", Listen: []string{"127.0.0.1:0"}, NoMDNS: true}
	if change != nil {
		change(&cfg)
	}
	began := time.Now()
	h, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("New took %v", d)
	}
	t.Cleanup(func() {
		began := time.Now()
		if err := h.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if d := time.Since(began); d > 4*time.Second {
			t.Errorf("Close took %v", d)
		}
	})
	return h
}

func self(h *Host) p2p.Peer { return p2p.Peer{ID: h.Self(), Addrs: h.Addrs()} }

// eventually waits up to 10 s for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// echo answers whatever comes with the same bytes.
func echo(_ context.Context, s p2p.Stream) {
	if _, err := io.Copy(s, s); err != nil {
		s.Reset()
		return
	}
	s.Close()
}

func call(ctx context.Context, from *Host, to p2p.Peer, proto string) error {
	s, err := from.Open(ctx, to, proto)
	if err != nil {
		return err
	}
	defer s.Reset()
	s.SetDeadline(time.Now().Add(5 * time.Second))
	msg := bytes.Repeat([]byte("abc"), 1000)
	if _, err := s.Write(msg); err != nil {
		return err
	}
	if err := s.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(s)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, msg) {
		return errors.New("another echo")
	}
	return nil
}

func TestStreams(t *testing.T) {
	for _, transport := range []string{"tcp", "quic-v1"} {
		t.Run(transport, func(t *testing.T) {
			listen := map[string]string{"tcp": "/ip4/127.0.0.1/tcp/0", "quic-v1": "/ip4/127.0.0.1/udp/0/quic-v1"}[transport]
			a := start(t, func(c *Config) { c.Listen = []string{listen} })
			b := start(t, func(c *Config) { c.Listen = []string{listen} })
			remote := make(chan p2p.PeerID, 1)
			b.Handle(p2p.ActivationProtocol, func(ctx context.Context, s p2p.Stream) {
				remote <- s.Remote()
				if s.Limited() {
					t.Error("a direct stream is called limited")
				}
				echo(ctx, s)
			})
			if err := call(t.Context(), a, self(b), p2p.ActivationProtocol); err != nil {
				t.Fatal(err)
			}
			if got := <-remote; got != a.Self() {
				t.Errorf("the handler saw %q, not %q", got, a.Self())
			}
			if !strings.Contains(b.Addrs()[0], transport) {
				t.Errorf("no %s in %q", transport, b.Addrs())
			}
		})
	}
}

// On private addresses the cheaper transport wins.
func TestTCPComesFirst(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	if err := a.Dial(t.Context(), self(b)); err != nil {
		t.Fatal(err)
	}
	id, _ := peer.Decode(string(b.Self()))
	conn := a.h.Network().ConnsToPeer(id)[0]
	if got := conn.ConnState(); got.Transport != "tcp" || got.Security != "/tls/1.0.0" {
		t.Errorf("connected over %s with %s, want tcp with tls", got.Transport, got.Security)
	}
}

func TestOpenErrors(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	b.Handle(p2p.OfferProtocol, echo)
	gone := start(t, nil)
	dead := self(gone)
	gone.Close()
	stranger, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	strangerID, _ := peer.IDFromPrivateKey(stranger)

	for _, c := range []struct {
		name  string
		to    p2p.Peer
		proto string
		want  error
	}{
		{"nobody said where", p2p.Peer{ID: p2p.PeerID(strangerID.String())}, p2p.OfferProtocol, p2p.ErrUnknown},
		{"not a peer id", p2p.Peer{ID: "zebra"}, p2p.OfferProtocol, p2p.ErrUnknown},
		{"dead", dead, p2p.OfferProtocol, p2p.ErrUnreachable},
		{"itself", self(a), p2p.OfferProtocol, p2p.ErrUnreachable},
		{"another peer answers there", p2p.Peer{ID: p2p.PeerID(strangerID.String()), Addrs: []string{strings.Split(b.Addrs()[0], "/p2p/")[0]}}, p2p.OfferProtocol, p2p.ErrUnreachable},
		{"does not speak it", self(b), p2p.ActivationProtocol, p2p.ErrRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			s, err := a.Open(t.Context(), c.to, c.proto)
			if err == nil {
				_, err = s.Read(make([]byte, 1))
				s.Reset()
			}
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if d := time.Since(began); d > 6*time.Second {
				t.Errorf("took %v", d)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Open(ctx, dead, p2p.OfferProtocol); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v", err)
	}
}

// A peer that comes back at once is reachable at once: libp2p's back-off of 5 s and
// more does not hold.
func TestNoBackoff(t *testing.T) {
	a := start(t, nil)
	dir := t.TempDir()
	b, err := New(t.Context(), Config{Network: "test", Dir: dir, Listen: []string{"/ip4/127.0.0.1/tcp/0"}, NoMDNS: true})
	if err != nil {
		t.Fatal(err)
	}
	to := self(b)
	b.Close()
	if err := a.Dial(t.Context(), to); !errors.Is(err, p2p.ErrUnreachable) {
		t.Fatalf("dialling a dead peer: %v", err)
	}
	b2 := start(t, func(c *Config) { c.Dir, c.Listen = dir, []string{"/ip4/127.0.0.1/tcp/0"} })
	b2.Handle(p2p.OfferProtocol, echo)
	if got := self(b2); got.ID != to.ID || !slices.Equal(got.Addrs, to.Addrs) {
		t.Fatalf("restarted as %v, was %v", got, to)
	}
	if err := call(t.Context(), a, to, p2p.OfferProtocol); err != nil {
		t.Error(err)
	}
}

func TestClosedPeerEndsStreams(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	ended := make(chan struct{})
	b.Handle(p2p.HeartbeatProtocol, func(ctx context.Context, s p2p.Stream) {
		defer close(ended)
		io.Copy(io.Discard, s)
		if ctx.Err() == nil {
			t.Error("the handler's context outlives the host")
		}
		s.Reset()
	})
	s, err := a.Open(t.Context(), self(b), p2p.HeartbeatProtocol)
	if err != nil {
		t.Fatal(err)
	}
	s.Write([]byte("x"))
	time.Sleep(50 * time.Millisecond)
	b.Close()
	select {
	case <-ended:
	default:
		t.Error("Close did not wait for the handler")
	}
	s.SetReadDeadline(time.Now().Add(2 * time.Second))
	if _, err := s.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reading from a closed peer: %v", err)
	}
}

func TestIdentity(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nodes", "volunteer")
	a, err := New(t.Context(), Config{Network: "test", Dir: dir, Listen: []string{"127.0.0.1:0"}, NoMDNS: true})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	name := filepath.Join(dir, "identity.key")
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's mode is %v (%v)", info.Mode(), err)
	}

	_, err = New(t.Context(), Config{Network: "test", Dir: dir, Listen: []string{"127.0.0.1:0"}, NoMDNS: true})
	if !errors.Is(err, ErrIdentityInUse) || !strings.Contains(err.Error(), "--name") {
		t.Errorf("a second host on the same directory: %v", err)
	}

	id := a.Self()
	a.Close()
	os.Chmod(name, 0o644)
	again := start(t, func(c *Config) { c.Dir = dir })
	if again.Self() != id {
		t.Errorf("the identity changed from %s to %s", id, again.Self())
	}
	if info, _ := os.Stat(name); info.Mode().Perm() != 0o600 {
		t.Errorf("a key that others may read was left so: %v", info.Mode())
	}

	sig, err := again.Sign([]byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if err := Verify(string(id), []byte("hello"), sig); err != nil {
		t.Error(err)
	}
	for what, bad := range map[string]error{
		"another message": Verify(string(id), []byte("hullo"), sig),
		"no signature":    Verify(string(id), []byte("hello"), nil),
		"another peer":    Verify(string(start(t, nil).Self()), []byte("hello"), sig),
		"no peer":         Verify("zebra", []byte("hello"), sig),
		"an RSA-like id":  Verify("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", []byte("hello"), sig),
	} {
		if bad == nil {
			t.Errorf("%s is believed", what)
		}
	}
}

func TestDamagedFiles(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "identity.key"), []byte("not a key"), 0o600)
	_, err := New(t.Context(), Config{Network: "test", Dir: dir, Listen: []string{"127.0.0.1:0"}, NoMDNS: true})
	if err == nil || !strings.Contains(err.Error(), "identity.key") || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("a damaged identity: %v", err)
	}
	os.Remove(filepath.Join(dir, "identity.key"))
	for _, content := range []string{"{", "null", `{"peers":null}`, `{"peers":{"zebra":null,"12D3KooW":{"addrs":["x"]}}}`} {
		os.WriteFile(filepath.Join(dir, "peers.json"), []byte(content), 0o600)
		h := start(t, func(c *Config) { c.Dir = dir })
		h.Close()
	}
}

func TestListenErrors(t *testing.T) {
	busyTCP, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busyTCP.Close()
	busyUDP, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busyUDP.Close()
	_, udpPort, _ := net.SplitHostPort(busyUDP.LocalAddr().String())
	ours := start(t, func(c *Config) { c.NoQUIC = true })

	for _, c := range []struct{ name, listen, want string }{
		{"TCP busy", busyTCP.Addr().String(), "in use by another program"},
		{"UDP busy", "/ip4/127.0.0.1/udp/" + udpPort + "/quic-v1", "in use by another program"},
		{"another host of ours", strings.Split(ours.Addrs()[0], "/p2p/")[0], "in use by another program"},
		{"not our address", "192.0.2.1:0", "no such address"},
		{"not an address", "zebra", "zebra"},
		{"a name", "localhost:1", "localhost"},
		{"a websocket", "/ip4/127.0.0.1/tcp/0/ws/zebra", "zebra"},
		{"plain UDP", "/ip4/127.0.0.1/udp/0", "quic-v1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := New(t.Context(), Config{Network: "test", Listen: []string{c.listen}, NoMDNS: true})
			if err == nil {
				h.Close()
				t.Fatal("started")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want a word of %q", err, c.want)
			}
		})
	}

	_, err = New(t.Context(), Config{Network: "a/b", Listen: []string{"zebra"}, Peers: []string{"/ip4/127.0.0.1/tcp/1", "yak"}, Announce: []string{"gnu"}})
	for _, word := range []string{"a/b", "zebra", "/ip4/127.0.0.1/tcp/1", "yak", "gnu"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%q is not among the faults: %v", word, err)
		}
	}
}

func TestWatch(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	events, stop := a.Watch()
	defer stop()
	if err := b.Dial(t.Context(), self(a)); err != nil {
		t.Fatal(err)
	}
	// A dial may end in two connections, each of which tells that the peer is there; that it is gone is told once, at the end.
	deadline := time.After(10 * time.Second)
	var told []bool
	for len(told) == 0 || told[len(told)-1] {
		select {
		case e := <-events:
			if e.Peer.ID != b.Self() {
				t.Fatalf("event %+v of a peer other than %v", e, b.Self())
			}
			told = append(told, e.Connected)
		case <-deadline:
			t.Fatalf("told %v and no end", told)
		}
		b.Close()
	}
	if !told[0] {
		t.Errorf("told %v: gone before it came", told)
	}
}

func TestAnnounceAndDialFrom(t *testing.T) {
	seen := make(chan string, 8)
	a := start(t, func(c *Config) {
		c.Announce, c.NoQUIC = []string{"/ip4/127.0.0.9/tcp/4001"}, true
		c.Listen = []string{"127.0.0.2:0"}
		c.DialFrom = netip4("127.0.0.2")
	})
	if got := a.Addrs(); len(got) != 1 || got[0] != "/ip4/127.0.0.9/tcp/4001/p2p/"+string(a.Self()) {
		t.Errorf("announced %q", got)
	}
	b := start(t, func(c *Config) { c.NoQUIC = true })
	b.h.Network().Notify(&network.NotifyBundle{ConnectedF: func(_ network.Network, c network.Conn) {
		seen <- c.RemoteMultiaddr().String()
	}})
	if err := a.Dial(t.Context(), self(b)); err != nil {
		t.Fatal(err)
	}
	if got := <-seen; !strings.HasPrefix(got, "/ip4/127.0.0.2/tcp/") {
		t.Errorf("dialled from %s", got)
	}
	eventually(t, "b has heard a's announced address", func() bool {
		c := b.Connected()
		return len(c) == 1 && slices.Contains(c[0].Addrs, "/ip4/127.0.0.9/tcp/4001")
	})

	dialled := make(chan string, 8)
	d := start(t, func(c *Config) {
		c.NoQUIC = true
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			dialled <- address
			var d net.Dialer
			return d.DialContext(ctx, network, address)
		}
	})
	if err := d.Dial(t.Context(), self(b)); err != nil {
		t.Fatal(err)
	}
	if got := <-dialled; !strings.Contains(b.Addrs()[0], "/tcp/"+strings.Split(got, ":")[1]) {
		t.Errorf("dialled %s", got)
	}
}

// With everything on, as a user starts it: any address, NAT, metrics. It must start
// and stop quickly whatever network there is.
func TestWideOpen(t *testing.T) {
	reg := prometheus.NewRegistry()
	began := time.Now()
	h, err := New(t.Context(), Config{Network: t.Name(), Registerer: reg, Relay: true})
	if err != nil {
		t.Fatal(err)
	}
	started := time.Since(began)
	time.Sleep(200 * time.Millisecond)
	if len(h.Addrs()) == 0 {
		t.Error("no addresses")
	}
	if m, err := reg.Gather(); err != nil || len(m) == 0 {
		t.Errorf("%d metrics, %v", len(m), err)
	}
	began = time.Now()
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if stopped := time.Since(began); started > 3*time.Second || stopped > 4*time.Second {
		t.Errorf("start %v, stop %v", started, stopped)
	} else {
		t.Logf("start %v, stop %v", started, stopped)
	}
}
