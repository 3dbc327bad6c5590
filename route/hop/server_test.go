package hop_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	layers = 8
	hidden = 4
)

var sid = wire.SessionID{1, 2, 3}

// raw is a peer that speaks frames by hand.
type raw struct {
	t testing.TB
	s p2p.Stream
	r *wire.Reader
}

func dial(w *hoptest.World, from, to p2p.PeerID, protocol string) *raw {
	w.T.Helper()
	s, err := w.Net.Peer(from).Open(context.Background(), w.Dir.Peer(to), protocol)
	if err != nil {
		w.T.Fatal(err)
	}
	return &raw{t: w.T, s: s, r: wire.NewReader(s, wire.MaxFrame)}
}

func (r *raw) send(f wire.Frame) {
	r.t.Helper()
	if _, err := wire.WriteFrame(r.s, f); err != nil {
		r.t.Fatalf("send %v: %v", f.Kind(), err)
	}
}

// get is the next frame; nil when the stream ends.
func (r *raw) get() wire.Frame {
	_ = r.s.SetReadDeadline(time.Now().Add(time.Minute))
	f, err := r.r.ReadFrame()
	if err != nil {
		return nil
	}
	return f
}

// code is the code of the next frame, 0 if it is no ERROR.
func (r *raw) code() wire.Code {
	if e, ok := r.get().(*wire.Error); ok {
		return e.Code
	}
	return 0
}

func open() *wire.Open {
	return &wire.Open{Session: sid, Epoch: 1, Role: wire.RoleHead, Start: 0, End: layers, Model: hoptest.Model, Hidden: hidden, DType: wire.F32, CacheType: wire.DefaultCacheType, MaxLen: 100}
}

// ready opens a session and expects READY.
func ready(w *hoptest.World, from, to p2p.PeerID, o *wire.Open) (*raw, *wire.Ready) {
	w.T.Helper()
	w.Beat(from, to)
	r := dial(w, from, to, p2p.ActivationProtocol)
	r.send(o)
	f := r.get()
	ok, is := f.(*wire.Ready)
	if !is {
		w.T.Fatalf("OPEN was answered with %#v", f)
	}
	return r, ok
}

// step is rows for the tokens [past, past+rows) of a text whose token i is i.
func step(seq uint32, past, rows int) *wire.Activation {
	ids := make([]int32, rows)
	for i := range ids {
		ids[i] = int32(past + i)
	}
	x := make([]float32, rows*hidden)
	hoptest.Embed(ids, x)
	a := &wire.Activation{
		Session: sid, Epoch: 1, Seq: seq, Mode: wire.Prefill, Past: uint32(past), Rows: uint32(rows), Want: 1,
		DType: wire.F32, Hidden: hidden, Deadline: 10_000, Payload: wire.Bytes(x),
	}
	if past > 0 && rows == 1 {
		a.Mode = wire.Decode
	}
	return a
}

// expect checks that f answers a step with the row of the text's first n tokens.
func expect(t testing.TB, f wire.Frame, n int) {
	t.Helper()
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i)
	}
	r, ok := f.(*wire.Result)
	if !ok {
		t.Fatalf("the step was answered with %#v", f)
	}
	got := make([]float32, hidden)
	if err := wire.Floats(got, r.Payload, r.DType); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, hoptest.Expect(ids, layers, hidden, 1)) {
		t.Fatalf("the answer after %d tokens is wrong", n)
	}
}

func bubble(t *testing.T, f func(t *testing.T, w *hoptest.World)) {
	synctest.Test(t, func(t *testing.T) {
		w := hoptest.NewWorld(t, layers, hidden)
		defer w.Close()
		w.Join("p", 0, layers)
		f(t, w)
	})
}

