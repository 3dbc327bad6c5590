package shard

import (
	"fmt"
	"os"
	"testing"
)

// BenchmarkModel measures the file that MESHNET_BENCH_MODEL names: prefills of 512
// tokens and decoding, of one session and of eight in a batch, at the start of a
// session and deep in it.
func BenchmarkModel(b *testing.B) {
	path := os.Getenv("MESHNET_BENCH_MODEL")
	if path == "" {
		b.Fatal("MESHNET_BENCH_MODEL names no model file")
	}
	m := open(b, path)
	layers := m.Info().Layers
	e := load(b, m, 0, layers, Options{})
	h := loadHead(b, m, Options{Pool: e.loader.pool})
	ids := make([]int32, 512)
	for i := range ids {
		ids[i] = int32((7919*i + 13) % m.Info().Vocab)
	}
	for _, depth := range []int{0, 4096} {
		b.Run(fmt.Sprintf("prefill512/depth=%d", depth), func(b *testing.B) {
			benchPrefill(b, e, h, ids, depth)
		})
		for _, sessions := range []int{1, 8} {
			b.Run(fmt.Sprintf("decode32/depth=%d/sessions=%d", depth, sessions), func(b *testing.B) {
				benchDecode(b, e, h, ids, depth, sessions)
			})
		}
	}
}

// benchPrefill measures 512 rows and the logits of the last, after depth others.
func benchPrefill(b *testing.B, e *Engine, h *Head, ids []int32, depth int) {
	s := filled(b, e, h, ids, depth)
	x, out := make([]float32, len(ids)*e.Hidden()), make([]float32, h.model.Vocab)
	for b.Loop() {
		s.Truncate(depth)
		if err := h.Embed(ids, x); err != nil {
			b.Fatal(err)
		}
		forward(b, e, Item{s, len(ids), x})
		if err := h.Logits(x[len(x)-e.Hidden():], 1, out); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(ids)*b.N)/b.Elapsed().Seconds(), "tok/s")
}

// benchDecode measures 32 steps of a batch of one token each of several
// sessions, each after depth others.
func benchDecode(b *testing.B, e *Engine, h *Head, ids []int32, depth, sessions int) {
	states := make([]*State, sessions)
	for i := range states {
		states[i] = filled(b, e, h, ids, depth)
	}
	n := e.Hidden()
	x, out := make([]float32, sessions*n), make([]float32, sessions*h.model.Vocab)
	batch := make([]Item, sessions)
	const steps = 32
	for b.Loop() {
		for _, s := range states {
			s.Truncate(depth)
		}
		for i := range steps {
			if err := h.Embed(ids[i:i+sessions], x); err != nil {
				b.Fatal(err)
			}
			for j, s := range states {
				batch[j] = Item{s, 1, x[j*n : (j+1)*n]}
			}
			forward(b, e, batch...)
			if err := h.Logits(x, sessions, out); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(steps*sessions*b.N)/b.Elapsed().Seconds(), "tok/s")
}

// filled is a session of depth tokens.
func filled(b *testing.B, e *Engine, h *Head, ids []int32, depth int) *State {
	b.Helper()
	start, end := e.Range()
	s := newState(b, e, start, end)
	for at := 0; at < depth; at += len(ids) {
		forward(b, e, Item{s, len(ids), embed(b, h, ids)})
	}
	return s
}
