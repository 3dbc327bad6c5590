package tensor

import (
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
)

// Matrices of an arena neither touch one another nor lose their memory before they are closed, in whatever order.
func TestArena(t *testing.T) {
	p := pool.New(1)
	var a Arena
	const rows, cols = 100, 256
	x := randomActs(1, cols, 1)
	var ms []*Matrix
	var want [][]float32
	pack := func(i int) {
		ts := randomTensor(gguf.Q8_0, rows+i, cols, uint64(i))
		m, err := packFused(&a, generic(), p, ts)
		if err != nil {
			t.Fatal(err)
		}
		alone, err := packFused(nil, generic(), p, ts)
		if err != nil {
			t.Fatal(err)
		}
		defer alone.Close()
		out := make([]float32, rows+i)
		alone.Mul(p, x, 1, out, new(Scratch))
		ms, want = append(ms, m), append(want, out)
	}
	check := func() {
		t.Helper()
		for i, m := range ms {
			if m.data != nil {
				out := make([]float32, rows+i)
				m.Mul(p, x, 1, out, new(Scratch))
				bitsEqual(t, "in an arena", out, want[i])
			}
		}
	}
	for i := range 4 {
		pack(i)
	}
	check()
	ms[3].Close()
	ms[0].Close()
	pack(4)
	check()
	for _, i := range []int{1, 4, 2} {
		ms[i].Close()
		check()
	}
	pack(5) // after the mapping is gone
	check()
	ms[5].Close()
	if a.last != nil {
		t.Error("the arena keeps a mapping with no matrix in it")
	}
}

func TestArenaLargerThanAMapping(t *testing.T) {
	var a Arena
	small, free, err := a.alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	large, freeLarge, err := a.alloc(arenaBytes + 1)
	if err != nil {
		t.Fatal(err)
	}
	small[99], large[arenaBytes] = 1, 1
	freeLarge()
	free()
}