// TestPastIsLaw: exactly past is applied, more is cut, less is a miss that computes
// nothing, the last step again is answered from memory.
func TestPastIsLaw(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		computed := 0
		w.Peer("p").Engine.Before = func(b []hop.Work) error { computed += b[0].Rows; return nil }
		r, ok := ready(w, "head", "p", open())
		defer r.s.Close()
		if ok.Held != 0 || ok.Credit != hop.Window || ok.Linked {
			t.Errorf("READY %+v", ok)
		}
		r.send(step(1, 0, 10))
		expect(t, r.get(), 10)
		r.send(step(2, 10, 1))
		expect(t, r.get(), 11)
		before := computed
		r.send(step(2, 10, 1)) // again
		expect(t, r.get(), 11)
		r.send(step(3, 20, 1)) // more than is held
		e, _ := r.get().(*wire.Error)
		if e == nil || e.Code != wire.CodeCacheMiss || e.Held != 11 || e.Seq != 3 {
			t.Errorf("past beyond the cache: %+v", e)
		}
		if computed != before {
			t.Errorf("%d rows computed for nothing", computed-before)
		}
		r.send(step(4, 5, 3)) // less: cut first
		expect(t, r.get(), 8)
		r.send(step(4, 5, 2)) // the same step with other rows
		if c := r.code(); c != wire.CodeBadFrame {
			t.Errorf("a repeat with other rows: %v", c)
		}
		r.send(step(1, 0, 1))
		if c := r.code(); c != wire.CodeBadFrame {
			t.Errorf("an older step: %v", c)
		}
		r.send(step(5, 8, 93))
		if c := r.code(); c != wire.CodeTooLong {
			t.Errorf("over the declared length: %v", c)
		}
		r.send(step(6, 8, 1))
		expect(t, r.get(), 9)
		w.Peer("p").Server.Evict("all")
		r.send(step(7, 9, 1))
		if e, _ := r.get().(*wire.Error); e == nil || e.Code != wire.CodeCacheMiss || e.Held != 0 {
			t.Errorf("after an eviction: %+v", e)
		}
		r.send(step(8, 0, 10))
		expect(t, r.get(), 10)
	})
}

// TestCacheType: a session opened again with another type of cache finds nothing held and
// computes anew, with other bits; back under the first it goes on where it was.
func TestCacheType(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		text := func(epoch uint32, kind wire.CacheType, held int) *raw {
			t.Helper()
			o := open()
			o.Epoch, o.CacheType = epoch, kind
			r, ok := ready(w, "head", "p", o)
			if int(ok.Held) != held {
				t.Errorf("epoch %d with %v: %d tokens held, want %d", epoch, kind, ok.Held, held)
			}
			return r
		}
		send := func(r *raw, epoch, seq uint32, past, rows int) wire.Frame {
			a := step(seq, past, rows)
			a.Epoch = epoch
			r.send(a)
			return r.get()
		}
		r := text(1, wire.DefaultCacheType, 0)
		expect(t, send(r, 1, 1, 0, 10), 10)
		r = text(2, wire.CacheQ8, 0)
		if e, _ := send(r, 2, 2, 10, 1).(*wire.Error); e == nil || e.Code != wire.CodeCacheMiss || e.Held != 0 {
			t.Errorf("a step on the other type's cache: %+v", e)
		}
		// The same step as the last of epoch 1: that answer is not this one's.
		other, ok := send(r, 2, 1, 0, 10).(*wire.Result)
		if !ok || slices.Equal(other.Payload, wire.Bytes(hoptest.Expect([]int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, layers, hidden, 1))) {
			t.Errorf("with %v the answer is that of %v", wire.CacheQ8, wire.DefaultCacheType)
		}
		r = text(3, wire.DefaultCacheType, 10)
		expect(t, send(r, 3, 4, 10, 1), 11)
		// Neither reads nor writes a cache, but computes as the session does.
		a := step(5, 0, 12)
		a.Epoch, a.Mode = 3, wire.Stateless
		r.send(a)
		expect(t, r.get(), 12)
		_ = r.s.Close()
	})
}

// TestBadRows: each is refused with its code, nothing is applied, the session goes on.
func TestBadRows(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		r, _ := ready(w, "head", "p", open())
		defer r.s.Close()
		r.send(step(1, 0, 4))
		expect(t, r.get(), 4)
		for i, tt := range []struct {
			name   string
			change func(a *wire.Activation)
			code   wire.Code
		}{
			{"NaN", func(a *wire.Activation) { copy(a.Payload[4:], []byte{0, 0, 0xc0, 0x7f}) }, wire.CodeNotFinite},
			{"-Inf", func(a *wire.Activation) { copy(a.Payload, []byte{0, 0, 0x80, 0xff}) }, wire.CodeNotFinite},
			{"hidden", func(a *wire.Activation) { a.Hidden, a.Rows = 2, 2 }, wire.CodeBadShape},
			{"session", func(a *wire.Activation) { a.Session[0]++ }, wire.CodeNotOwner},
			{"old epoch", func(a *wire.Activation) { a.Epoch = 7 }, wire.CodeStaleEpoch},
		} {
			a := step(uint32(10+i), 4, 1)
			a.Payload = slices.Clone(a.Payload)
			tt.change(a)
			r.send(a)
			if e, _ := r.get().(*wire.Error); e == nil || e.Code != tt.code || e.Seq != a.Seq {
				t.Errorf("%s: %+v, want %v", tt.name, e, tt.code)
			}
		}
		r.send(step(20, 4, 1))
		expect(t, r.get(), 5)
		// f16 rows are a choice of the sender; the answer has the session's type.
		x := make([]float32, hidden)
		hoptest.Embed([]int32{5}, x)
		a := step(21, 5, 1)
		var err error
		if a.Payload, err = wire.AppendFloats(nil, x, wire.F16); err != nil {
			t.Fatal(err)
		}
		a.DType = wire.F16
		r.send(a)
		if res, ok := r.get().(*wire.Result); !ok || res.DType != wire.F32 || len(res.Payload) != 4*hidden {
			t.Errorf("f16 rows: %+v", res)
		}
	})
}

