package shard

import (
	"os"
	"testing"
)

// BenchmarkLoad packs the file that MESHNET_BENCH_MODEL names.
func BenchmarkLoad(b *testing.B) {
	path := os.Getenv("MESHNET_BENCH_MODEL")
	if path == "" {
		b.Fatal("MESHNET_BENCH_MODEL names no model file")
	}
	m := open(b, path)
	b.SetBytes(m.File().Size())
	for b.Loop() {
		e, err := m.LoadRange(0, m.Info().Layers, Options{})
		if err != nil {
			b.Fatal(err)
		}
		h, err := m.LoadHead(Options{Pool: e.loader.pool})
		if err != nil {
			b.Fatal(err)
		}
		h.Close()
		e.Close()
	}
}
