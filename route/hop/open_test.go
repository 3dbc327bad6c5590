package hop_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

func TestOpenRefused(t *testing.T) {
	tests := []struct {
		name   string
		change func(o *wire.Open)
		code   wire.Code
	}{
		{"another model", func(o *wire.Open) { o.Model[0]++ }, wire.CodeWrongModel},
		{"layers that it has not", func(o *wire.Open) { o.End++ }, wire.CodeWrongRange},
		{"rows of another size", func(o *wire.Open) { o.Hidden++ }, wire.CodeBadShape},
		{"a cache that it does not keep", func(o *wire.Open) { o.CacheType = wire.CacheQ8 }, wire.CodeWrongCache},
		{"a cache that nobody knows", func(o *wire.Open) { o.CacheType = wire.MaxCacheType }, wire.CodeWrongCache},
		{"a cache of twice the size", func(o *wire.Open) { o.CacheType, o.MaxLen = wire.CacheF32, 5000 }, wire.CodeBusy},
		{"too long", func(o *wire.Open) { o.MaxLen = 8193 }, wire.CodeTooLong},
		{"more than the whole cache", func(o *wire.Open) { o.MaxLen = 8192 }, wire.CodeBusy},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *hoptest.World) {
				w.Cache.MaxBytes = 200 << 10
				w.Join("q", 0, layers).Engine.Caches = wire.CacheTypesOf(wire.CacheF16, wire.CacheF32)
				r := dial(w, "head", "q", p2p.ActivationProtocol)
				o := open()
				tt.change(o)
				r.send(o)
				if got := r.code(); got != tt.code {
					t.Errorf("answered %v, want %v", got, tt.code)
				}
				_ = r.s.Close()
			})
		})
	}
}

// TestFirstBytes: a stream that does not begin with an OPEN is answered and ended,
// one that says nothing is ended.
func TestFirstBytes(t *testing.T) {
	for _, b := range []string{"GET / HTTP/1.1\r\n\r\n", "\xff\xff\xff\xff\x9d\x01", "\x00\x00\x00\x02\x9d\x63", "\x00\x00\x00\x10\x9d\x01\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1", ""} {
		t.Run(fmt.Sprintf("%q", b), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *hoptest.World) {
				r := dial(w, "head", "p", p2p.ActivationProtocol)
				_, _ = r.s.Write([]byte(b)) // may be refused before it is all written
				if c := r.code(); b != "" && c != wire.CodeBadFrame || b == "" && c != 0 {
					t.Errorf("answered %v", c)
				}
				if r.get() != nil {
					t.Error("the stream goes on")
				}
				_ = r.s.Close()
			})
		})
	}
	bubble(t, func(t *testing.T, w *hoptest.World) {
		r := dial(w, "head", "p", p2p.ActivationProtocol)
		r.send(step(1, 0, 1))
		if c := r.code(); c != wire.CodeBadFrame {
			t.Errorf("an activation first: %v", c)
		}
		_ = r.s.Close()
	})
}

func TestLimitedRelay(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		w.Net.Limited("head", "p")
		r := dial(w, "head", "p", p2p.ActivationProtocol)
		r.send(open())
		if c := r.code(); c != wire.CodeLimited {
			t.Errorf("over a limited relay: %v", c)
		}
		_ = r.s.Close()
	})
}

