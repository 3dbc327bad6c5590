package p2ptest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

const proto = "/test/1"

// scene is two peers, ann and bob, and a stream from ann to bob.
type scene struct {
	t        *testing.T
	net      *Network
	ann, bob *Peer
	a, b     p2p.Stream // the ends at ann and bob
}

// inBubble runs a test in virtual time with a fresh scene.
func inBubble(t *testing.T, setup func(*Network), f func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{t: t, net: New()}
		s.ann, s.bob = s.net.Peer("ann"), s.net.Peer("bob")
		if setup != nil {
			setup(s.net)
		}
		got := make(chan p2p.Stream, 16)
		s.bob.Handle(proto, func(ctx context.Context, st p2p.Stream) {
			got <- st
			<-ctx.Done()
		})
		s.t = t
		var err error
		if s.a, err = s.ann.Open(t.Context(), p2p.Peer{ID: "bob"}, proto); err != nil {
			t.Fatal(err)
		}
		s.b = <-got
		defer func() { // also when f fails: a bubble must not keep a goroutine
			s.a.Reset()
			s.b.Reset()
			if err := s.net.Close(); err != nil {
				t.Error(err)
			}
		}()
		f(s)
	})
}

func (s *scene) write(st p2p.Stream, text string) {
	s.t.Helper()
	if n, err := st.Write([]byte(text)); n != len(text) || err != nil {
		s.t.Fatalf("wrote %d of %d bytes: %v", n, len(text), err)
	}
}

func (s *scene) read(st p2p.Stream, want string) {
	s.t.Helper()
	b := make([]byte, len(want))
	if n, err := io.ReadFull(st, b); err != nil || string(b) != want {
		s.t.Fatalf("read %q (%v), want %q", b[:n], err, want)
	}
}

func (s *scene) readFails(st p2p.Stream, want error) {
	s.t.Helper()
	if n, err := st.Read(make([]byte, 1)); n != 0 || !errors.Is(err, want) {
		s.t.Fatalf("read %d bytes, %v; want %v", n, err, want)
	}
}

func (s *scene) writeFails(st p2p.Stream, want error) {
	s.t.Helper()
	if _, err := st.Write([]byte("x")); !errors.Is(err, want) {
		s.t.Fatalf("wrote, %v; want %v", err, want)
	}
}

func (s *scene) took(from time.Time, want time.Duration) {
	s.t.Helper()
	if d := time.Since(from); d != want {
		s.t.Fatalf("took %v, want %v", d, want)
	}
}

func TestBothWaysAndTheEnds(t *testing.T) {
	inBubble(t, nil, func(s *scene) {
		if s.a.Remote() != "bob" || s.b.Remote() != "ann" || s.a.Limited() {
			t.Error("wrong ends")
		}
		s.write(s.a, "hello")
		s.write(s.b, "hi")
		s.read(s.b, "hel")
		s.read(s.b, "lo")
		s.read(s.a, "hi")
		s.write(s.a, "last")
		s.a.CloseWrite()
		s.writeFails(s.a, io.ErrClosedPipe)
		s.read(s.b, "last")
		s.readFails(s.b, io.EOF)
		s.readFails(s.b, io.EOF)
		s.write(s.b, "still")
		s.read(s.a, "still")
		s.b.Close()
		s.readFails(s.a, io.EOF)
		s.readFails(s.b, io.ErrClosedPipe)
	})
}

func TestResetIsSeenByBothAtOnce(t *testing.T) {
	inBubble(t, nil, func(s *scene) {
		s.write(s.a, "lost")
		s.b.Reset()
		s.readFails(s.a, ErrReset)
		s.readFails(s.b, ErrReset)
		s.writeFails(s.a, ErrReset)
		if err := s.a.Close(); err != nil {
			t.Error(err)
		}
	})
	inBubble(t, nil, func(s *scene) { // also by who is waiting already
		go func() { time.Sleep(time.Second); s.b.Reset() }()
		start := time.Now()
		s.readFails(s.a, ErrReset)
		s.took(start, time.Second)
	})
}

