package shard

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"
)

// PyTorch computed these, in float32. Its own distance to float64 is up to 4e-5
// and so is ours (the twin's test measures it), which makes 1e-4 with some room.
// It finds mistakes: a wrong epsilon shows as 2e-4 or more, GELU with erf as
// 3e-3, all others as 0.9 or more.
const goldenTolerance = 1e-4

// every is each n-th value.
func every(n int, x []float32) (out []float32) {
	for i := 0; i < len(x); i += n {
		out = append(out, x[i])
	}
	return out
}

func TestPyTorchGoldens(t *testing.T) {
	tokens := readGolden(t, "testdata/llama/golden.safetensors")
	for _, path := range floatModels {
		t.Run(path, func(t *testing.T) {
			g := readGolden(t, filepath.Join(filepath.Dir(path), "golden.safetensors"))
			m := open(t, path)
			layers, hidden := m.Info().Layers, m.Info().Hidden
			e, h := load(t, m, 0, layers, Options{Threads: 2}), loadHead(t, m, Options{Threads: 2})
			for _, n := range []int{1, 17, 70} {
				x := embed(t, h, tokens.ints[fmt.Sprint("tokens_", n)])
				feed(t, e, newState(t, e, 0, layers), x, n)
				got := logits(t, h, x)
				if n == 70 {
					got = every(4, got) // see testdata/README.md
				}
				d := farthest(t, got, g.floats[fmt.Sprint("logits_", n)])
				t.Logf("logits after %d tokens: off by %.2g", n, d)
				if d > goldenTolerance {
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

// No tiny model has a limit of its logits. With one, they are what PyTorch says,
// limited.
func TestLogitCap(t *testing.T) {
	const limit = 5.0
	tokens := readGolden(t, "testdata/llama/golden.safetensors")
	want := readGolden(t, "testdata/gemma3/golden.safetensors").floats["logits_17"]
	for i, v := range want {
		want[i] = float32(limit * math.Tanh(float64(v)/limit))
	}
	m := open(t, withKeys(t, "testdata/gemma3/model-f16.gguf", map[string]any{"gemma3.final_logit_softcapping": float32(limit)}))
	layers := m.Info().Layers
	e, h := load(t, m, 0, layers, Options{Threads: 2}), loadHead(t, m, Options{Threads: 2})
	x := embed(t, h, tokens.ints["tokens_17"])
	feed(t, e, newState(t, e, 0, layers), x, 17)
	got := logits(t, h, x)
	if d := farthest(t, got, want); d > goldenTolerance {
		t.Errorf("limited logits are off by %g", d)
	}
	for _, cpu := range cpus(t) {
		if again := logits(t, loadHead(t, m, Options{Threads: 1, CPU: cpu}), x); hash(again) != hash(got) {
			t.Errorf("%s: limited logits have other bits", cpu)
		}
	}
}