// TestCreditIsKept: who sends more than its credit is cut off.
func TestCreditIsKept(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		w.Peer("p").Engine.RowTime = time.Hour
		o := open()
		o.MaxLen = 8000
		r, _ := ready(w, "head", "p", o)
		defer r.s.Reset()
		rows := 7000 // 112,000 bytes
		for seq := uint32(1); seq <= 7; seq++ {
			if _, err := wire.WriteFrame(r.s, step(seq, 0, rows)); err != nil {
				return // cut off while writing: as good
			}
		}
		if c := r.code(); c != 0 && c != wire.CodeBadFrame {
			t.Errorf("answered %v", c)
		}
		for f := r.get(); f != nil; f = r.get() {
			if _, ok := f.(*wire.Result); ok {
				t.Fatal("it computed")
			}
		}
	})
}

// TestDeadline: a step that waited too long is refused and not applied.
func TestDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		w.Peer("p").Engine.RowTime = time.Second
		r, _ := ready(w, "head", "p", open())
		defer r.s.Close()
		a := step(1, 0, 20)
		a.Deadline = 5000
		r.send(a)
		at := time.Now()
		if c := r.code(); c != wire.CodeDeadline || time.Since(at) > 6*time.Second {
			t.Errorf("answered %v after %v", c, time.Since(at))
		}
		w.Peer("p").Engine.RowTime = 0
		r.send(step(2, 0, 4))
		expect(t, r.get(), 4)
	})
}

// TestPing is answered at once, whatever the engine does, and tells how far it came.
func TestPing(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		r, _ := ready(w, "head", "p", open())
		defer r.s.Close()
		r.send(step(1, 0, 4))
		expect(t, r.get(), 4)
		w.Peer("p").Engine.RowTime = 5 * time.Second
		r.send(step(2, 4, 1))
		at := time.Now()
		r.send(&wire.Ping{Session: sid, Epoch: 1, Nonce: 7})
		p, _ := r.get().(*wire.Ping)
		if p == nil || !p.Reply || p.Nonce != 7 || p.LastSeq != 1 || p.Frames != 1 || p.Rows != 4 || p.BytesIn == 0 || p.BytesOut == 0 || time.Since(at) > 0 {
			t.Errorf("%+v after %v", p, time.Since(at))
		}
		expect(t, r.get(), 5)
	})
}

// TestMetrics are consistent and tell what was refused.
func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		r, _ := ready(w, "head", "p", open())
		defer r.s.Close()
		r.send(step(1, 0, 4))
		expect(t, r.get(), 4)
		r.send(step(2, 9, 1))
		r.get()
		reg := prometheus.NewPedanticRegistry()
		if err := reg.Register(w.Peer("p").Server); err != nil {
			t.Fatal(err)
		}
		all, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range all {
			for _, m := range f.Metric {
				got[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		for name, want := range map[string]float64{"meshnet_hop_sessions": 1, "meshnet_hop_steps_total": 1, "meshnet_hop_rows_total": 4, "meshnet_hop_refused_total": 1} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
	})
}

// TestTogether: decodes that wait go into one batch, before a prefill that came first.
func TestTogether(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		e := w.Peer("p").Engine
		var order []int
		e.Before = func(b []hop.Work) error {
			rows := 0
			for _, it := range b {
				rows += it.Rows
			}
			order = append(order, rows)
			return nil
		}
		var rs []*raw
		for i := range 5 {
			o := open()
			o.Session[0] = byte(i + 1)
			o.Session[1], o.Session[2] = 2, 3
			r, _ := ready(w, "head", "p", o)
			defer r.s.Close()
			rs = append(rs, r)
		}
		send := func(i int, a *wire.Activation) {
			a.Deadline = 100_000
			a.Session[0] = byte(i + 1)
			rs[i].send(a)
			synctest.Wait()
		}
		for i := range rs {
			send(i, step(1, 0, 4))
			expect(t, rs[i].get(), 4)
		}
		order, e.RowTime = nil, time.Second
		send(0, step(2, 4, 10)) // computing
		send(1, step(2, 4, 20)) // waits, and lets those go first that come now
		send(2, step(2, 4, 1))
		send(3, step(2, 4, 1))
		send(4, step(2, 4, 1))
		for i := range rs {
			expect(t, rs[i].get(), []int{14, 24, 5, 5, 5}[i])
		}
		if !slices.Equal(order, []int{10, 3, 20}) {
			t.Errorf("rows a Forward: %v, want the decodes together before the prefill that came first", order)
		}
		if e.MaxBatch() != 3 {
			t.Errorf("%d decodes in a batch", e.MaxBatch())
		}
	})
}

