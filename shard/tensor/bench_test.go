package tensor

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
)

// Weights in cache, one thread: what the kernels can do by themselves.
func BenchmarkKernel(b *testing.B) {
	p := pool.New(1)
	const rows, cols = 64, 1024
	for _, ks := range kernelSets() {
		for _, typ := range allTypes() {
			m, err := packFused(ks, p, randomTensor(typ, rows, cols, 1))
			if err != nil {
				b.Fatal(err)
			}
			counts := []int{1, 2, ks.tile}
			if ks.wide != nil {
				counts = append(counts, 2*ks.wide.least)
			}
			for _, n := range counts {
				b.Run(fmt.Sprintf("%s/%s/n=%d", ks.name, typ, n), func(b *testing.B) {
					s, out := new(Scratch), make([]float32, n*rows)
					s.Quantize(p, randomActs(n, cols, 2), n, cols)
					b.SetBytes(m.Bytes())
					for b.Loop() {
						m.MulQ(p, s, out)
					}
					b.ReportMetric(2*rows*cols*float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gop/s")
				})
			}
			m.Close()
		}
	}
}

// All matrices of a model of Qwen2.5-0.5B's shape: one decode step, or a chunk of a prompt.
func BenchmarkModel(b *testing.B) {
	shapes := [][2]int{{1152, 896}, {896, 896}, {9728, 896}, {896, 4864}}
	for _, threads := range []int{1, runtime.GOMAXPROCS(0)} {
		p := pool.New(threads)
		for _, typ := range []gguf.Type{gguf.Q8_0, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q4_K, gguf.Q6_K, gguf.F16} {
			var ms []*Matrix
			var bytes int64
			var macs float64
			for layer := range 12 {
				for _, sh := range shapes {
					if sh[1]%typ.BlockSize() != 0 {
						sh[1] = 1024
					}
					m, err := Pack(randomTensor(typ, sh[0], sh[1], uint64(layer)), p)
					if err != nil {
						b.Fatal(err)
					}
					ms = append(ms, m)
					bytes += m.Bytes()
					macs += float64(m.Rows() * m.Cols())
				}
			}
			for _, n := range []int{1, 4, 8, 128} {
				b.Run(fmt.Sprintf("%s/threads=%d/n=%d", typ, threads, n), func(b *testing.B) {
					s, x, out := new(Scratch), randomActs(n, 4864, 3), make([]float32, n*9728)
					b.SetBytes(bytes)
					for b.Loop() {
						for _, m := range ms {
							m.Mul(p, x, n, out, s)
						}
					}
					b.ReportMetric(2*macs*float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gop/s")
				})
			}
			for _, m := range ms {
				m.Close()
			}
		}
		p.Close()
	}
}

func BenchmarkQuantize(b *testing.B) {
	x := randomActs(1, 4864, 1)
	for _, ks := range kernelSets() {
		for _, rows := range []int{1, 6} {
			b.Run(fmt.Sprintf("%s/rows=%d", ks.name, rows), func(b *testing.B) {
				dst := make([]byte, 4864/32*actBlockBytes*rows)
				b.SetBytes(4864 * 4)
				for b.Loop() {
					ks.quantize(x, dst, rows, 0)
				}
			})
		}
	}
}

func BenchmarkPack(b *testing.B) {
	p := pool.New(0)
	defer p.Close()
	for _, typ := range allTypes() {
		t := randomTensor(typ, 1024, 2048, 1)
		b.Run(typ.String(), func(b *testing.B) {
			b.SetBytes(int64(len(t.Data)))
			for b.Loop() {
				m, err := Pack(t, p)
				if err != nil {
					b.Fatal(err)
				}
				m.Close()
			}
		})
	}
}
