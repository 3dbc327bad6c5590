package hop_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

// peak is the most goroutines and bytes of heap since it was made.
type peak struct {
	goroutines, wereGoroutines int
	heap, wasHeap              uint64
}

func newPeak() *peak {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return &peak{wereGoroutines: runtime.NumGoroutine(), wasHeap: m.HeapAlloc}
}

// look measures what lives now. It collects garbage first, so that what it measures
// does not depend on when that happens by itself.
func (p *peak) look() {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	p.goroutines = max(p.goroutines, runtime.NumGoroutine()-p.wereGoroutines)
	if m.HeapAlloc > p.wasHeap {
		p.heap = max(p.heap, m.HeapAlloc-p.wasHeap)
	}
}

// TestGarbageStreams: 100,000 streams that say nothing, half of something, or
// nonsense, from 500 peers. Few of them are held at a time, a head that is here is
// served all the while, and one that comes after them too.
func TestGarbageStreams(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		frame := func(f wire.Frame) []byte {
			b, err := wire.Append(nil, f)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		garbage := [][]byte{
			nil, nil, // silence is what costs most
			[]byte("GET / HTTP/1.1\r\n\r\n"),
			frame(open())[:20],
			{0xff, 0xff, 0xff, 0xff, 0x9d, 1},
			frame(step(1, 0, 3)),
			frame(&wire.Close{}),
			append([]byte{0, 0, 0x0f, 0xff}, slices.Repeat([]byte{0x91}, 4095)...),
		}
		o := open()
		o.MaxLen = 8000
		r, _ := ready(w, "head", "p", o)
		defer r.s.Close()
		r.send(step(1, 0, 4))
		expect(t, r.get(), 4)
		target, past := w.Dir.Peer("p"), 4
		most := newPeak()
		const streams, peers = 100_000, 500
		for i := range streams {
			bad := w.Net.Peer(p2p.PeerID(fmt.Sprint("bad ", i%peers)))
			proto := p2p.ActivationProtocol
			if i%10 == 9 {
				proto = p2p.HeartbeatProtocol
			}
			s, err := bad.Open(context.Background(), target, proto)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = s.Write(garbage[i/peers%len(garbage)])
			if i%10_000 == 0 {
				synctest.Wait()
				most.look()
				r.send(step(uint32(2+past), past, 1))
				past++
				expect(t, r.get(), past)
			}
		}
		synctest.Wait()
		most.look()
		t.Logf("%d streams of %d peers: at most %d goroutines and %d KiB more", streams, peers, most.goroutines, most.heap>>10)
		// 512 openings and 1024 heartbeats, each a goroutine here and one that waits to reset.
		if most.goroutines > 2*(512+1024)+50 {
			t.Errorf("%d goroutines for them", most.goroutines)
		}
		if most.heap > 64<<20 {
			t.Errorf("%d bytes for them", most.heap)
		}
		time.Sleep(10 * time.Second)
		other := open()
		other.Session[0] = 77
		n, _ := ready(w, "another head", "p", other)
		_ = n.s.Close()
		r.send(step(uint32(2+past), past, 1))
		expect(t, r.get(), past+1)
	})
}

// TestSlowFrame: a frame that has begun comes within a time, or the session ends; a
// head that is just slow is left alone.
func TestSlowFrame(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		o := open()
		o.MaxLen = 8000
		b, err := wire.Append(nil, step(1, 0, 7000))
		if err != nil {
			t.Fatal(err)
		}
		honest := open()
		honest.Session[0] = 50
		h, _ := ready(w, "head", "p", honest)
		defer h.s.Close()

		for name, tt := range map[string]struct {
			every time.Duration
			bytes int
			over  bool
		}{
			"a byte a second": {time.Second, 1, true},
			"40 KB a second":  {time.Second, 40_000, false},
		} {
			r, _ := ready(w, "slow", "p", o)
			at := time.Now()
			sent := 0
			for sent < len(b) && time.Since(at) < time.Minute {
				n, err := r.s.Write(b[sent:min(len(b), sent+tt.bytes)])
				if sent += n; err != nil {
					break
				}
				time.Sleep(tt.every)
			}
			d := time.Since(at)
			if over := sent < len(b); over != tt.over || tt.over && d > 20*time.Second {
				t.Errorf("%s: %d of %d bytes went in %v", name, sent, len(b), d)
			}
			_ = r.s.Reset()
			time.Sleep(2 * time.Second)
		}
		a := step(1, 0, 4)
		a.Session[0] = 50
		h.send(a)
		expect(t, h.get(), 4)
	})
}