func TestLatencyAndOrder(t *testing.T) {
	start := time.Time{}
	inBubble(t, func(n *Network) {
		start = time.Now()
		n.Latency("ann", "bob", 20*time.Millisecond)
	}, func(s *scene) {
		s.took(start, 40*time.Millisecond)
		start = time.Now()
		s.write(s.a, "ping")
		s.took(start, 0)
		s.read(s.b, "ping")
		s.took(start, 20*time.Millisecond)
		s.write(s.b, "pong")
		s.read(s.a, "pong")
		s.took(start, 40*time.Millisecond)
		s.write(s.a, "first")
		s.net.Latency("bob", "ann", 0)
		s.write(s.a, "second")
		s.read(s.b, "firstsecond")
	})
}

func TestDeadlines(t *testing.T) {
	inBubble(t, func(n *Network) { n.SetBuffer(4) }, func(s *scene) {
		start := time.Now()
		s.a.SetReadDeadline(start.Add(time.Second))
		s.readFails(s.a, os.ErrDeadlineExceeded)
		s.took(start, time.Second)
		s.write(s.b, "data")
		s.readFails(s.a, os.ErrDeadlineExceeded) // as in net.Conn, even with data there
		s.a.SetReadDeadline(time.Time{})
		s.read(s.a, "data")

		go func() { time.Sleep(time.Second); s.a.SetReadDeadline(time.Now()) }()
		start = time.Now()
		s.readFails(s.a, os.ErrDeadlineExceeded) // set while the read waits
		s.took(start, time.Second)

		s.a.SetDeadline(time.Now().Add(time.Second))
		start = time.Now()
		if _, err := s.a.Write([]byte("12345")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		s.took(start, time.Second)
		s.read(s.b, "1234")
	})
}

func TestBuffersAreBounded(t *testing.T) {
	inBubble(t, func(n *Network) { n.SetBuffer(10) }, func(s *scene) {
		done := make(chan struct{})
		go func() {
			time.Sleep(time.Second)
			s.read(s.b, strings.Repeat("x", 25))
			close(done)
		}()
		start := time.Now()
		s.write(s.a, strings.Repeat("x", 25))
		s.took(start, time.Second)
		<-done
	})
}

func TestOpenErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		ann, bob := n.Peer("ann"), n.Peer("bob")
		bob.Handle(proto, func(_ context.Context, s p2p.Stream) { s.Close() })
		n.Peer("killed")
		n.Kill("killed")
		n.Peer("far")
		n.Cut("ann", "far")
		n.Peer("hole")
		n.BlackHole("hole", "ann")
		n.Peer("ice")
		n.Freeze("ice")
		n.Fault(Fault{Opens: true, To: "bob", Nth: 2, Do: ResetBefore})
		n.Fault(Fault{Opens: true, To: "bob", Nth: 3, Do: Refuse})
		n.Fault(Fault{Opens: true, To: "bob", Nth: 4, Do: Drop})
		for i, tc := range []struct {
			to    p2p.Peer
			proto string
			want  error
			after time.Duration
		}{
			{p2p.Peer{ID: "nobody"}, proto, p2p.ErrUnknown, 0},
			{p2p.Peer{ID: "nobody", Addrs: []string{"/ip4/192.0.2.1"}}, proto, p2p.ErrUnreachable, 0},
			{p2p.Peer{ID: "killed"}, proto, p2p.ErrUnreachable, 0},
			{p2p.Peer{ID: "far"}, proto, p2p.ErrUnreachable, 0},
			{p2p.Peer{ID: "ann"}, proto, p2p.ErrUnreachable, 0},
			{p2p.Peer{ID: "bob"}, "/other/1", p2p.ErrRefused, 0},
			{p2p.Peer{ID: "hole"}, proto, context.DeadlineExceeded, 5 * time.Second},
			{p2p.Peer{ID: "ice"}, proto, context.DeadlineExceeded, 5 * time.Second},
			{p2p.Peer{ID: "bob"}, proto, p2p.ErrUnreachable, 0},
			{p2p.Peer{ID: "bob"}, proto, p2p.ErrRefused, 0},
			{p2p.Peer{ID: "bob"}, proto, context.DeadlineExceeded, 5 * time.Second},
			{p2p.Peer{ID: "bob"}, proto, nil, 0},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			start := time.Now()
			s, err := ann.Open(ctx, tc.to, tc.proto)
			if !errors.Is(err, tc.want) || time.Since(start) != tc.after {
				t.Errorf("case %d, %s: %v after %v, want %v after %v", i, tc.to.ID, err, time.Since(start), tc.want, tc.after)
			}
			if err == nil {
				s.Close()
			}
			cancel()
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestFrozenPeerStandsStill(t *testing.T) {
	inBubble(t, func(n *Network) { n.SetBuffer(8) }, func(s *scene) {
		s.write(s.b, "before") // already in the wire
		s.net.Freeze("bob")
		s.read(s.a, "before")
		s.write(s.a, "12345678") // the kernel takes what fits
		s.a.SetDeadline(time.Now().Add(3 * time.Second))
		s.writeFails(s.a, os.ErrDeadlineExceeded)
		s.readFails(s.a, os.ErrDeadlineExceeded)

		s.b.SetReadDeadline(time.Now().Add(time.Second))
		go func() { time.Sleep(10 * time.Second); s.net.Thaw("bob") }()
		start := time.Now()
		s.readFails(s.b, os.ErrDeadlineExceeded) // its own deadline can't wake it
		s.took(start, 10*time.Second)
		s.b.SetReadDeadline(time.Time{})
		s.read(s.b, "12345678")
	})
}

func TestBlackHoleHidesEvenAReset(t *testing.T) {
	inBubble(t, nil, func(s *scene) {
		s.write(s.a, "stuck")
		s.net.BlackHole("bob", "ann")
		s.b.SetReadDeadline(time.Now().Add(time.Second))
		s.readFails(s.b, os.ErrDeadlineExceeded)
		s.b.SetReadDeadline(time.Time{})
		s.net.Heal("ann", "bob")
		s.read(s.b, "stuck")

		s.net.BlackHole("ann", "bob")
		s.a.Reset()
		s.writeFails(s.a, ErrReset)
		s.write(s.b, "into the void")
		go func() { time.Sleep(time.Minute); s.net.Heal("ann", "bob") }()
		start := time.Now()
		s.readFails(s.b, ErrReset)
		s.took(start, time.Minute)
		s.writeFails(s.b, ErrReset)
	})
}

func TestCutAndHeal(t *testing.T) {
	inBubble(t, nil, func(s *scene) {
		s.net.Cut("bob", "ann")
		s.readFails(s.a, ErrReset)
		s.readFails(s.b, ErrReset)
		if _, err := s.ann.Open(t.Context(), p2p.Peer{ID: "bob"}, proto); !errors.Is(err, p2p.ErrUnreachable) {
			t.Error(err)
		}
		s.net.Heal("bob", "ann")
		st, err := s.ann.Open(t.Context(), p2p.Peer{ID: "bob"}, proto)
		if err != nil {
			t.Fatal(err)
		}
		st.Close()
	})
}

func TestKillAndRestart(t *testing.T) {
	inBubble(t, nil, func(s *scene) {
		s.net.Kill("bob")
		s.readFails(s.a, ErrReset)
		if _, err := s.bob.Open(t.Context(), p2p.Peer{ID: "ann"}, proto); !errors.Is(err, p2p.ErrUnreachable) {
			t.Error("a dead peer opened a stream:", err)
		}
		again := s.net.Peer("bob")
		if again == s.bob {
			t.Fatal("the dead rose")
		}
		if _, err := s.ann.Open(t.Context(), p2p.Peer{ID: "bob"}, proto); !errors.Is(err, p2p.ErrRefused) {
			t.Error("handlers outlived the peer:", err)
		}
	})
}

func TestLimitedIsMarked(t *testing.T) {
	inBubble(t, func(n *Network) { n.Limited("ann", "bob") }, func(s *scene) {
		if !s.a.Limited() || !s.b.Limited() {
			t.Error("not marked")
		}
	})
}

func credit(bytes uint32) *wire.Credit { return &wire.Credit{Bytes: bytes} }

// Five frames, a CREDIT of 1, 2, 3 with PINGs between, meet one fault.
func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault Fault
		want  string // what bob reads: numbers of credits, p for a ping, then the end
	}{
		{"none", Fault{Kind: wire.KindClose}, "1 p 2 p 3 EOF"},
		{"other way", Fault{From: "bob", Do: Drop}, "1 p 2 p 3 EOF"},
		{"other protocol", Fault{Protocol: "/other/1", Do: Drop}, "1 p 2 p 3 EOF"},
		{"drop the 2nd credit", Fault{Kind: wire.KindCredit, Nth: 2, Do: Drop}, "1 p p 3 EOF"},
		{"drop the 2nd frame", Fault{From: "ann", To: "bob", Nth: 2, Do: Drop}, "1 2 p 3 EOF"},
		{"drop all pings", Fault{Kind: wire.KindPing, Do: Drop}, "1 2 3 EOF"},
		{"reset before", Fault{Kind: wire.KindCredit, Nth: 2, Do: ResetBefore}, "1 p reset"},
		{"reset in the middle", Fault{Kind: wire.KindCredit, Nth: 2, Do: ResetMiddle}, "1 p half reset"},
		{"reset after", Fault{Kind: wire.KindCredit, Nth: 2, Do: ResetAfter}, "1 p 2 reset"},
		{"edit", Fault{Kind: wire.KindCredit, Nth: 2, Edit: func(f []byte) []byte {
			f[len(f)-1] = 9
			return f
		}}, "1 p 9 p 3 EOF"},
		{"edit into nonsense", Fault{Kind: wire.KindCredit, Nth: 2, Edit: func(f []byte) []byte {
			return []byte{0, 0, 0, 9, 0xc1, 0xc1}
		}}, "1 p bad"},
		{"kill then", Fault{Kind: wire.KindCredit, Nth: 2, Then: func(n *Network) { n.Kill("ann") }}, "reset"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(n *Network) { n.Fault(tc.fault) }, func(s *scene) {
				w := wire.NewWriter(s.a)
				for _, f := range []wire.Frame{credit(1), &wire.Ping{}, credit(2), &wire.Ping{}, credit(3)} {
					if _, err := w.WriteFrame(f); err != nil {
						break
					}
				}
				s.a.CloseWrite()
				if got := readAll(s.b); got != tc.want {
					t.Errorf("bob read %q, want %q", got, tc.want)
				}
			})
		})
	}
}

