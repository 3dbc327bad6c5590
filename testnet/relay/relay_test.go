package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is nodes a and b, of which b echoes, with the relay in between.
type bench struct {
	t     *testing.T
	relay *Relay
	link  *Link
	pub   netip.AddrPort // b as others know it
	seen  chan netip.Addr
	conns chan net.Conn // b's ends
}

func newBench(t *testing.T) *bench {
	t.Helper()
	l, err := net.Listen("tcp", "127.3.7.2:0")
	if err != nil {
		t.Fatal("this test needs the whole of 127.0.0.0/8 on the loopback device, as on Linux: ", err)
	}
	b := &bench{t: t, relay: New(1), seen: make(chan netip.Addr, 64), conns: make(chan net.Conn, 64)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.seen <- c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
			b.conns <- c
			go func() { io.Copy(c, c); c.(*net.TCPConn).CloseWrite() }()
		}
	}()
	t.Cleanup(func() {
		b.relay.Close()
		l.Close()
		<-ended
		for len(b.conns) > 0 {
			(<-b.conns).Close()
		}
	})
	if _, err := b.relay.Add("a", netip.MustParseAddrPort("127.3.7.1:0"), netip.MustParseAddrPort("127.3.7.1:9")); err != nil {
		t.Fatal(err)
	}
	if b.pub, err = b.relay.Add("b", netip.MustParseAddrPort("127.3.7.2:0"), l.Addr().(*net.TCPAddr).AddrPort()); err != nil {
		t.Fatal(err)
	}
	b.link = b.relay.Link("b", "a")
	return b
}

func (b *bench) dial(from string) net.Conn {
	b.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
	c, err := d.Dial("tcp", b.pub.String())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// echo sends text and gives how long it took to come back.
func (b *bench) echo(c net.Conn, text string) time.Duration {
	b.t.Helper()
	start := time.Now()
	if _, err := io.WriteString(c, text); err != nil {
		b.t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		b.t.Fatalf("got %q, %v", got, err)
	}
	return time.Since(start)
}

func TestPairsAreKnownByTheirSource(t *testing.T) {
	b := newBench(t)
	b.echo(b.dial("127.3.7.1"), "hello")
	if got := <-b.seen; got != netip.MustParseAddr("127.3.7.1") {
		t.Errorf("b saw %v", got)
	}
	b.echo(b.dial("127.3.7.99"), "hi")
	if s := b.link.State(); s.AToB != 5 || s.BToA != 5 || s.Opened != 1 || s.A != "a" || s.B != "b" {
		t.Errorf("%+v", s)
	}
	if s := b.relay.Link(Other, "b").State(); s.AToB != 2 || s.BToA != 2 {
		t.Errorf("%+v", s)
	}
	if _, err := b.relay.Add("a", netip.MustParseAddrPort("127.3.7.3:0"), netip.AddrPort{}); err == nil {
		t.Error("two nodes of one name")
	}
	if _, err := b.relay.Add("c", netip.MustParseAddrPort("127.3.7.1:0"), netip.AddrPort{}); err == nil {
		t.Error("two nodes of one address")
	}
}

func TestMuchGoesThroughInOrderAndEnds(t *testing.T) {
	b := newBench(t)
	b.link.SetShape(Shape{Jitter: time.Millisecond})
	c := b.dial("127.3.7.1")
	want := bytes.Repeat([]byte("0123456789"), 400_000)
	go func() { c.Write(want); c.(*net.TCPConn).CloseWrite() }()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d of %d bytes came back: %v", len(got), len(want), err)
	}
}

func TestDelayAndRate(t *testing.T) {
	b := newBench(t)
	c := b.dial("127.3.7.1")
	b.echo(c, "warm")
	b.link.SetShape(Shape{Delay: 40 * time.Millisecond})
	if d := b.echo(c, "x"); d < 80*time.Millisecond {
		t.Errorf("a round trip over 2 x 40 ms took %v", d)
	}
	b.link.SetShape(Shape{Rate: 100_000})
	if d := b.echo(c, string(make([]byte, 20_000))); d < 200*time.Millisecond {
		t.Errorf("20 kB at 100 kB/s took %v", d)
	}
	b.link.SetShape(Shape{})
	if d := b.echo(c, "x"); d > time.Second {
		t.Errorf("a free link took %v", d)
	}
}

func TestCutResetsAndRefuses(t *testing.T) {
	b := newBench(t)
	c, other := b.dial("127.3.7.1"), b.dial("127.3.7.99")
	b.echo(c, "x")
	b.echo(other, "x")
	b.link.Cut()
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read over a cut link: %v", err)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.3.7.1")}}
	again, err := d.Dial("tcp", b.pub.String()) // the reset may come before or after connect returns
	if err == nil {
		defer again.Close()
		again.SetDeadline(time.Now().Add(10 * time.Second))
		_, err = again.Read(make([]byte, 1))
	}
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a new connection over a cut link: %v", err)
	}
	b.echo(other, "not cut")
	b.link.Heal()
	b.echo(b.dial("127.3.7.1"), "healed")
}

func TestHoleIsSilentUntilHealed(t *testing.T) {
	b := newBench(t)
	c := b.dial("127.3.7.1")
	b.echo(c, "x")
	far := <-b.conns
	b.link.Hole()
	io.WriteString(c, "stuck")
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("something came out of a hole: %v", err)
	}
	late := b.dial("127.3.7.1") // the handshake is with the relay
	io.WriteString(late, "late")
	far.(*net.TCPConn).SetLinger(0)
	far.Close() // not even a reset gets through
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the reset came out of a hole: %v", err)
	}
	b.link.Heal()
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.ReadAll(c); err == nil {
		t.Error("the reset got lost")
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(late, got); err != nil || string(got) != "late" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestWaitBytes(t *testing.T) {
	b := newBench(t)
	c := b.dial("127.3.7.1")
	b.echo(c, "before")
	done := make(chan error, 1)
	go func() { done <- b.link.WaitBytes(t.Context(), 10) }()
	for i := 0; ; i++ {
		b.echo(c, "xx")
		select {
		case err := <-done:
			if err != nil || i < 2 {
				t.Errorf("round %d: %v", i, err)
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
		if i > 100 {
			t.Fatal("never woke")
		}
	}
}

func TestWaitBytesEnds(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := b.link.WaitBytes(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
