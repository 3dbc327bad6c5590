package hop_test

import (
	"context"
	"errors"
	"slices"
	"sync"
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

// count is the text's first n tokens.
func count(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i)
	}
	return ids
}

// pair is a circuit over two peers of four layers each, that has seen 40 tokens.
func pair(t *testing.T, star bool, f func(w *hoptest.World, c *hop.Circuit, next func())) {
	synctest.Test(t, func(t *testing.T) {
		w := hoptest.NewWorld(t, layers, hidden)
		defer w.Close()
		w.Join("a", 0, 4)
		w.Join("b", 4, 8)
		r := route.Route{Hops: []route.Hop{{Peer: w.Dir.Peer("a"), End: 4, Star: star}, {Peer: w.Dir.Peer("b"), Start: 4, End: 8}}}
		c, err := w.Client("head").Open(context.Background(), 0, request(r))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		n, seq := 0, uint32(1)
		forward := func(rows int) {
			t.Helper()
			a := step(seq, n, rows)
			x := make([]float32, rows*hidden)
			if err := wire.Floats(x, a.Payload, wire.F32); err != nil {
				t.Fatal(err)
			}
			got, err := c.Step(context.Background(), hop.Step{Seq: seq, Mode: a.Mode, Past: n, Rows: rows, Chunk: 16, X: x, Want: 1, Deadline: 2 * time.Second})
			n, seq = n+rows, seq+uint32(rows+15)/16
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, hoptest.Expect(count(n), layers, hidden, 1)) {
				t.Fatalf("the answer after %d tokens is wrong", n)
			}
		}
		forward(40)
		f(w, c, func() { forward(1) })
	})
}

// TestKept: a hop gives its rows back to the head while steps go on, in a chain and
// in a star, and what it does not have is told and disturbs nothing.
func TestKept(t *testing.T) {
	for _, star := range []bool{false, true} {
		pair(t, star, func(w *hoptest.World, c *hop.Circuit, next func()) {
			computed := 0
			w.Peer("a").Engine.Before = func(b []hop.Work) error { computed += b[0].Rows; return nil }
			kept := func(i, past, rows int) ([]float32, wire.Code) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				x, err := c.Kept(ctx, i, past, rows)
				var e *hop.Error
				if err != nil && (!errors.As(err, &e) || e.Hop != i) {
					t.Errorf("rows [%d, %d) of hop %d: %v", past, past+rows, i, err)
				}
				if e != nil {
					return x, e.Code
				}
				return x, 0
			}
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					x, code := kept(0, i, 20)
					if code != 0 || !slices.Equal(x, hoptest.Expect(count(i+20), 4, hidden, 20)) {
						t.Errorf("rows from %d on are wrong, code %v", i, code)
					}
				})
			}
			for range 5 {
				next()
			}
			all.Wait()
			if _, code := kept(0, 40, 6); code != wire.CodeCacheMiss {
				t.Errorf("more than it has: %v", code)
			}
			if _, code := kept(1, 0, 1); code != wire.CodeBadFrame {
				t.Errorf("of the last hop: %v", code)
			}
			next()
			if computed != 6 {
				t.Errorf("%d rows were computed", computed)
			}
		})
	}
}

// TestKeptTakesTurns: rows that come back and a step that is under way share a narrow
// stream, and both arrive.
func TestKeptTakesTurns(t *testing.T) {
	pair(t, true, func(w *hoptest.World, c *hop.Circuit, next func()) {
		w.Net.SetBuffer(256)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				for range 20 {
					if x, err := c.Kept(context.Background(), 0, 0, 40); err != nil || !slices.Equal(x, hoptest.Expect(count(40), 4, hidden, 40)) {
						t.Errorf("rows back: %v", err)
					}
				}
			})
		}
		for range 30 {
			next()
		}
		all.Wait()
	})
}

