package hop_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

// slowDigest is docs/wire.md's chain, from the beginning.
func slowDigest(rows [][]byte) wire.Digest {
	d := sha256.Sum256([]byte("meshnet rows 1\n"))
	for _, r := range rows {
		d = sha256.Sum256(append(append([]byte(nil), d[:]...), r...))
	}
	return d
}

// digestOf is the chain of rows x hidden values as f32.
func digestOf(x []float32) wire.Digest {
	b := wire.Bytes(x)
	var rows [][]byte
	for ; len(b) > 0; b = b[4*hidden:] {
		rows = append(rows, b[:4*hidden])
	}
	return slowDigest(rows)
}

// TestChain: whatever is put, cut and put again, each digest is that of the rows
// that are left.
func TestChain(t *testing.T) {
	const row = 6
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		var c hop.Chain
		var rows [][]byte
		for range 60 {
			past, n := r.IntN(len(rows)+3), r.IntN(5)
			data := make([]byte, n*row)
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			switch {
			case r.IntN(6) == 0:
				c.Cut(past)
				rows = rows[:min(past, len(rows))]
			default:
				c.Put(past, data, row)
				if past <= len(rows) { // else a gap: nothing changes
					rows = rows[:past]
					for ; len(data) > 0; data = data[row:] {
						rows = append(rows, data[:row])
					}
				}
			}
			if c.Rows() != len(rows) {
				t.Fatalf("seed %d: %d rows are digested of %d", seed, c.Rows(), len(rows))
			}
			at := r.IntN(len(rows) + 1)
			if c.At(at) != slowDigest(rows[:at]) {
				t.Fatalf("seed %d: the digest after %d rows of %d is another", seed, at, len(rows))
			}
		}
	}
}