// TestPrefillsTakeTurns: a head with eight long prompts leaves half of the engine to
// one with a single one.
func TestPrefillsTakeTurns(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		const chunks, hogs = 12, 8
		var computed atomic.Int64 // chunks
		w.Peer("p").Engine.Before = func([]hop.Work) error { computed.Add(1); return nil }
		w.Peer("p").Engine.RowTime = 10 * time.Millisecond
		send := func(r *raw, id byte, rows int) {
			for i := range chunks {
				a := step(uint32(i+1), i*rows, rows)
				a.Session[0], a.Deadline, a.Want = id, 1_000_000, 0
				r.send(a)
			}
		}
		o := open()
		o.MaxLen = 1000
		var rs []*raw
		for i := range hogs {
			o.Session[0] = byte(100 + i)
			r, _ := ready(w, "hog", "p", o)
			defer r.s.Reset()
			send(r, byte(100+i), 10)
			rs = append(rs, r)
		}
		time.Sleep(time.Second) // the engine is busy and all eight wait
		o.Session[0] = 50
		r, _ := ready(w, "modest", "p", o)
		defer r.s.Reset()
		before := computed.Load()
		send(r, 50, 11)
		for range chunks {
			if _, ok := r.get().(*wire.Result); !ok {
				t.Fatal("no answer")
			}
		}
		// While the modest head's 12 chunks were computed, the hog had 13 at most.
		if n := computed.Load() - before; n > 2*chunks+2 {
			t.Errorf("%d chunks of others came between %d", n-chunks, chunks)
		}
		for _, r := range rs {
			for range chunks {
				if _, ok := r.get().(*wire.Result); !ok {
					t.Fatal("the hog's answer is missing")
				}
			}
		}
	})
}

// openings is how many of n OPENs, each of a session of its own, are answered with
// READY; the sessions stay.
func openings(w *hoptest.World, from p2p.PeerID, first byte, n int) (ok int) {
	w.Beat(from, "p")
	for i := range n {
		r := dial(w, from, "p", p2p.ActivationProtocol)
		o := open()
		o.Session[0] = first + byte(i)
		r.send(o)
		switch f := r.get().(type) {
		case *wire.Ready:
			ok++
		case *wire.Error:
			if f.Code != wire.CodeBusy || f.Retry == 0 {
				w.T.Errorf("refused with %+v", f)
			}
			_ = r.s.Close()
		}
	}
	return ok
}

// end resets everything that the peers of these names have open.
func end(w *hoptest.World, ids ...p2p.PeerID) {
	for _, id := range ids {
		w.Net.Kill(id)
	}
}

// TestSessionsOfAnAddress: keys are free, addresses are not: the heads of one public
// address share 16 sessions, those of a private network do not count.
func TestSessionsOfAnAddress(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		at := func(id, ip string) p2p.PeerID {
			w.Net.Peer(p2p.PeerID(id)).Place(netip.MustParseAddr(ip))
			return p2p.PeerID(id)
		}
		got := 0
		for i := range 4 { // in one /64, which one customer has
			got += openings(w, at(fmt.Sprint("sybil ", i), fmt.Sprintf("2001:db8::%d", i+1)), byte(10*i), 8)
			time.Sleep(10 * time.Second)
		}
		if got != 16 {
			t.Errorf("one address has %d sessions, want 16", got)
		}
		if n := openings(w, at("elsewhere", "2001:db8:0:1::1"), 60, 4); n != 4 {
			t.Errorf("another address gets %d sessions of 4", n)
		}
		got = 0
		for i := range 4 {
			got += openings(w, at(fmt.Sprint("rack ", i), "10.1.2.3"), byte(100+10*i), 8)
		}
		if got != 32 {
			t.Errorf("a private network's address gets %d sessions of 32", got)
		}
		end(w, "elsewhere")
		for i := range 4 {
			end(w, p2p.PeerID(fmt.Sprint("sybil ", i)), p2p.PeerID(fmt.Sprint("rack ", i)))
		}
		// Ever new keys that leave again: no more than 16 and 2 a second for the address.
		time.Sleep(10 * time.Second)
		got = 0
		at0 := time.Now()
		for i := range 10 {
			id := at(fmt.Sprint("fresh ", i), fmt.Sprintf("2001:db8::1:%d", i+1))
			got += openings(w, id, byte(150+10*i), 8)
			end(w, id)
			time.Sleep(2 * time.Second)
		}
		if most := 16 + int(2*time.Since(at0).Seconds()); got < 16 || got > most {
			t.Errorf("%d sessions of new keys, want 16 to %d", got, most)
		}
	})
}

