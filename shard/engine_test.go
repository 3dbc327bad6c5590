package shard

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/meshnet/shard/pool"
	"github.com/meshnet/meshnet/shard/vec"
)

func tinyEngine(t *testing.T, start, end int) (*Model, *Engine) {
	t.Helper()
	m := open(t, tinyFile(t))
	return m, load(t, m, start, end, Options{Threads: 2})
}

// rows is n rows of a tiny model that no two calls of a test share.
func rows(e *Engine, n int, seed float64) []float32 {
	x := make([]float32, n*e.Hidden())
	for i := range x {
		x[i] = float32(math.Sin(seed + float64(i)*0.7))
	}
	return x
}

func TestForwardRefusesAndLeavesStatesAlone(t *testing.T) {
	m, e := tinyEngine(t, 2, 6)
	other := load(t, m, 2, 6, Options{Threads: 1})
	h := e.Hidden()
	good, closed := newState(t, e, 2, 6), newState(t, e, 2, 6)
	feed(t, e, good, rows(e, 70, 0), 70)
	closed.Close()
	bad := func(value float64) []float32 {
		x := rows(e, 3, 1)
		x[h+5] = float32(value)
		return x
	}
	first := Item{newState(t, e, 2, 6), 100, rows(e, 100, 2)}
	want := func(x []float32) string { // what the good state answers when nothing went wrong
		t.Helper()
		forward(t, e, Item{good, 1, x})
		good.Truncate(70)
		return hash(x)
	}
	before := want(rows(e, 1, 9))
	for _, c := range []struct {
		name string
		item Item
		says string
	}{
		{"no state", Item{nil, 1, rows(e, 1, 3)}, "not of this engine"},
		{"another engine's state", Item{newState(t, other, 2, 6), 1, rows(e, 1, 3)}, "not of this engine"},
		{"closed", Item{closed, 1, rows(e, 1, 3)}, "closed"},
		{"twice", Item{first.State, 1, rows(e, 1, 3)}, "twice"},
		{"no rows", Item{good, 0, nil}, "0 rows"},
		{"negative rows", Item{good, -1, nil}, "-1 rows"},
		{"short", Item{good, 2, make([]float32, 2*h-1)}, "want 2 rows"},
		{"long", Item{good, 2, make([]float32, 2*h+1)}, "want 2 rows"},
		{"NaN", Item{good, 3, bad(math.NaN())}, "not finite at row 1, value 5"},
		{"infinity", Item{good, 3, bad(math.Inf(-1))}, "not finite at row 1, value 5"},
		{"beyond the context", Item{good, 8192 - 69, nil}, "beyond the model's context of 8192"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := e.Forward(context.Background(), []Item{first, c.item})
			var at *ItemError
			if !errors.As(err, &at) || at.Item != 1 || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %v, want item 1: %q", err, c.says)
			}
			if first.State.Len() != 0 || first.State.Bytes() != 0 || good.Len() != 70 {
				t.Errorf("states grew to %d and %d", first.State.Len(), good.Len())
			}
			if got := want(rows(e, 1, 9)); got != before {
				t.Error("the session continues differently after the error")
			}
		})
	}
}

// endsAfter is a context that is over at the nth look.
type endsAfter struct {
	context.Context
	n int
}

func (c *endsAfter) Err() error {
	if c.n--; c.n < 0 {
		return context.Canceled
	}
	return nil
}

func TestForwardCanBeCancelledInTheMiddle(t *testing.T) {
	_, e := tinyEngine(t, 0, 8)
	s := newState(t, e, 0, 8)
	feed(t, e, s, rows(e, 5, 0), 5)
	for n := range 8 + 3 { // 8 layers, and into a second pass
		err := e.Forward(&endsAfter{context.Background(), n}, []Item{{s, 600, rows(e, 600, 1)}})
		if !errors.Is(err, context.Canceled) || s.Len() != 5 {
			t.Fatalf("after %d looks: %v, %d positions held, want context canceled and 5", n, err, s.Len())
		}
	}
	x := rows(e, 600, 1)
	forward(t, e, Item{s, 600, x})
	fresh, y := newState(t, e, 0, 8), append(rows(e, 5, 0), rows(e, 600, 1)...)
	feed(t, e, fresh, y, 605)
	if hash(x) != hash(y[5*e.Hidden():]) {
		t.Error("the session continues differently after a cancelled step")
	}
}

func TestStateCountsItsMemory(t *testing.T) {
	_, e := tinyEngine(t, 1, 5)
	// Beside the layers, keys and values, and heads: bytes of 32 values.
	for c, bytes := range map[CacheType]int64{CacheF16: 2 * 32, CacheQ8: 32 + 4} {
		s := newCache(t, e, 2, 5, c)
		feed(t, e, s, rows(e, 65, 0), 512)
		if want := 128 * 3 * 2 * 2 * bytes; s.Bytes() != want || e.StateBytes(2, 5, c, 65) != want {
			t.Errorf("%v: %d bytes, planned %d, want %d", c, s.Bytes(), e.StateBytes(2, 5, c, 65), want)
		}
	}
	s := newState(t, e, 2, 5)
	perPosition := int64(3 * 2 * 2 * 32 * 4) // layers, k and v, heads, values, bytes
	for _, c := range []struct{ n, positions int }{{1, 64}, {63, 64}, {64, 64}, {65, 128}, {200, 256}} {
		feed(t, e, s, rows(e, c.n-s.Len(), 0), 512)
		want := int64(c.positions) * perPosition
		if s.Len() != c.n || s.Bytes() != want || e.StateBytes(2, 5, CacheF32, c.n) != want {
			t.Errorf("%d positions: %d bytes, planned %d, want %d", s.Len(), s.Bytes(), e.StateBytes(2, 5, CacheF32, c.n), want)
		}
	}
	if s.Truncate(201) || s.Truncate(-1) || s.Len() != 200 {
		t.Error("a state was cut to more than it holds")
	}
	if !s.Truncate(64) || s.Bytes() != 64*perPosition {
		t.Errorf("after a cut to 64: %d bytes", s.Bytes())
	}
	s.Close()
	if s.Bytes() != 0 || s.Truncate(0) {
		t.Error("a closed state holds memory, or can be cut")
	}
	if vec.Chunk != 64 {
		t.Error("this test assumes chunks of 64")
	}
}