// TestStatement: the signed bytes, field by field.
func TestStatement(t *testing.T) {
	f := wire.Attested{Session: sid, Epoch: 9, Seq: 8, Start: 3, End: 7, Rows: 515, In: wire.Digest{1}, Out: wire.Digest{2}}
	var want bytes.Buffer
	want.WriteString("meshnet attest 1\n")
	for _, v := range []any{hoptest.Model, sid, uint32(3), uint32(7), byte(2), byte(3), uint32(515), f.In, f.Out} {
		if err := binary.Write(&want, binary.BigEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.Statement(hoptest.Model, wire.F16, wire.CacheQ8); !bytes.Equal(got, want.Bytes()) {
		t.Errorf("% x, want % x", got, want.Bytes())
	}
}

// TestAttest: two hops sign what went through them, in a chain and in a star, while
// steps go on.
func TestAttest(t *testing.T) {
	for _, star := range []bool{false, true} {
		pair(t, star, func(w *hoptest.World, c *hop.Circuit, next func()) {
			check := func(rows int) {
				t.Helper()
				for i, l := range [][2]int{{0, 4}, {4, 8}} {
					a, err := c.Attest(context.Background(), i, rows, hoptest.Verify)
					if err != nil {
						t.Fatal(err)
					}
					in, out := hoptest.Expect(count(rows), l[0], hidden, rows), hoptest.Expect(count(rows), l[1], hidden, rows)
					if a.In != digestOf(in) || a.Out != digestOf(out) {
						t.Errorf("star %v, hop %d, %d rows: another digest", star, i, rows)
					}
				}
			}
			check(40)
			check(1)
			next()
			check(41)
			_, err := c.Attest(context.Background(), 1, 42, hoptest.Verify)
			var e *hop.Error
			if !errors.As(err, &e) || e.Code != wire.CodeCacheMiss || e.Held != 41 {
				t.Errorf("more rows than there were: %v", err)
			}
			next()
			check(42)
		})
	}
}

// TestAttestFollows: rows that are taken back, computed again, or refilled count once,
// over epochs; rows of a stateless step not at all.
func TestAttestFollows(t *testing.T) {
	bubble(t, func(t *testing.T, w *hoptest.World) {
		o := open()
		r, _ := ready(w, "head", "p", o)
		attest := func(rows int) wire.Frame {
			r.send(&wire.Attest{Session: sid, Epoch: o.Epoch, Seq: 1<<31 + uint32(rows), Rows: uint32(rows)})
			return r.get()
		}
		check := func(rows int) {
			t.Helper()
			a, ok := attest(rows).(*wire.Attested)
			if !ok || a.Seq != 1<<31+uint32(rows) {
				t.Fatalf("%d rows: %+v", rows, a)
			}
			if a.In != digestOf(hoptest.Expect(count(rows), 0, hidden, rows)) || a.Out != digestOf(hoptest.Expect(count(rows), layers, hidden, rows)) {
				t.Errorf("%d rows: another digest", rows)
			}
			if e, _ := attest(rows + 1).(*wire.Error); e == nil || e.Code != wire.CodeCacheMiss || int(e.Held) != rows {
				t.Errorf("%d rows: one more is %+v", rows, e)
			}
		}
		send := func(a *wire.Activation) {
			t.Helper()
			a.Epoch = o.Epoch
			r.send(a)
			if _, ok := r.get().(*wire.Result); !ok {
				t.Fatal("the step was refused")
			}
		}
		send(step(1, 0, 9))
		check(9)
		send(step(1, 0, 9)) // answered from memory
		check(9)
		send(step(2, 4, 2)) // three are taken back
		check(6)
		_ = r.s.Reset()
		o.Epoch = 2
		r, _ = ready(w, "head", "p", o)
		check(6)
		bare := step(3, 0, 4)
		bare.Mode = wire.Stateless
		send(bare)
		check(6)
		w.Peer("p").Server.Evict("all")
		check(6) // what it signed before it may sign again
		send(fill(4, 0, 3))
		check(3)
		send(fill(5, 1, 6)) // two of them are there
		check(7)
		_ = r.s.Reset()
		o.Epoch, o.DType = 3, wire.F16
		r, _ = ready(w, "head", "p", o)
		defer r.s.Close()
		if e, _ := attest(1).(*wire.Error); e == nil || e.Code != wire.CodeCacheMiss || e.Held != 0 {
			t.Errorf("digests of f32 under f16: %+v", e)
		}
	})
}

// TestAttestLies: a digest that is not signed by the hop, or not of what was asked,
// is out.
func TestAttestLies(t *testing.T) {
	sign := func(f *wire.Attested, id p2p.PeerID) {
		f.Signature, _ = hoptest.Signer(id)(f.Statement(hoptest.Model, wire.F32, wire.DefaultCacheType))
	}
	for name, lie := range map[string]func(f *wire.Attested){
		"forged":                  func(f *wire.Attested) { f.Out[0]++ },
		"signed by another":       func(f *wire.Attested) { sign(f, "b") },
		"of another session":      func(f *wire.Attested) { f.Session[0]++; sign(f, "a"); f.Session[0]-- },
		"said of another":         func(f *wire.Attested) { f.Session[0]++; sign(f, "a") },
		"of fewer rows":           func(f *wire.Attested) { f.Rows--; sign(f, "a") },
		"of other layers":         func(f *wire.Attested) { f.Start++; sign(f, "a") },
		"not asked":               func(f *wire.Attested) { f.Seq++ },
		"of an epoch that is not": func(f *wire.Attested) { f.Epoch++ },
	} {
		t.Run(name, func(t *testing.T) {
			pair(t, false, func(w *hoptest.World, c *hop.Circuit, next func()) {
				w.Net.Fault(p2ptest.Fault{From: "a", To: "head", Kind: wire.KindAttested, Nth: 1, Edit: func(b []byte) []byte {
					f, _, err := wire.Parse(b)
					if err != nil {
						t.Error(err)
						return nil
					}
					lie(f.(*wire.Attested))
					out, err := wire.Append(nil, f)
					if err != nil {
						t.Error(err)
					}
					return out
				}})
				_, err := c.Attest(context.Background(), 0, 5, hoptest.Verify)
				var e *hop.Error
				if !errors.As(err, &e) || e.Code != wire.CodeBadFrame || e.Peer != "a" {
					t.Errorf("got %v, want BAD_FRAME of a", err)
				}
				if _, err := c.Kept(context.Background(), 0, 0, 1); err == nil {
					t.Error("a is still believed")
				}
			})
		})
	}
}

// TestAttestRefused: nobody but a session's head may ask, nor it too often at once.
func TestAttestRefused(t *testing.T) {
	pair(t, false, func(w *hoptest.World, c *hop.Circuit, next func()) {
		q := &wire.Attest{Session: sid, Epoch: 1, Seq: 1 << 31, Rows: 4}
		thief := dial(w, "thief", "a", p2p.ActivationProtocol)
		thief.send(q)
		if c := thief.code(); c != wire.CodeBadFrame {
			t.Errorf("ATTEST before OPEN: %v", c)
		}
		_ = thief.s.Reset()
		o := open()
		o.End = 4
		o.Session[0]++
		thief, _ = ready(w, "thief", "a", o)
		thief.send(q)
		if c := thief.code(); c != wire.CodeBadFrame {
			t.Errorf("ATTEST of another's session: %v", c)
		}
		_ = thief.s.Reset()
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
		link.send(&wire.Attest{Session: o.Session, Epoch: 1, Seq: 1 << 31, Rows: 1})
		if e, _ := mine.get().(*wire.Error); e == nil || e.Code != wire.CodeBadFrame || e.Peer != "a" {
			t.Errorf("ATTEST on a link: the head is told %+v", e)
		}
		_, _ = mine.s.Reset(), link.s.Reset()
		next()
	})
}

// TestAttestFlood: while a hop computes only so many ATTESTs wait; one more ends the
// session, and no other's.
func TestAttestFlood(t *testing.T) {
	for _, n := range []int{16, 17} {
		bubble(t, func(t *testing.T, w *hoptest.World) {
			w.Peer("p").Engine.RowTime = 100 * time.Millisecond
			r, _ := ready(w, "head", "p", open())
			defer r.s.Reset()
			o := open()
			o.Session[0] = 99
			other, _ := ready(w, "other", "p", o)
			defer other.s.Close()
			r.send(step(1, 0, 20))
			for i := range n {
				r.send(&wire.Attest{Session: sid, Epoch: 1, Seq: 1<<31 + uint32(i), Rows: 20})
			}
			time.Sleep(time.Second)
			switch f := r.get().(type) {
			case *wire.Result:
				for range n {
					if _, ok := r.get().(*wire.Attested); !ok || n > 16 {
						t.Fatalf("%d ATTESTs: answered %v", n, ok)
					}
				}
			case *wire.Error:
				if n <= 16 || f.Code != wire.CodeBadFrame {
					t.Errorf("%d ATTESTs: %v", n, f.Code)
				}
			}
			a := step(1, 0, 3)
			a.Session[0] = 99
			other.send(a)
			expect(t, other.get(), 3)
		})
	}
}
