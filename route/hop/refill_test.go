package hop_test

import (
	"testing"

	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

// fill is rows of the text as a refill.
func fill(seq uint32, past, rows int) *wire.Activation {
	a := step(seq, past, rows)
	a.Mode, a.Want = wire.Refill, 0
	return a
}

// TestRefill: only what is lacking is computed, nothing is cut, and the step before
// knows nothing of it.
func TestRefill(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		computed := 0
		w.Peer("p").Engine.Before = func(b []hop.Work) error { computed += b[0].Rows; return nil }
		r, _ := ready(w, "head", "p", open())
		defer r.s.Close()
		filled := func(a *wire.Activation, rows int) {
			t.Helper()
			computed = 0
			r.send(a)
			res, ok := r.get().(*wire.Result)
			if !ok || res.Seq != a.Seq || res.Rows != 0 || len(res.Payload) != 0 {
				t.Fatalf("a refill was answered with %+v", res)
			}
			if computed != rows {
				t.Errorf("refill of [%d, %d): %d rows computed, want %d", a.Past, a.Past+a.Rows, computed, rows)
			}
		}
		filled(fill(7, 0, 4), 4)
		filled(fill(7, 0, 4), 0) // again
		filled(fill(8, 2, 5), 3) // a part is there
		filled(fill(3, 1, 2), 0) // nothing is cut, and seq says nothing
		r.send(fill(9, 20, 2))   // a gap
		if e, _ := r.get().(*wire.Error); e == nil || e.Code != wire.CodeCacheMiss || e.Held != 7 {
			t.Errorf("a refill beyond what is held: %+v", e)
		}
		r.send(fill(9, 90, 11))
		if c := r.code(); c != wire.CodeTooLong {
			t.Errorf("a refill over the declared length: %v", c)
		}
		r.send(step(2, 7, 1)) // a step with a seq below theirs
		expect(t, r.get(), 8)
		filled(fill(10, 0, 8), 0)
		computed = 0
		r.send(step(2, 7, 1)) // answered from memory still
		expect(t, r.get(), 8)
		if computed != 0 {
			t.Error("the repeat was computed")
		}
		// After an eviction a step is refused, and comes again with its seq.
		w.Peer("p").Server.Evict("all")
		r.send(step(3, 8, 1))
		if c := r.code(); c != wire.CodeCacheMiss {
			t.Errorf("after an eviction: %v", c)
		}
		filled(fill(11, 0, 8), 8)
		r.send(step(3, 8, 1))
		expect(t, r.get(), 9)
		// The last hop gives nobody rows, so it keeps none.
		r.send(&wire.Resend{Session: sid, Epoch: 1, Seq: 12, Rows: 3})
		if c := r.code(); c != wire.CodeBadFrame {
			t.Errorf("RESEND to the last hop: %v", c)
		}
	})
}

// TestResend: a hop gives what it gave before, over epochs, until it kept it no more.
func TestResend(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		w.Keep = 64 << 10 // of 16-byte rows: 4096
		w.Join("q", 0, 4)
		computed := 0
		w.Peer("q").Engine.Before = func(b []hop.Work) error { computed += b[0].Rows; return nil }
		o := open()
		o.End, o.MaxLen = 4, 8000
		r, _ := ready(w, "head", "q", o)
		first := step(1, 0, 5)
		r.send(first)
		rows := r.get().(*wire.Result).Payload
		rows = append([]byte(nil), rows...)
		_ = r.s.Reset()
		o.Epoch = 2
		r, _ = ready(w, "head", "q", o)
		defer r.s.Close()
		computed = 0
		ask := func(seq uint32, past, n int) wire.Frame {
			r.send(&wire.Resend{Session: sid, Epoch: 2, Seq: seq, Past: uint32(past), Rows: uint32(n), Deadline: 1000})
			return r.get()
		}
		if res, ok := ask(2, 1, 3).(*wire.Result); !ok || res.Seq != 2 || res.Rows != 3 || string(res.Payload) != string(rows[16:64]) {
			t.Errorf("rows 1 to 3 once more: %+v", res)
		}
		if e, _ := ask(3, 0, 6).(*wire.Error); e == nil || e.Code != wire.CodeCacheMiss || e.Held != 5 {
			t.Errorf("more than was kept: %+v", e)
		}
		if computed != 0 {
			t.Errorf("%d rows computed", computed)
		}
		next := func(seq uint32, past, n int) {
			t.Helper()
			a := step(seq, past, n)
			a.Epoch = 2
			r.send(a)
			if _, ok := r.get().(*wire.Result); !ok {
				t.Fatal("the step was refused")
			}
		}
		next(4, 2, 1) // two rows are taken back, one comes
		if e, _ := ask(5, 0, 4).(*wire.Error); e == nil || e.Held != 3 {
			t.Errorf("rows that were taken back are given: %+v", e)
		}
		next(6, 3, 4093)
		if res, ok := ask(7, 4095, 1).(*wire.Result); !ok || res.Rows != 1 {
			t.Errorf("the last row within the bound: %+v", res)
		}
		next(8, 4096, 1)
		if e, _ := ask(9, 0, 1).(*wire.Error); e == nil || e.Code != wire.CodeCacheMiss || e.Held != 0 {
			t.Errorf("over the bound: %+v", e)
		}
		o = open()
		o.End, o.Epoch, o.Session = 4, 1, wire.SessionID{4}
		wide, _ := ready(w, "head", "q", o)
		defer wide.s.Close()
		wide.send(&wire.Resend{Session: o.Session, Epoch: 1, Seq: 1, Rows: wire.MaxRows})
		if c := wide.code(); c != wire.CodeCacheMiss {
			t.Errorf("RESEND of rows that were never there: %v", c)
		}
		// An old one, or one from another peer than the head, is no frame.
		r.send(&wire.Resend{Session: sid, Epoch: 1, Seq: 10, Rows: 1})
		if c := r.code(); c != wire.CodeBadFrame {
			t.Errorf("RESEND of an old epoch: %v", c)
		}
	})
}
