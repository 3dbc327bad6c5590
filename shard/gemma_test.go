package shard

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// Figures of llama.cpp (default settings) on Gemma 3 270M, Q4_K_M (sha256
// a5fd3b62…7a6818), against a float32 forward pass over the dequantized weights.
const (
	gemmaNLL      = 2.76094
	gemmaTextKL   = 0.00502991
	gemmaPromptKL = 0.00700785
)

// Gemma's weights and what is made of them stay out of the repository: its terms
// are not open source. So this test needs the model in MESHNET_TEST_GEMMA, and for
// ids and layers the folder of the file in MESHNET_TEST_GEMMA_GOLDEN. The text is
// four times as long as the window.
func TestGemma3(t *testing.T) {
	path, golden := os.Getenv("MESHNET_TEST_GEMMA"), os.Getenv("MESHNET_TEST_GEMMA_GOLDEN")
	if path == "" {
		t.Skip("MESHNET_TEST_GEMMA names no file: quality on a real gemma3 model is not checked (its terms forbid to fetch it unasked)")
	}
	m := open(t, path)
	exact := floatCopy(t, m)
	h, exactHead := loadHead(t, m, Options{}), loadHead(t, exact, Options{})

	t.Run("text", func(t *testing.T) {
		checkText(t, m, exact, h, exactHead, gemmaNLL, gemmaTextKL)
	})
	if golden == "" {
		t.Log("MESHNET_TEST_GEMMA_GOLDEN names no file: ids and layers are not checked")
		return
	}
	dir := filepath.Dir(golden)
	t.Run("prompt", func(t *testing.T) {
		top := lines[struct {
			IDs       []int32   `json:"ids"`
			Top       []int32   `json:"top_ids"`
			Reference []float64 `json:"top_reference"`
			LogSumExp float64   `json:"logsumexp_reference"`
		}](t, filepath.Join(dir, "logits-top.json"))[0]
		from := len(top.IDs) - 1
		layersExact, _ := residuals(t, exact, exactHead, top.IDs, from)
		layers, _ := residuals(t, m, h, top.IDs, from)
		checkLayers(t, filepath.Join(dir, "layers.jsonl"), layersExact, layers, 0.05)

		x := logits(t, exactHead, layersExact[len(layersExact)-1])
		y := logits(t, h, layers[len(layers)-1])
		p, q := make([]float64, len(x)), make([]float64, len(x))
		logSoftmax(x, p)
		logSoftmax(y, q)
		for i, id := range top.Top {
			if d := math.Abs(float64(x[id]) - top.Reference[i]); d > 2e-3 {
				t.Errorf("float path: logit %d is off by %g", id, d)
			}
			if d := math.Abs(p[id] - top.Reference[i] + top.LogSumExp); d > 2e-3 {
				t.Errorf("float path: log probability %d is off by %g", id, d)
			}
		}
		kl := divergence(p, q)
		t.Logf("KL at the prompt's end: %.5f (llama.cpp %.5f)", kl, gemmaPromptKL)
		if kl > gemmaPromptKL || argmax(y) != top.Top[0] {
			t.Errorf("KL %g, best id %d, want at most %g and %d", kl, argmax(y), gemmaPromptKL, top.Top[0])
		}
	})
	t.Run("greedy", func(t *testing.T) {
		checkGreedy(t, filepath.Join(dir, "greedy.jsonl"), m, h, 200)
	})
}