// TestBorders: something happens before a frame, in the middle of its bytes, or after
// it, and is told which frame it was.
func TestBorders(t *testing.T) {
	for at, want := range map[Border]string{Before: "1 p reset", Middle: "1 p half reset", After: "1 p 2 reset"} {
		inBubble(t, nil, func(s *scene) {
			var trace []Sent
			var met Sent
			s.net.Trace(func(x Sent) { trace = append(trace, x) })
			s.net.Fault(Fault{Kind: wire.KindCredit, Nth: 2, At: at, On: func(n *Network, x Sent) {
				met = x
				time.Sleep(time.Millisecond) // what was sent is read
				n.Kill("ann")
			}})
			done := make(chan struct{})
			go func() {
				defer close(done)
				w := wire.NewWriter(s.a)
				for _, f := range []wire.Frame{credit(1), &wire.Ping{}, credit(2), &wire.Ping{}, credit(3)} {
					if _, err := w.WriteFrame(f); err != nil {
						break
					}
				}
			}()
			if got := readAll(s.b); got != want {
				t.Errorf("border %d: bob read %q, want %q", at, got, want)
			}
			<-done
			if len(trace) < 3 || trace[2] != met || met.Kind != wire.KindCredit || met.From != "ann" || met.To != "bob" || met.Protocol != proto {
				t.Errorf("border %d: met %+v in %+v", at, met, trace)
			}
			if b, err := wire.Append(nil, credit(2)); err != nil || met.Bytes != len(b) {
				t.Errorf("a frame of %d bytes was told as %d", len(b), met.Bytes)
			}
		})
	}
	inBubble(t, nil, func(s *scene) {
		var trace []Sent
		s.net.Trace(func(x Sent) { trace = append(trace, x) })
		s.net.Fault(Fault{Opens: true, On: func(n *Network, x Sent) { n.Kill("bob") }})
		if _, err := s.ann.Open(t.Context(), p2p.Peer{ID: "bob"}, proto); !errors.Is(err, p2p.ErrUnreachable) {
			t.Error(err)
		}
		if want := (Sent{From: "ann", To: "bob", Protocol: proto}); len(trace) != 1 || trace[0] != want {
			t.Errorf("trace %+v", trace)
		}
	})
}

