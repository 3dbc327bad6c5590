package shard

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/tensor"
	"github.com/meshnet/meshnet/shard/token"
)

// What tests on real models share. They compare with a float forward pass over
// the dequantized weights: our own float path must be it, within its rounding;
// the quantized one must be no farther from it than llama.cpp is, whose distance
// comes from 8-bit activations, which this engine has as well.

const (
	textTokens    = 2000
	certainArgmax = 0.5 // reference gap above which the best id must agree
)

// floatCopy is the model with all matrices dequantized to F32: no activation is
// rounded to int8 then.
func floatCopy(t *testing.T, m *Model) *Model {
	t.Helper()
	f := m.File()
	var ts []gguf.TensorInfo
	for _, w := range f.Tensors() {
		row := make([]float32, w.Dims[0])
		data := make([]byte, 0, 4*len(row)*w.Rows())
		for i := range w.Rows() {
			if err := tensor.DequantRow(w, i, row); err != nil {
				t.Fatal(err)
			}
			for _, v := range row {
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
			}
		}
		ts = append(ts, gguf.TensorInfo{Name: w.Name, Type: gguf.F32, Dims: w.Dims, Data: data})
	}
	return open(t, writeFile(t, keys(f, nil), ts))
}

// residuals runs ids in one session and returns the rows after each layer, the
// embeddings first.
func residuals(t *testing.T, m *Model, h *Head, ids []int32, from int) (all [][]float32, last []float32) {
	t.Helper()
	x := embed(t, h, ids)
	row := from * m.Info().Hidden
	all = append(all, clone(x[row:]))
	for i := range m.Info().Layers {
		e, err := m.LoadRange(i, i+1, Options{})
		if err != nil {
			t.Fatal(err)
		}
		feed(t, e, newState(t, e, i, i+1), x, len(ids))
		e.Close()
		all = append(all, clone(x[row:]))
	}
	return all, x
}

// logSoftmax replaces logits by log probabilities.
func logSoftmax(x []float32, out []float64) {
	top, sum := math.Inf(-1), 0.0
	for _, v := range x {
		top = max(top, float64(v))
	}
	for _, v := range x {
		sum += math.Exp(float64(v) - top)
	}
	for i, v := range x {
		out[i] = float64(v) - top - math.Log(sum)
	}
}

// divergence is KL(p || q) of log probabilities, in nats.
func divergence(p, q []float64) float64 {
	kl := 0.0
	for i, lp := range p {
		kl += math.Exp(lp) * (lp - q[i])
	}
	return kl
}