// TestSessionsOfAll: the sum is bounded too, and falls again.
func TestSessionsOfAll(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		got := 0
		var ids []p2p.PeerID
		for i := range 12 {
			ids = append(ids, p2p.PeerID(fmt.Sprint("head ", i)))
			got += openings(w, ids[i], byte(10*i), 8)
		}
		if got != 64 {
			t.Errorf("%d sessions are open, want 64", got)
		}
		end(w, ids...)
		time.Sleep(5 * time.Second)
		if n := openings(w, "late", 200, 2); n != 2 {
			t.Errorf("%d of 2 when the others are gone", n)
		}
		end(w, "late")
	})
}

// TestParkedLinks: a peer's links without a session don't keep others out.
func TestParkedLinks(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		w.Join("q", 4, layers)
		link := func(from p2p.PeerID, id byte) *raw {
			r := dial(w, from, "q", p2p.ActivationProtocol)
			o := open()
			o.Session[0], o.Role, o.End = id, wire.RoleLink, 4
			r.send(o)
			return r
		}
		var all []*raw
		for i := range 40 {
			all = append(all, link("flood", byte(i)))
		}
		busy := 0 // which of them is chance
		for _, r := range all {
			_ = r.s.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			f, _ := r.r.ReadFrame()
			if e, ok := f.(*wire.Error); ok && e.Code == wire.CodeBusy {
				busy++
			}
		}
		if busy != 24 {
			t.Errorf("%d of 40 links are refused, want 24", busy)
		}
		early := link("prev", 200) // while the others wait
		o := open()
		o.Session[0], o.Start, o.Prev = 200, 4, "prev"
		head, _ := ready(w, "head", "q", o)
		if _, ok := early.get().(*wire.Ready); !ok {
			t.Error("an honest link is kept out")
		}
		for _, r := range append(all, early, head) {
			_ = r.s.Reset()
		}
	})
}

// TestHeartbeatFlood: a peer has a few heartbeat streams, and others have theirs.
func TestHeartbeatFlood(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		alive := 0
		beat := func(from p2p.PeerID) *raw {
			r := dial(w, from, "p", p2p.HeartbeatProtocol)
			_, _ = wire.WriteFrame(r.s, &wire.Ping{Nonce: 1})
			if r.get() != nil {
				alive++
			}
			return r
		}
		var all []*raw
		for range 100 {
			all = append(all, beat("flood"))
		}
		if alive != 16 {
			t.Errorf("%d heartbeat streams of one peer, want 16", alive)
		}
		all = append(all, beat("head"))
		if alive != 17 {
			t.Error("another peer is kept out")
		}
		for _, r := range all {
			_ = r.s.Reset()
		}
	})
}

// TestIdleSession: a head that beats and asks for nothing does not keep its place.
func TestIdleSession(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		r, _ := ready(w, "head", "p", open())
		r.send(step(1, 0, 4))
		expect(t, r.get(), 4)
		time.Sleep(15 * time.Minute)
		r.send(step(2, 0, 4)) // its cache is gone; its place is not
		expect(t, r.get(), 4)
		at := time.Now()
		for len(w.Peer("p").Server.Sessions()) > 0 && time.Since(at) < time.Hour {
			time.Sleep(time.Second)
		}
		if d := time.Since(at); d < 19*time.Minute || d > 21*time.Minute {
			t.Errorf("an idle session ended after %v, want 20 minutes", d)
		}
		_ = r.s.Close()
	})
}