func readAll(st p2p.Stream) string {
	var got []string
	r := wire.NewReader(st, wire.MaxFrame)
	for {
		f, err := r.ReadFrame()
		var be *wire.BadError
		switch {
		case err == io.EOF:
			return strings.Join(append(got, "EOF"), " ")
		case errors.As(err, &be):
			return strings.Join(append(got, "bad"), " ")
		case errors.Is(err, ErrReset):
			if strings.Contains(err.Error(), "after") { // some of the frame had come
				got = append(got, "half")
			}
			return strings.Join(append(got, "reset"), " ")
		case err != nil:
			return err.Error()
		case f.Kind() == wire.KindPing:
			got = append(got, "p")
		default:
			got = append(got, string('0'+rune(f.(*wire.Credit).Bytes)))
		}
	}
}

func TestDelayFaultKeepsTheOrder(t *testing.T) {
	inBubble(t, func(n *Network) {
		n.Fault(Fault{Kind: wire.KindCredit, Nth: 1, Delay: time.Second})
	}, func(s *scene) {
		start := time.Now()
		wire.WriteFrame(s.a, credit(1))
		wire.WriteFrame(s.a, credit(2))
		s.a.CloseWrite()
		if got := readAll(s.b); got != "1 2 EOF" {
			t.Error(got)
		}
		s.took(start, time.Second)
	})
}