func lines[T any](t *testing.T, path string) (all []T) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var v T
		if err := json.Unmarshal(s.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

// checkLayers compares the last row after each layer with norms and first values
// of the reference, in a file of lines.
func checkLayers(t *testing.T, path string, exact, engine [][]float32, bound float64) {
	t.Helper()
	type point struct {
		After string
		Norm  float64
		First []float64
	}
	for i, p := range lines[point](t, path) {
		for j, v := range p.First {
			if d := math.Abs(float64(exact[i][j]) - v); d > 2e-5*p.Norm+1e-5 {
				t.Errorf("float path after %s: value %d is %g, want %g", p.After, j, exact[i][j], v)
			}
		}
		for _, c := range []struct {
			what  string
			x     []float32
			bound float64
		}{{"float path", exact[i], 1e-5}, {"engine", engine[i], bound}} {
			sum := 0.0
			for _, v := range c.x {
				sum += float64(v) * float64(v)
			}
			if d := math.Abs(math.Sqrt(sum)/p.Norm - 1); d > c.bound {
				t.Errorf("%s after %s: norm %g, want %g", c.what, p.After, math.Sqrt(sum), p.Norm)
			}
		}
	}
}

// checkText compares over the first tokens of opticks.txt in one context: mean
// divergence from the float path and mean log loss.
func checkText(t *testing.T, m, exact *Model, h, exactHead *Head, referenceNLL, llamaKL float64) {
	t.Helper()
	text, err := os.ReadFile("testdata/smollm2/opticks.txt")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := token.New(m.File())
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tok.Encode(string(text), false)
	if err != nil {
		t.Fatal(err)
	}
	if bos, ok := tok.BOS(); ok && tok.AddBOS() {
		ids = append([]int32{bos}, ids...)
	}
	ids = ids[:textTokens]
	vocab, hidden := m.Info().Vocab, m.Info().Hidden
	_, a := residuals(t, exact, exactHead, ids, len(ids)-1)
	_, b := residuals(t, m, h, ids, len(ids)-1)
	var klSum, nllExact, nll float64
	const rows = 100
	for at := 0; at < len(ids)-1; at += rows {
		n := min(rows, len(ids)-1-at)
		la, lb := logits(t, exactHead, a[at*hidden:(at+n)*hidden]), logits(t, h, b[at*hidden:(at+n)*hidden])
		var mu sync.Mutex
		var wg sync.WaitGroup
		for w := range runtime.GOMAXPROCS(0) {
			wg.Go(func() {
				p, q := make([]float64, vocab), make([]float64, vocab)
				for i := w; i < n; i += runtime.GOMAXPROCS(0) {
					logSoftmax(la[i*vocab:(i+1)*vocab], p)
					logSoftmax(lb[i*vocab:(i+1)*vocab], q)
					kl, next := divergence(p, q), ids[at+i+1]
					mu.Lock()
					klSum, nllExact, nll = klSum+kl, nllExact-p[next], nll-q[next]
					mu.Unlock()
				}
			})
		}
		wg.Wait()
	}
	scored := float64(len(ids) - 1)
	kl, nllExact, nll := klSum/scored, nllExact/scored, nll/scored
	t.Logf("mean KL %.6f (llama.cpp %.6f), NLL %.5f (reference %.4f, our float path %.5f)", kl, llamaKL, nll, referenceNLL, nllExact)
	if math.Abs(nllExact-referenceNLL) > 2e-4 {
		t.Errorf("float path: NLL %g, want %g: it can't stand for the reference", nllExact, referenceNLL)
	}
	if kl > llamaKL {
		t.Errorf("mean KL %g, llama.cpp has %g", kl, llamaKL)
	}
	if math.Abs(nll-referenceNLL) > 0.01 {
		t.Errorf("NLL %g, want %g within 0.01 (1 %% of perplexity)", nll, referenceNLL)
	}
}

// checkGreedy gives the engine texts with a continuation each, from a file of
// lines, and wants the reference's best id at each step where that is clear.
func checkGreedy(t *testing.T, path string, m *Model, h *Head, atLeast int) {
	t.Helper()
	type line struct {
		Name        string
		Prompt, Out []int32
		Argmax      []int32   `json:"ref_argmax"`
		Gap         []float64 `json:"ref_gap"`
	}
	vocab, hidden := m.Info().Vocab, m.Info().Hidden
	e := load(t, m, 0, m.Info().Layers, Options{})
	checked, all := 0, lines[line](t, path)
	for _, l := range all {
		ids := append(l.Prompt, l.Out...)
		x := embed(t, h, ids[:len(ids)-1])
		feed(t, e, newState(t, e, 0, m.Info().Layers), x, len(ids))
		got := logits(t, h, x[(len(l.Prompt)-1)*hidden:])
		for i, want := range l.Argmax {
			if l.Gap[i] <= certainArgmax {
				continue
			}
			checked++
			if id := argmax(got[i*vocab : (i+1)*vocab]); id != want {
				t.Errorf("%s, step %d: best id %d, want %d, which leads by %g", l.Name, i, id, want, l.Gap[i])
			}
		}
	}
	t.Logf("%d steps with a clear best id, in %d texts", checked, len(all))
	if checked < atLeast {
		t.Errorf("only %d steps were clear enough to check", checked)
	}
}