// TestBatchError: one item that fails does not fail its neighbours.
func TestBatchError(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		e := w.Peer("p").Engine
		var rs []*raw
		for i := range 3 {
			o := open()
			o.Session[0] = byte(i + 1)
			r, _ := ready(w, "head", "p", o)
			defer r.s.Close()
			a := step(1, 0, 4)
			a.Session[0] = byte(i + 1)
			r.send(a)
			expect(t, r.get(), 4)
			rs = append(rs, r)
		}
		hold := make(chan struct{})
		first := true
		e.Before = func(b []hop.Work) error {
			if first {
				first = false
				<-hold
			}
			for _, it := range b {
				x := make([]float32, hidden)
				hoptest.Embed([]int32{4}, x)
				if it.Rows == 1 && !slices.Equal(it.X, x) {
					return fmt.Errorf("an item that fails")
				}
			}
			return nil
		}
		for i, r := range rs {
			a := step(2, 4, 1)
			if i == 2 {
				a = step(2, 3, 1) // token 3 instead of 4
			}
			if i == 0 {
				a = step(2, 4, 2)
			}
			a.Session[0] = byte(i + 1)
			r.send(a)
			synctest.Wait()
		}
		close(hold)
		expect(t, rs[0].get(), 6)
		expect(t, rs[1].get(), 5)
		if c := rs[2].code(); c != wire.CodeInternal {
			t.Errorf("the item that fails: %v", c)
		}
	})
}

// TestDrain refuses who comes, tells who is there, and ends when they are gone.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		r, _ := ready(w, "head", "p", open())
		done := make(chan error)
		go func() { done <- w.Peer("p").Drain(20 * time.Second) }()
		if l, ok := r.get().(*wire.Leaving); !ok || l.Grace == 0 || l.Session != sid {
			t.Errorf("%+v", l)
		}
		o := open()
		o.Session[0] = 9
		late := dial(w, "head", "p", p2p.ActivationProtocol)
		late.send(o)
		if c := late.code(); c != wire.CodeDraining {
			t.Errorf("OPEN while draining: %v", c)
		}
		_ = late.s.Close()
		r.send(step(1, 0, 4)) // serves on
		expect(t, r.get(), 4)
		r.send(&wire.Close{Session: sid, Epoch: 1})
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = r.s.Close()
	})
}

// TestPause: a paused peer refuses who comes, tells who is there and serves them on; resumed, it is as before.
func TestPause(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		r, _ := ready(w, "head", "p", open())
		server := w.Peer("p").Server
		server.Pause()
		if l, ok := r.get().(*wire.Leaving); !ok || l.Grace == 0 || l.Session != sid {
			t.Errorf("%+v", l)
		}
		o := open()
		o.Session[0] = 9
		late := dial(w, "head", "p", p2p.ActivationProtocol)
		late.send(o)
		if c := late.code(); c != wire.CodeDraining {
			t.Errorf("OPEN while paused: %v", c)
		}
		_ = late.s.Close()
		r.send(step(1, 0, 4))
		expect(t, r.get(), 4)

		// Another hop of a session that is here may fail now: it goes on in a new epoch.
		next := open()
		next.Epoch++
		moved, held := ready(w, "head", "p", next)
		if held.Held != 4 {
			t.Errorf("the new epoch finds %d rows, want 4", held.Held)
		}
		_ = moved.s.Close()
		server.Resume()
		again, _ := ready(w, "head", "p", o)
		_ = again.s.Close()
		_ = r.s.Close()
	})
}

// TestHeadWithoutHeart: a head that opens a session and never beats loses it.
func TestHeadWithoutHeart(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		r := dial(w, "head", "p", p2p.ActivationProtocol)
		r.send(open())
		r.get()
		at := time.Now()
		if r.get() != nil || time.Since(at) > 9*time.Second {
			t.Errorf("the stream ended after %v", time.Since(at))
		}
		if !w.Forgotten(2 * time.Second) {
			t.Error("the session is kept")
		}
	})
}

// TestHeartbeat is answered; what is none ends the stream.
func TestHeartbeat(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		r := dial(w, "head", "p", p2p.HeartbeatProtocol)
		r.send(&wire.Ping{Nonce: 3})
		if p, ok := r.get().(*wire.Ping); !ok || !p.Reply || p.Nonce != 3 {
			t.Errorf("%+v", p)
		}
		r.send(open())
		if r.get() != nil {
			t.Error("an OPEN among heartbeats was answered")
		}
		_ = r.s.Close()
	})
}
