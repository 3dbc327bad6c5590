package shard

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
)

// PyTorch computed these. Its own distance to float64 is 5e-5 here; a wrong
// epsilon shows as 2e-4, any other mistake as 0.9 or more.
const goldenTolerance = 1e-4

func TestPyTorchGoldens(t *testing.T) {
	tokens := readGolden(t, "testdata/llama/golden.safetensors")
	for _, name := range []string{"llama", "llama3_tied", "qwen2"} {
		t.Run(name, func(t *testing.T) {
			g := readGolden(t, filepath.Join("testdata", name, "golden.safetensors"))
			m := open(t, filepath.Join("testdata", name, "model-f16.gguf"))
			layers, hidden := m.Info().Layers, m.Info().Hidden
			e, h := load(t, m, 0, layers, Options{Threads: 2}), loadHead(t, m, Options{Threads: 2})
			for _, n := range []int{1, 17, 70} {
				x := embed(t, h, tokens.ints[fmt.Sprint("tokens_", n)])
				feed(t, e, newState(t, e, 0, layers), x, n)
				if d := farthest(t, logits(t, h, x), g.floats[fmt.Sprint("logits_", n)]); d > goldenTolerance {
					t.Errorf("logits after %d tokens are off by %g", n, d)
				}
			}
			// hidden_17[i] is what layer i is given; each layer alone must make
			// [i+1] of it.
			want := g.floats["hidden_17"]
			size := 17 * hidden
			if d := farthest(t, embed(t, h, tokens.ints["tokens_17"]), want[:size]); d != 0 {
				t.Errorf("embeddings are off by %g", d)
			}
			for i := range layers {
				one := load(t, m, i, i+1, Options{Threads: 1})
				x := clone(want[i*size : (i+1)*size])
				feed(t, one, newState(t, one, i, i+1), x, 17)
				if d := farthest(t, x, want[(i+1)*size:(i+2)*size]); d > goldenTolerance {
					t.Errorf("layer %d: output is off by %g", i, d)
				}
			}
			if got, want := greedy(t, e, h, tokens.ints["tokens_17"], 24), g.ints["greedy_24"]; !slices.Equal(got, want) {
				t.Errorf("greedy: %v, want %v", got, want)
			}
		})
	}
}
