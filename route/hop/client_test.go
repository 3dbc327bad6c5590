package hop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

// evil makes a peer that answers OPEN well and the first activation with data.
func evil(w *hoptest.World, id p2p.PeerID, data func(a *wire.Activation) []byte) {
	peer := w.Net.Peer(id)
	peer.Handle(p2p.HeartbeatProtocol, func(_ context.Context, s p2p.Stream) {
		defer s.Reset()
		for r := wire.NewReader(s, wire.MaxFrame); ; {
			f, err := r.ReadFrame()
			if err != nil {
				return
			}
			p := f.(*wire.Ping)
			p.Reply = true
			_, _ = wire.WriteFrame(s, p)
		}
	})
	peer.Handle(p2p.ActivationProtocol, func(_ context.Context, s p2p.Stream) {
		defer s.Reset()
		r := wire.NewReader(s, wire.MaxFrame)
		for {
			f, err := r.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *wire.Open:
				_, _ = wire.WriteFrame(s, &wire.Ready{Session: f.Session, Epoch: f.Epoch, Credit: 0xffffffff})
			case *wire.Activation:
				_, _ = s.Write(data(f))
			}
		}
	})
}

func oneHop(id p2p.PeerID) route.Route {
	return route.Route{Hops: []route.Hop{{Peer: p2p.Peer{ID: id, Addrs: []string{"mem"}}, End: layers}}}
}

func request(r route.Route) hop.OpenRequest {
	return hop.OpenRequest{Session: sid, Epoch: 1, Route: r, Model: hoptest.Model, Hidden: hidden, MaxLen: 100}
}

// rows is the step of the text's first n tokens.
func rows(n int) hop.Step {
	a := step(1, 0, n)
	x := make([]float32, n*hidden)
	if err := wire.Floats(x, a.Payload, wire.F32); err != nil {
		panic(err)
	}
	return hop.Step{Seq: 1, Mode: wire.Prefill, Rows: n, Chunk: 4, X: x, Want: 1, Deadline: 2 * time.Second}
}

// FuzzHop: whatever a hop answers, the head gets its rows or one error in time.
func FuzzHop(f *testing.F) {
	result := func(change func(r *wire.Result)) []byte {
		r := &wire.Result{Session: sid, Epoch: 1, Seq: 1, Rows: 1, DType: wire.F32, Hidden: hidden, Payload: make([]byte, 4*hidden)}
		change(r)
		b, err := wire.Append(nil, r)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	f.Add(result(func(*wire.Result) {}))
	f.Add(append(result(func(*wire.Result) {}), result(func(*wire.Result) {})...))
	f.Add(result(func(r *wire.Result) { r.Seq = 9 }))
	f.Add(result(func(r *wire.Result) { r.Epoch = 9 }))
	f.Add(result(func(r *wire.Result) { r.Rows, r.Payload = 2, make([]byte, 8*hidden) }))
	f.Add(result(func(r *wire.Result) { r.Rows, r.Payload = 0, nil }))
	f.Add(result(func(r *wire.Result) { copy(r.Payload, []byte{0, 0, 0xc0, 0x7f}) }))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			w := hoptest.NewWorld(t, layers, hidden)
			defer w.Close()
			evil(w, "evil", func(*wire.Activation) []byte { return data })
			c, err := w.Client("head").Open(context.Background(), 0, request(oneHop("evil")))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			at := time.Now()
			x, err := c.Step(context.Background(), rows(3))
			if err == nil && (len(x) != hidden || !wire.Finite(x)) {
				t.Errorf("took %d values", len(x))
			}
			var e *hop.Error
			if err != nil && (!errors.As(err, &e) || e.Hop != 0 || e.Peer != "evil") {
				t.Errorf("error %v", err)
			}
			if d := time.Since(at); d > 8*time.Second {
				t.Errorf("took %v", d)
			}
		})
	})
}

