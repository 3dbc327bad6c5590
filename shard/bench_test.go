package shard

import (
	"fmt"
	"os"
	"testing"
)

// BenchmarkModel measures the file that MESHNET_BENCH_MODEL names: a prefill of
// 512 tokens into an empty session, and single tokens after that.
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
	out := make([]float32, m.Info().Vocab)
	x := embed(b, h, ids)
	b.Run("prefill512", func(b *testing.B) {
		for b.Loop() {
			s := newState(b, e, 0, layers)
			if err := h.Embed(ids, x); err != nil {
				b.Fatal(err)
			}
			forward(b, e, Item{s, 512, x})
			if err := h.Logits(x[len(x)-e.Hidden():], 1, out); err != nil {
				b.Fatal(err)
			}
			s.Close()
		}
		b.ReportMetric(512*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
	})
	for _, depth := range []int{0, 1024} {
		b.Run(fmt.Sprintf("decode128/depth=%d", depth), func(b *testing.B) {
			benchDecode(b, e, h, ids, depth)
		})
	}
}

// benchDecode measures steps of one token after depth others.
func benchDecode(b *testing.B, e *Engine, h *Head, ids []int32, depth int) {
	start, end := e.Range()
	s := newState(b, e, start, end)
	for at := 0; at < depth; at += len(ids) {
		forward(b, e, Item{s, len(ids), embed(b, h, ids)})
	}
	x, out := make([]float32, e.Hidden()), make([]float32, h.model.Vocab)
	for b.Loop() {
		s.Truncate(depth)
		for i := range 128 {
			if err := h.Embed(ids[i:i+1], x); err != nil {
				b.Fatal(err)
			}
			forward(b, e, Item{s, 1, x})
			if err := h.Logits(x, 1, out); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(128*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
}