// TestForeignWords: who has a session of its own can't touch another's through it,
// whatever it knows of that.
func TestForeignWords(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		r, _ := ready(w, "head", "p", open())
		defer r.s.Close()
		r.send(step(1, 0, 4))
		expect(t, r.get(), 4)
		for name, f := range map[string]wire.Frame{
			"CLOSE":   &wire.Close{Session: sid, Epoch: 1},
			"READY":   &wire.Ready{Session: sid, Epoch: 1},
			"LEAVING": &wire.Leaving{Session: sid, Epoch: 1},
			"ERROR":   &wire.Error{Session: sid, Epoch: 1, Code: wire.CodeInternal},
			"RESULT":  &wire.Result{Session: sid, Epoch: 1, Seq: 1, Rows: 1, DType: wire.F32, Hidden: hidden, Payload: make([]byte, 4*hidden)},
			"OPEN":    open(),
			"RESEND":  &wire.Resend{Session: sid, Epoch: 1, Seq: 2, Rows: 4, Back: true},
			"ATTEST":  &wire.Attest{Session: sid, Epoch: 1, Seq: 1 << 31, Rows: 4},
			"CREDIT":  &wire.Credit{Session: sid, Epoch: 1, Bytes: 1 << 30},
			"STEP":    step(2, 4, 1),
			"PING":    &wire.Ping{Session: sid, Epoch: 1, Nonce: 1},
		} {
			o := open()
			o.Session[0] = 99
			thief, _ := ready(w, "thief", "p", o)
			thief.send(f)
			if p, ok := thief.get().(*wire.Ping); ok && (p.Rows != 0 || p.Session != o.Session) {
				t.Errorf("a PING about another's session tells %+v", p)
			}
			_ = thief.s.Reset()
			time.Sleep(3 * time.Second)
			if got := w.Peer("p").Server.Sessions(); len(got) != 1 || got[0].Rows != 4 {
				t.Errorf("%s: the sessions are %+v", name, got)
			}
		}
		r.send(step(2, 4, 1))
		expect(t, r.get(), 5)
	})
}

// TestHalfAStep: what fails in the middle of a step leaves the state as it was; the
// same rows again are applied once.
func TestHalfAStep(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		e := w.Peer("p").Engine
		r, _ := ready(w, "head", "p", open())
		defer r.s.Close()
		r.send(step(1, 0, 4))
		expect(t, r.get(), 4)
		var fails atomic.Bool
		e.Before = func([]hop.Work) error {
			if fails.Swap(false) {
				return errors.New("out of memory, say")
			}
			return nil
		}
		fails.Store(true)
		r.send(step(2, 4, 3))
		if c := r.code(); c != wire.CodeInternal {
			t.Errorf("a step that failed was answered with %v", c)
		}
		if rows := w.Peer("p").Cache.Stats().Rows; len(rows) != 1 || rows[0].Len != 4 {
			t.Errorf("the cache is %+v after it", rows)
		}
		r.send(step(3, 4, 3))
		expect(t, r.get(), 7)
		r.send(step(3, 4, 3)) // a duplicate
		expect(t, r.get(), 7)
		r.send(step(2, 4, 3)) // the failed one, late
		if c := r.code(); c != wire.CodeBadFrame {
			t.Errorf("a late frame was answered with %v", c)
		}
		r.send(step(4, 7, 1))
		expect(t, r.get(), 8)
	})
}

// TestDayOfHeads: 10,000 heads come, are served, and close, vanish or hang up. In the
// end nothing of them is left.
func TestDayOfHeads(t *testing.T) {
	heads := 10_000
	if testing.Short() {
		heads = 1000
	}
	bubble(t, func(t *testing.T, w *hoptest.World) {
		target := w.Dir.Peer("p")
		time.Sleep(time.Minute)
		before := runtime.NumGoroutine()
		for i := range heads {
			id := p2p.PeerID(fmt.Sprint("head ", i))
			head := w.Net.Peer(id)
			head.Place(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}))
			beat, err := head.Open(context.Background(), target, p2p.HeartbeatProtocol)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = wire.WriteFrame(beat, &wire.Ping{Nonce: 1})
			r := dial(w, id, "p", p2p.ActivationProtocol)
			o := open()
			o.Session[3], o.Session[4] = byte(i), byte(i>>8)
			r.send(o)
			if _, ok := r.get().(*wire.Ready); !ok {
				t.Fatalf("head %d is refused", i)
			}
			a := step(1, 0, 4)
			a.Session = o.Session
			r.send(a)
			expect(t, r.get(), 4)
			switch i % 3 {
			case 0:
				r.send(&wire.Close{Session: o.Session, Epoch: 1})
				_, _ = r.s.Close(), beat.Close()
			case 1:
				w.Net.Kill(id)
			case 2:
				_, _ = r.s.Reset(), beat.Reset()
			}
			time.Sleep(8640 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := runtime.NumGoroutine(); n > before+10 { // the runtime starts some of its own
			t.Errorf("%d goroutines, before %d", n, before)
		}
		p := w.Peer("p")
		if n, s := len(p.Server.Sessions()), p.Cache.Stats(); n != 0 || s.Sessions != 0 || s.Bytes != 0 || p.Engine.Open() != 0 {
			t.Errorf("%d sessions, %d entries of %d bytes, %d states are left", n, s.Sessions, s.Bytes, p.Engine.Open())
		}
	})
}
