package shard

import (
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
	last := func() {
		if err := h.Logits(x[len(x)-e.Hidden():], 1, out); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("prefill512", func(b *testing.B) {
		for b.Loop() {
			s := newState(b, e, 0, layers)
			if err := h.Embed(ids, x); err != nil {
				b.Fatal(err)
			}
			forward(b, e, Item{s, 512, x})
			last()
			s.Close()
		}
		b.ReportMetric(512*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
	})
	b.Run("decode128", func(b *testing.B) {
		x = x[:e.Hidden()]
		for b.Loop() {
			s := newState(b, e, 0, layers)
			for i := range 128 {
				if err := h.Embed(ids[i:i+1], x); err != nil {
					b.Fatal(err)
				}
				forward(b, e, Item{s, 1, x})
				last()
			}
			s.Close()
		}
		b.ReportMetric(128*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
	})
}