// A frame may come in any number of Writes, and bytes that are no frames pass.
func TestFaultsFindFramesInAnyWrites(t *testing.T) {
	inBubble(t, func(n *Network) { n.Fault(Fault{Kind: wire.KindCredit, Nth: 2, Do: Drop}) }, func(s *scene) {
		var b []byte
		for i := range uint32(3) {
			b, _ = wire.Append(b, credit(i+1))
		}
		for i := range b {
			s.write(s.a, string(b[i:i+1]))
		}
		s.write(s.a, "\xff\xff\xff\xff and noise")
		frame, _ := wire.Append(nil, credit(1))
		s.read(s.b, string(frame))
		frame, _ = wire.Append(nil, credit(3))
		s.read(s.b, string(frame)+"\xff\xff\xff\xff and noise")
		st := s.net.Stats("ann", "bob")
		if st.Frames[wire.KindCredit] != 3 || st.Streams != 1 || st.Bytes != int64(len(b)+14) {
			t.Errorf("%+v", st)
		}
	})
	inBubble(t, func(n *Network) { n.Fault(Fault{Do: Drop}) }, func(s *scene) {
		s.write(s.a, "\x00\x00\x00\x0a\x93\x08cut off")
		s.a.CloseWrite()
		s.read(s.b, "\x00\x00\x00\x0a\x93\x08cut off")
		s.readFails(s.b, io.EOF)
	})
}

func TestCloseNamesForgottenStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		ann := n.Peer("ann")
		n.Peer("bob").Handle(proto, func(ctx context.Context, s p2p.Stream) { <-ctx.Done() })
		if _, err := ann.Open(t.Context(), p2p.Peer{ID: "bob"}, proto); err != nil {
			t.Fatal(err)
		}
		if err := n.Close(); err == nil || !strings.Contains(err.Error(), "ann -> bob "+proto) {
			t.Error(err)
		}
	})
}

// Outside of a bubble, in real time, with everything at once: for the race detector.
func TestManyStreamsAtOnce(t *testing.T) {
	n := New()
	n.Peer("bob").Handle(proto, func(_ context.Context, s p2p.Stream) {
		io.Copy(s, s)
		s.Close()
	})
	done := make(chan error, 8)
	for range cap(done) {
		go func() {
			s, err := n.Peer("ann").Open(t.Context(), p2p.Peer{ID: "bob"}, proto)
			if err != nil {
				done <- err
				return
			}
			defer s.Close()
			want := bytes.Repeat([]byte("0123456789abcdef"), 40<<10)
			go func() { s.Write(want); s.CloseWrite() }()
			got, err := io.ReadAll(s)
			if err == nil && !bytes.Equal(got, want) {
				err = errors.New("other bytes came back")
			}
			done <- err
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

func TestThawAfterTheStreamIsGone(t *testing.T) {
	inBubble(t, nil, func(s *scene) {
		s.net.Freeze("bob")
		s.a.Reset()
		go func() { time.Sleep(time.Second); s.net.Thaw("bob") }()
		start := time.Now()
		s.readFails(s.b, ErrReset)
		s.took(start, time.Second)
	})
	inBubble(t, nil, func(s *scene) {
		s.net.Freeze("bob")
		s.a.Reset()
		go func() { time.Sleep(time.Second); s.net.Kill("bob") }()
		s.readFails(s.b, ErrReset)
	})
}
