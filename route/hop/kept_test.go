package hop

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/meshnet/meshnet/p2p/wire"
)

// TestKeptTwin: over random puts of several sessions, what is given is what a plain
// slice would give, and the bytes stay within both bounds.
func TestKeptTwin(t *testing.T) {
	const row, block = 12, keepBlock / 12 * 12
	const session, total = 3 * block, 5 * block
	k := newKeeper(session, total, 0)
	rng := rand.New(rand.NewPCG(1, 2))
	twin := map[byte][]byte{}
	open := func(id byte) *kept {
		return k.of(&wire.Open{Session: wire.SessionID{id}, End: 3, DType: wire.F32, Hidden: 3})
	}
	for range 3000 {
		id := byte(rng.IntN(3))
		e, plain := open(id), twin[id]
		past, n := rng.IntN(len(plain)/row+2), 1+rng.IntN(1500)
		if rng.IntN(3) > 0 {
			past = len(plain) / row
		}
		data := make([]byte, n*row)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		e.put(past, data)
		want := []byte(nil)
		if past*row <= len(plain) {
			want = append(plain[:past*row:past*row], data...)
		}
		used := 0 // in whole blocks; each session by itself and with the others
		for other, rows := range twin {
			if other != id {
				used += (len(rows) + block - 1) / block * block
			}
		}
		if own := (len(want) + block - 1) / block * block; own > session || own > (len(plain)+block-1)/block*block && used+own > total {
			want = nil
		}
		twin[id] = want
		if e.rows != len(want)/row {
			t.Fatalf("%d rows are kept, want %d", e.rows, len(want)/row)
		}
		if len(want) > session {
			t.Fatal("over the session's bound")
		}
		if len(want) > 0 {
			from := rng.IntN(e.rows)
			m := 1 + rng.IntN(e.rows-from)
			if got, _ := e.get(from, m); !bytes.Equal(got, want[from*row:(from+m)*row]) {
				t.Fatalf("rows %d to %d differ", from, from+m)
			}
		}
		if k.bytes() > total {
			t.Fatalf("%d bytes are kept of at most %d", k.bytes(), total)
		}
		if rng.IntN(50) == 0 {
			k.forget(wire.SessionID{id})
			e.put(0, data) // of a session that is over
			delete(twin, id)
		}
	}
	old := open(0)
	if k.of(&wire.Open{Session: wire.SessionID{0}, End: 4, DType: wire.F32, Hidden: 3}) == old {
		t.Error("rows of another layer were taken over")
	}
	for id := range byte(3) {
		k.forget(wire.SessionID{id})
	}
	if k.bytes() != 0 {
		t.Errorf("%d bytes are left", k.bytes())
	}
}