// TestKeptLies: a hop that answers what it was not asked is out; one that does not
// answer costs its asker alone.
func TestKeptLies(t *testing.T) {
	edit := func(change func(r *wire.Result)) func([]byte) []byte {
		return func(b []byte) []byte {
			f, _, err := wire.Parse(b)
			r, ok := f.(*wire.Result)
			if err != nil || !ok {
				return nil
			}
			change(r)
			out, err := wire.Append(nil, r)
			if err != nil {
				t.Error(err)
			}
			return out
		}
	}
	for name, tt := range map[string]struct {
		lie  func([]byte) []byte
		code wire.Code
	}{
		"too few":    {edit(func(r *wire.Result) { r.Rows, r.Payload = 1, r.Payload[:4*hidden] }), wire.CodeBadShape},
		"none":       {edit(func(r *wire.Result) { r.Rows, r.Payload = 0, nil }), wire.CodeBadShape},
		"not finite": {edit(func(r *wire.Result) { copy(r.Payload, []byte{0, 0, 0xc0, 0x7f}) }), wire.CodeNotFinite},
		"not asked":  {edit(func(r *wire.Result) { r.Seq += 5 }), wire.CodeBadFrame},
	} {
		t.Run(name, func(t *testing.T) {
			pair(t, false, func(w *hoptest.World, c *hop.Circuit, next func()) {
				w.Net.Fault(p2ptest.Fault{From: "a", To: "head", Kind: wire.KindResult, Nth: 1, Edit: tt.lie})
				_, err := c.Kept(context.Background(), 0, 0, 4)
				var e *hop.Error
				if !errors.As(err, &e) || e.Code != tt.code || e.Peer != "a" {
					t.Errorf("got %v, want %v of a", err, tt.code)
				}
			})
		})
	}
	pair(t, false, func(w *hoptest.World, c *hop.Circuit, next func()) {
		w.Net.Fault(p2ptest.Fault{From: "a", To: "head", Kind: wire.KindResult, Do: p2ptest.Drop})
		for i := range 20 {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			_, err := c.Kept(ctx, 0, 0, 4)
			cancel()
			var e *hop.Error
			if silent := errors.As(err, &e) && e.Silent; silent != (i >= 16) || err == nil {
				t.Errorf("ask %d: %v", i, err)
			}
		}
		next()
		c.Close()
		if _, err := c.Kept(context.Background(), 0, 0, 4); err == nil {
			t.Error("rows of a circuit that is closed")
		}
	})
}

// TestBackRefused: rows come back to the head of their session and to nobody else.
func TestBackRefused(t *testing.T) {
	pair(t, false, func(w *hoptest.World, c *hop.Circuit, next func()) {
		back := &wire.Resend{Session: sid, Epoch: 1, Seq: 1 << 31, Rows: 4, Back: true}
		// As the session's head: it is another's.
		thief := dial(w, "thief", "a", p2p.ActivationProtocol)
		o := open()
		o.End, o.Epoch = 4, 2
		thief.send(o)
		if c := thief.code(); c != wire.CodeNotOwner {
			t.Errorf("OPEN of another's session: %v", c)
		}
		_ = thief.s.Reset()
		// Without any OPEN, and in a session of its own.
		thief = dial(w, "thief", "a", p2p.ActivationProtocol)
		thief.send(back)
		if c := thief.code(); c != wire.CodeBadFrame {
			t.Errorf("RESEND before OPEN: %v", c)
		}
		_ = thief.s.Reset()
		o.Session[0]++
		thief, _ = ready(w, "thief", "a", o)
		thief.send(back)
		if c := thief.code(); c != wire.CodeBadFrame {
			t.Errorf("RESEND of another's session: %v", c)
		}
		_ = thief.s.Reset()
		// As the hop before, from whom rows come, but no questions.
		o = open()
		o.Session[0], o.Start, o.Prev = 77, 4, "a"
		mine, _ := ready(w, "head2", "b", o)
		link := dial(w, "a", "b", p2p.ActivationProtocol)
		l := *o
		l.Role, l.Start, l.End, l.Prev = wire.RoleLink, 0, 4, ""
		link.send(&l)
		if _, ok := link.get().(*wire.Ready); !ok {
			t.Fatal("the link was refused")
		}
		link.send(&wire.Resend{Session: o.Session, Epoch: 1, Seq: 1 << 31, Rows: 1, Back: true})
		if e, _ := mine.get().(*wire.Error); e == nil || e.Code != wire.CodeBadFrame || e.Peer != "a" {
			t.Errorf("RESEND on a link: the head is told %+v", e)
		}
		_, _ = mine.s.Reset(), link.s.Reset()
		next()
	})
}
