package shard

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/meshnet/meshnet/testnet/realmodel"
)

// Figures of llama.cpp (default settings) on this file, against a float64
// forward pass over the same dequantized weights.
const (
	referenceNLL  = 2.8126
	llamaTextKL   = 0.00298915 // mean over the text
	llamaPromptKL = 0.00446    // at the end of the prompt
)

// smollm2Prompt is "In the year 1687 a book was printed in London …" of the
// reference logits.
var smollm2Prompt = []int32{788, 260, 713, 216, 33, 38, 40, 39, 253, 1863, 436, 8057, 281, 4528, 338, 4247, 638, 701, 2275, 563, 260, 5522,
	282, 260, 9244, 30, 4781, 1919, 761, 3057, 338, 582, 2232, 1525, 36359, 260, 2332, 282, 354, 11977, 284, 260, 2050, 282, 260}

func smollm2(t *testing.T) *Model {
	t.Helper()
	return open(t, realmodel.SmolLM2(t))
}

func promptReference(t *testing.T) []float32 {
	t.Helper()
	b := readData(t, "testdata/smollm2/logits-reference.f32")
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

// On a real model: the float path is the reference, within its rounding; the
// quantized one is no farther from it than llama.cpp is.
func TestSmolLM2(t *testing.T) {
	m := smollm2(t)
	exact := floatCopy(t, m)
	h, exactHead := loadHead(t, m, Options{}), loadHead(t, exact, Options{})
	vocab := m.Info().Vocab

	t.Run("prompt", func(t *testing.T) {
		want := promptReference(t)
		ref, got := make([]float64, vocab), make([]float64, vocab)
		logSoftmax(want, ref)
		from := len(smollm2Prompt) - 1
		layersExact, _ := residuals(t, exact, exactHead, smollm2Prompt, from)
		layers, _ := residuals(t, m, h, smollm2Prompt, from)

		checkLayers(t, "testdata/smollm2/layers.jsonl", layersExact, layers, 0.02)
		x := logits(t, exactHead, layersExact[len(layersExact)-1])
		if d := farthest(t, x, want); d > 1e-3 {
			t.Errorf("float path: logits off by %g", d)
		}
		logSoftmax(x, got)
		if kl := divergence(ref, got); kl > 1e-8 {
			t.Errorf("float path: KL %g", kl)
		}
		x = logits(t, h, layers[len(layers)-1])
		logSoftmax(x, got)
		kl := divergence(ref, got)
		t.Logf("KL at the prompt's end: %.5f (llama.cpp %.5f)", kl, llamaPromptKL)
		if kl > llamaPromptKL || argmax(x) != argmax(want) {
			t.Errorf("KL %g, best id %d, want at most %g and %d", kl, argmax(x), llamaPromptKL, argmax(want))
		}
	})

	t.Run("text", func(t *testing.T) {
		checkText(t, m, exact, h, exactHead, referenceNLL, llamaTextKL)
	})

	t.Run("greedy", func(t *testing.T) {
		checkGreedy(t, "testdata/smollm2/greedy.jsonl", m, h, 300)
	})
}
