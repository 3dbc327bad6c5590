package hop_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

// FuzzSession sends anything at all after a good OPEN, as head or as link: the peer
// must live, answer the next head rightly, and keep nothing of the first.
func FuzzSession(f *testing.F) {
	frame := func(fr wire.Frame) []byte {
		b, err := wire.Append(nil, fr)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	good := frame(step(1, 0, 3))
	f.Add([]byte{}, false)
	f.Add(good, false)
	f.Add(good, true)
	f.Add(append(append([]byte{}, good...), frame(step(2, 3, 1))...), false)
	f.Add(good[:len(good)-5], false)
	f.Add(append(frame(&wire.Ping{Session: sid, Epoch: 1, Nonce: 1}), good...), true)
	f.Add(frame(&wire.Close{Session: sid, Epoch: 1}), true)
	f.Add(frame(&wire.Credit{Session: sid, Epoch: 1, Bytes: 0xffffffff}), false)
	f.Add(frame(&wire.Error{Session: sid, Epoch: 1, Code: wire.CodeInternal}), false)
	f.Add(frame(open()), false)
	resend := &wire.Resend{Session: sid, Epoch: 1, Seq: 9, Rows: 3, Deadline: 1000}
	f.Add(frame(resend), false)
	f.Add(frame(resend), true)
	f.Add(append(append([]byte{}, good...), frame(&wire.Attest{Session: sid, Epoch: 1, Seq: 1 << 31, Rows: 3})...), false)
	f.Add(frame(&wire.Attest{Session: sid, Epoch: 1, Seq: 1 << 31, Rows: 3}), true)
	fill := step(9, 0, 3)
	fill.Mode, fill.Want = wire.Refill, 0
	f.Add(frame(fill), false)
	f.Add(append(frame(fill), good...), true)
	f.Fuzz(func(t *testing.T, data []byte, link bool) {
		synctest.Test(t, func(t *testing.T) {
			w := hoptest.NewWorld(t, layers, hidden)
			defer w.Close()
			w.Join("p", 0, layers)
			w.Join("q", 4, layers)
			to := p2p.PeerID("p")
			o := open()
			if link {
				to, o.Start, o.Prev = "q", 4, "prev"
			}
			r, _ := ready(w, "head", to, o)
			victim := r
			if link {
				l := open()
				l.Role, l.End = wire.RoleLink, 4
				victim, _ = ready(w, "prev", "q", l)
				defer victim.s.Reset()
			}
			_ = victim.s.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = victim.s.Write(data)
			time.Sleep(time.Second)
			_ = victim.s.Reset()
			_ = r.s.Reset()
			if !w.Forgotten(3 * time.Second) {
				t.Error("the session is kept")
			}
			next := open()
			next.Session[0] = 200
			n, _ := ready(w, "another", "p", next)
			a := step(1, 0, 5)
			a.Session[0] = 200
			n.send(a)
			expect(t, n.get(), 5)
			_ = n.s.Close()
		})
	})
}