func TestRangesAreChecked(t *testing.T) {
	m, e := tinyEngine(t, 2, 6)
	for _, r := range [][2]int{{1, 6}, {2, 7}, {3, 3}, {4, 3}, {-1, 3}} {
		if _, err := e.NewState(r[0], r[1], CacheF32); err == nil {
			t.Errorf("a state of [%d, %d) in an engine of [2, 6)", r[0], r[1])
		}
		if n := e.StateBytes(r[0], r[1], CacheF32, 100); n != 0 {
			t.Errorf("StateBytes(%d, %d) is %d", r[0], r[1], n)
		}
	}
	for _, c := range []CacheType{0, 4, 255} {
		if _, err := e.NewState(2, 3, c); err == nil || e.StateBytes(2, 3, c, 100) != 0 {
			t.Errorf("a state of %v, err %v", c, err)
		}
	}
	for _, r := range [][2]int{{-1, 3}, {0, 9}, {5, 5}, {6, 5}} {
		if _, err := m.LoadRange(r[0], r[1], Options{}); err == nil || !strings.Contains(err.Error(), "[0, 8)") {
			t.Errorf("loading [%d, %d): %v", r[0], r[1], err)
		}
	}
	if _, err := m.LoadRange(0, 1, Options{CPU: "abacus"}); err == nil {
		t.Error("an unknown kernel set was accepted")
	}
	e.Close()
	e.Close() // harmless
	if err := e.Forward(context.Background(), nil); err == nil {
		t.Error("a closed engine computed")
	}
}

func TestHeadChecksItsInput(t *testing.T) {
	m := open(t, tinyFile(t))
	h := loadHead(t, m, Options{Threads: 1})
	n, vocab := m.Info().Hidden, m.Info().Vocab
	x := make([]float32, n)
	for name, err := range map[string]error{
		"id below":    h.Embed([]int32{-1}, x),
		"id above":    h.Embed([]int32{int32(vocab)}, x),
		"embed room":  h.Embed([]int32{1, 2}, x),
		"logits room": h.Logits(x, 1, make([]float32, vocab-1)),
		"logits rows": h.Logits(x, 0, nil),
		"logits NaN":  h.Logits(append(x[:n-1:n-1], float32(math.NaN())), 1, make([]float32, vocab)),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	before := rows(&Engine{model: m.Info()}, 3, 1)
	x = clone(before)
	out := logits(t, h, x)
	if hash(x) != hash(before) {
		t.Error("Logits changed its input")
	}
	if one := logits(t, h, x[n:2*n]); hash(one) != hash(out[vocab:2*vocab]) {
		t.Error("a row's logits depend on the rows beside it")
	}
}

// An engine and a head may share a pool and be used at once.
func TestSharedPool(t *testing.T) {
	m := open(t, tinyFile(t))
	p := pool.New(2)
	defer p.Close()
	e, h := load(t, m, 0, 8, Options{Pool: p}), loadHead(t, m, Options{Pool: p})
	done := make(chan string)
	go func() {
		last := ""
		for range 20 {
			last = hash(logits(t, h, rows(e, 30, 4)))
		}
		done <- last
	}()
	a := ""
	for range 20 {
		x := rows(e, 30, 5)
		feed(t, e, newState(t, e, 0, 8), x, 30)
		if a == "" {
			a = hash(x)
		}
		if hash(x) != a {
			t.Error("the engine's output changed while the head worked")
		}
	}
	select {
	case got := <-done:
		if want := hash(logits(t, h, rows(e, 30, 4))); got != want {
			t.Error("the head's output changed while the engine worked")
		}
	case <-time.After(time.Minute):
		t.Fatal("the head does not come back")
	}
}

func TestProgressReachesTheTotal(t *testing.T) {
	m := open(t, tinyFile(t))
	var last, total int64
	o := Options{Threads: 1, Progress: func(done, all int64) {
		if done <= last || done > all {
			t.Errorf("progress went from %d to %d of %d", last, done, all)
		}
		last, total = done, all
	}}
	load(t, m, 3, 5, o)
	if want := m.Info().LayerBytes[3] + m.Info().LayerBytes[4]; last != want || total != want {
		t.Errorf("layers: progress ended at %d of %d, want %d", last, total, want)
	}
	last = 0
	loadHead(t, m, o)
	if want := m.Info().OutputBytes; last != want {
		t.Errorf("head: progress ended at %d, want %d", last, want)
	}
}

func TestOpenRefuses(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "none.gguf")); err == nil {
		t.Error("a missing file was opened")
	}
	whole, err := os.ReadFile(tinyFile(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cut.gguf")
	for _, n := range []int{0, 3, 100, 5000, len(whole) / 2, len(whole) - 1} {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); err == nil {
			t.Errorf("a file cut to %d of %d bytes was opened", n, len(whole))
		}
	}
}