// TestSessionIsItsHeads: who knows a session's id and nothing else gets nothing.
func TestSessionIsItsHeads(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		r, _ := ready(w, "head", "p", open())
		r.send(step(1, 0, 4))
		expect(t, r.get(), 4)

		thief := dial(w, "thief", "p", p2p.ActivationProtocol)
		o := open()
		o.Epoch = 9
		thief.send(o)
		if c := thief.code(); c != wire.CodeNotOwner {
			t.Errorf("another head's OPEN: %v", c)
		}
		_ = thief.s.Close()
		thief = dial(w, "thief", "p", p2p.ActivationProtocol)
		o = open()
		o.Role, o.Start, o.End = wire.RoleLink, 0, 1
		thief.send(o)
		if c := thief.code(); c != wire.CodeNotOwner {
			t.Errorf("a link that the head did not name: %v", c)
		}
		_ = thief.s.Close()

		// The head's own epoch again is stale; a later one takes the cache over.
		again := dial(w, "head", "p", p2p.ActivationProtocol)
		again.send(open())
		if c := again.code(); c != wire.CodeStaleEpoch {
			t.Errorf("the same epoch again: %v", c)
		}
		_ = again.s.Close()
		o = open()
		o.Epoch = 2
		next, ok := ready(w, "head", "p", o)
		if ok.Held != 4 {
			t.Errorf("the next epoch finds %d tokens", ok.Held)
		}
		if r.get() != nil {
			t.Error("the old epoch's stream goes on")
		}
		a := step(2, 4, 1)
		a.Epoch = 2
		next.send(a)
		expect(t, next.get(), 5)
		_ = r.s.Close()

		next.send(&wire.Close{Session: sid, Epoch: 2})
		_ = next.s.Close()
		time.Sleep(10 * time.Millisecond)
		if n := w.Peer("p").Cache.Stats().Sessions; n != 0 {
			t.Errorf("%d sessions are held after CLOSE", n)
		}
	})
}

// TestParkedLink: a link may come before the head's OPEN, and waits for 5 s at most.
func TestParkedLink(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		w.Join("q", 4, layers)
		link := open()
		link.Role, link.End = wire.RoleLink, 4
		early := dial(w, "prev", "q", p2p.ActivationProtocol)
		early.send(link)
		time.Sleep(3 * time.Second)
		o := open()
		o.Start, o.Prev = 4, "prev"
		head, _ := ready(w, "head", "q", o)
		if _, ok := early.get().(*wire.Ready); !ok {
			t.Fatal("the parked link was not accepted")
		}
		// The rows of the link are as good as the head's; a stranger's link is not.
		early.send(step(1, 0, 3))
		if _, ok := head.get().(*wire.Result); !ok {
			t.Error("the link's rows had no answer")
		}
		second := dial(w, "prev", "q", p2p.ActivationProtocol)
		second.send(link)
		if c := second.code(); c != wire.CodeBadFrame {
			t.Errorf("a second link: %v", c)
		}
		_ = second.s.Close()

		// A bad frame on the link is told to the head, with the name of its sender.
		bad := step(2, 3, 1)
		bad.Payload = slices.Clone(bad.Payload)
		copy(bad.Payload, []byte{0, 0, 0xc0, 0x7f})
		early.send(bad)
		if e, _ := head.get().(*wire.Error); e == nil || e.Code != wire.CodeNotFinite || e.Peer != "prev" {
			t.Errorf("NaN from the link: %+v", e)
		}
		_ = early.s.Close()
		_ = head.s.Close()

		late := dial(w, "prev", "q", p2p.ActivationProtocol)
		link.Session[0] = 99
		late.send(link)
		at := time.Now()
		if c := late.code(); c != wire.CodeNotOwner || time.Since(at) > 6*time.Second {
			t.Errorf("a link without a session: %v after %v", c, time.Since(at))
		}
		_ = late.s.Close()
	})
}

// TestTooMany: one head gets so many sessions and no more, and is told to wait.
func TestTooMany(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		for i := range 8 {
			o := open()
			o.Session[0] = byte(100 + i)
			r, _ := ready(w, "head", "p", o)
			defer r.s.Close()
		}
		r := dial(w, "head", "p", p2p.ActivationProtocol)
		r.send(open())
		if e, _ := r.get().(*wire.Error); e == nil || e.Code != wire.CodeBusy || e.Retry == 0 {
			t.Errorf("the ninth session: %+v", e)
		}
		_ = r.s.Close()
		other, _ := ready(w, "another head", "p", open())
		_ = other.s.Close()
	})
}