// TestOpenFails names the hop whose fault it is, and leaves nothing open.
func TestOpenFails(t *testing.T) {
	tests := []struct {
		name string
		prep func(w *hoptest.World)
		code wire.Code
		most time.Duration
	}{
		{"unreachable", func(w *hoptest.World) { w.Net.Cut("head", "q") }, 0, 0},
		{"silent", func(w *hoptest.World) { w.Net.BlackHole("head", "q") }, 0, 3 * time.Second},
		{"frozen", func(w *hoptest.World) { w.Net.Freeze("q") }, 0, 3 * time.Second},
		{"not a hop", func(w *hoptest.World) { w.Net.Peer("q").Handle(p2p.ActivationProtocol, nil) }, 0, 0},
		{"limited", func(w *hoptest.World) { w.Net.Limited("head", "q") }, wire.CodeLimited, 0},
		{"draining", func(w *hoptest.World) { _ = w.Peer("q").Drain(time.Second) }, wire.CodeDraining, 0},
		{"nonsense", func(w *hoptest.World) {
			w.Net.Fault(p2ptest.Fault{From: "q", To: "head", Kind: wire.KindReady, Edit: func([]byte) []byte { return []byte("SSH-2.0-OpenSSH\r\n") }})
		}, 0, 0},
		{"another session's READY", func(w *hoptest.World) {
			w.Net.Fault(p2ptest.Fault{From: "q", To: "head", Kind: wire.KindReady, Edit: func([]byte) []byte {
				b, _ := wire.Append(nil, &wire.Ready{Epoch: 3})
				return b
			}})
		}, wire.CodeBadFrame, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := hoptest.NewWorld(t, layers, hidden)
				defer w.Close()
				w.Join("p", 0, 4)
				w.Join("q", 4, layers)
				tt.prep(w)
				r := route.Route{Hops: []route.Hop{
					{Peer: w.Dir.Peer("p"), Start: 0, End: 4},
					{Peer: w.Dir.Peer("q"), Start: 4, End: layers},
				}}
				at := time.Now()
				_, err := w.Client("head").Open(context.Background(), 0, request(r))
				var e *hop.Error
				if !errors.As(err, &e) || e.Hop != 1 || e.Peer != "q" || e.Code != tt.code {
					t.Errorf("got %v", err)
				}
				if d := time.Since(at); d > tt.most {
					t.Errorf("took %v", d)
				}
			})
		})
	}
}

// TestOpenCancelled: who does not want to wait any more gets its own error.
func TestOpenCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := hoptest.NewWorld(t, layers, hidden)
		defer w.Close()
		w.Join("p", 0, layers)
		w.Net.BlackHole("head", "p")
		gone := errors.New("gone")
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, gone)
		defer cancel()
		if _, err := w.Client("head").Open(ctx, 0, request(oneHop("p"))); !errors.Is(err, gone) {
			t.Errorf("got %v", err)
		}
		w.Net.Heal("head", "p")
	})
}

// TestF16: a circuit with f16 payloads sends half the bytes, and the rows are those
// of an undisturbed run that rounds at the same places.
func TestF16(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		req := request(oneHop("p"))
		req.DType = wire.F16
		c, err := w.Client("head").Open(context.Background(), 0, req)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		st := rows(1)
		x, err := c.Step(context.Background(), st)
		if err != nil || len(x) != hidden {
			t.Fatal(x, err)
		}
		// What came back is exactly representable in f16.
		b, err := wire.AppendFloats(nil, x, wire.F16)
		if err != nil {
			t.Fatal(err)
		}
		back := make([]float32, hidden)
		if err := wire.Floats(back, b, wire.F16); err != nil || !slices.Equal(back, x) {
			t.Errorf("%v is not %v: %v", back, x, err)
		}
	})
}

// TestStepRefused: what can't be a step is the caller's error, before anything is sent.
func TestStepRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		c, err := w.Client("head").Open(context.Background(), 0, request(oneHop("p")))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for i, change := range []func(s *hop.Step){
			func(s *hop.Step) { s.X = s.X[1:] },
			func(s *hop.Step) { s.Rows = 0 },
			func(s *hop.Step) { s.Want = 4 },
			func(s *hop.Step) { s.Chunk = 0 },
			func(s *hop.Step) { s.X = slices.Clone(s.X); s.X[0] /= 0 * s.X[0] },
		} {
			st := rows(3)
			change(&st)
			var e *hop.Error
			if _, err := c.Step(context.Background(), st); err == nil || errors.As(err, &e) {
				t.Errorf("case %d: %v", i, err)
			}
		}
		if x, err := c.Step(context.Background(), rows(3)); err != nil || !slices.Equal(x, hoptest.Expect([]int32{0, 1, 2}, layers, hidden, 1)) {
			t.Error("the circuit is broken afterwards:", err)
		}
	})
}

func TestChunkRows(t *testing.T) {
	for hidden, want := range map[int]int{1: 512, 128: 512, 576: 113, 896: 73, 4096: 16, 65536: 16} {
		if got := hop.ChunkRows(hidden); got != want {
			t.Errorf("hidden %d: %d rows a frame, want %d", hidden, got, want)
		}
	}
}

// TestErrorText: an error names hop, peer, code and side.
func TestErrorText(t *testing.T) {
	for want, e := range map[string]*hop.Error{
		"hop 2, abc: CACHE_MISS (said the peer): 3 held": {Hop: 2, Peer: "abc", Code: wire.CodeCacheMiss, Side: hop.Remote, Text: "3 held"},
		"hop 0, abc: lost: no heartbeat":                 {Peer: "abc", Side: hop.Local, Text: "no heartbeat"},
		"hop 1, abc: no answer before the deadline":      {Hop: 1, Peer: "abc", Silent: true, Side: hop.Local},
		"hop 0, abc: LINK_DOWN to def (said the peer)":   {Peer: "abc", Code: wire.CodeLinkDown, Next: "def", Side: hop.Remote},
	} {
		if got := fmt.Sprint(e); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
