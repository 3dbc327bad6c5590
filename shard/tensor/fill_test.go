package tensor

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
)

// noise is a panel's rows of random bytes, finite or not.
func noise(rng *rand.Rand, typ gguf.Type, rows, cols int) *[panelRows][]byte {
	var raw [panelRows][]byte
	for r := range rows {
		b := make([]byte, cols/typ.BlockSize()*typ.BlockBytes())
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		raw[r] = b
	}
	return &raw
}

// The short ways of packing write what the long one writes, for all rows up to a bad one, and call the same values bad.
func TestFillIsFillRow(t *testing.T) {
	for _, ft := range formTypes {
		f := &forms[ft.form]
		t.Run(ft.typ.String(), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(7, uint64(f.id)))
			finite, bad := 0, 0
			for try := range 400 {
				cols := max(f.unit, 4) * (1 + try%3)
				rows := noise(rng, ft.typ, 1+rng.IntN(panelRows), cols)
				good := func() bool { // what the long way says of all of them
					ok := true
					for r, raw := range rows {
						for raw != nil && f.fillRow(make([]byte, f.panelBytes(cols)), r, raw, cols) >= 0 {
							ok = false
							if try%2 == 0 {
								break
							}
							*rows = func() [panelRows][]byte { // make the row finite by taking another
								next := *rows
								next[r] = noise(rng, ft.typ, 1, cols)[0]
								return next
							}()
							raw = rows[r]
						}
					}
					return ok || try%2 == 1
				}()
				got, want := make([]byte, f.panelBytes(cols)), make([]byte, f.panelBytes(cols))
				_, at := f.fill(got, rows, cols)
				if (at < 0) != good {
					t.Fatalf("try %d: not finite at column %d, the long way says %v", try, at, good)
				}
				if !good {
					bad++
					continue
				}
				finite++
				for r, raw := range rows {
					if raw != nil {
						f.fillRow(want, r, raw, cols)
					}
				}
				if !bytes.Equal(got, want) {
					t.Fatalf("try %d: %d columns are packed in another way", try, cols)
				}
			}
			if finite < 100 || bad < 10 && f.id != formQ8 && f.id != formF32 {
				t.Errorf("only %d finite and %d bad panels were tried", finite, bad)
			}
		})
	}
}

// spreadBits against its definition.
func TestSpreadBits(t *testing.T) {
	for i := range 32 {
		if got, want := spreadBits(1<<i), uint32(1)<<(i%4*8+i/4); got != want {
			t.Errorf("bit %d goes to %#x, want %#x", i, got, want)
		}
	}
}

// Fill tells of every byte of the file once, however it cuts the work.
func TestFillReleasesEverything(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	a := &gguf.Tensor{Name: "a", Type: gguf.Q8_0, Dims: []uint64{4096, 3000}, Data: make([]byte, 4096/32*34*3000)}
	b := &gguf.Tensor{Name: "b", Type: gguf.Q8_0, Dims: []uint64{4096, 70}, Data: make([]byte, 4096/32*34*70)}
	m, err := LayFor("", a, b)
	if err != nil {
		t.Fatal(err)
	}
	arena, err := NewArena(m.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	m.Place(arena.Take(m.Bytes()))
	left := map[string]int{"a": len(a.Data), "b": len(b.Data)}
	calls := 0
	if err := Fill(p, []*Matrix{m}, func(t *gguf.Tensor, part []byte) { left[t.Name] -= len(part); calls++ }); err != nil {
		t.Fatal(err)
	}
	if left["a"] != 0 || left["b"] != 0 || calls < 3 {
		t.Errorf("bytes left %v after %d calls", left, calls)
	}
}

// Layout tells types and forms apart, and is the same each time.
func TestLayout(t *testing.T) {
	seen := map[[32]byte]gguf.Type{}
	for _, ft := range formTypes {
		a, err := Layout(ft.typ)
		b, _ := Layout(ft.typ)
		if err != nil || a != b {
			t.Fatal(ft.typ, err)
		}
		if other, ok := seen[a]; ok {
			t.Errorf("%s and %s have one layout", ft.typ, other)
		}
		seen[a] = ft.typ
	}
	if _, err := Layout(gguf.Type(99)); err == nil {
		t.Error("an unknown type has a layout")
	}
}
