package shard

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/tensor"
	"github.com/meshnet/meshnet/shard/tiny"
)

// golden is a safetensors file: float32 tables and int32 lists by name.
type golden struct {
	floats map[string][]float32
	ints   map[string][]int32
}

// readData reads a file of testdata, most of which are kept compressed.
func readData(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	f, err := os.Open(path + ".gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = io.ReadAll(z); err != nil {
		t.Fatal(err)
	}
	return b
}

func readGolden(t testing.TB, path string) golden {
	t.Helper()
	b := readData(t, path)
	n := binary.LittleEndian.Uint64(b)
	var head map[string]json.RawMessage
	if err := json.Unmarshal(b[8:8+n], &head); err != nil {
		t.Fatal(err)
	}
	g := golden{map[string][]float32{}, map[string][]int32{}}
	for name, raw := range head {
		var e struct {
			DType   string    `json:"dtype"`
			Offsets [2]uint64 `json:"data_offsets"`
		}
		if name == "__metadata__" || json.Unmarshal(raw, &e) != nil {
			continue
		}
		data := b[8+n+e.Offsets[0] : 8+n+e.Offsets[1]]
		for i := 0; i < len(data); i += 4 {
			v := binary.LittleEndian.Uint32(data[i:])
			switch e.DType {
			case "F32":
				g.floats[name] = append(g.floats[name], math.Float32frombits(v))
			case "I32":
				g.ints[name] = append(g.ints[name], int32(v))
			default:
				t.Fatalf("%s: %s has type %s", path, name, e.DType)
			}
		}
	}
	return g
}

// cpus are the kernel sets that this machine has.
func cpus(t testing.TB) []string {
	names := tensor.CPUs()
	t.Logf("tested here: %v", names)
	return names
}

// tinyFile writes the tiny model of seed 1.
func tinyFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tiny.WriteFile(path, 1); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t testing.TB, path string) *Model {
	t.Helper()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		unpacked := filepath.Join(t.TempDir(), filepath.Base(path))
		if err := os.WriteFile(unpacked, readData(t, path), 0o600); err != nil {
			t.Fatal(err)
		}
		path = unpacked
	}
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// keys are the keys of a file that hold one value, changed or added to.
func keys(f *gguf.File, changes map[string]any) (kv []gguf.KV) {
	for _, key := range f.Keys() {
		if changes[key] != nil {
			continue
		}
		if n, ok := f.Uint(key); ok {
			kv = append(kv, gguf.KV{Key: key, Value: uint32(n)})
		} else if x, ok := f.Float(key); ok {
			kv = append(kv, gguf.KV{Key: key, Value: float32(x)})
		} else if s, ok := f.String(key); ok {
			kv = append(kv, gguf.KV{Key: key, Value: s})
		}
	}
	for key, value := range changes {
		kv = append(kv, gguf.KV{Key: key, Value: value})
	}
	return kv
}

// withKeys is a copy of a model file with other keys, without tokenizer.
func withKeys(t testing.TB, path string, changes map[string]any) string {
	t.Helper()
	f := open(t, path).File()
	var ts []gguf.TensorInfo
	for _, w := range f.Tensors() {
		ts = append(ts, gguf.TensorInfo{Name: w.Name, Type: w.Type, Dims: w.Dims, Data: w.Data})
	}
	return writeFile(t, keys(f, changes), ts)
}

func writeFile(t testing.TB, kv []gguf.KV, ts []gguf.TensorInfo) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "changed.gguf")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(gguf.Write(out, kv, ts), out.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func load(t testing.TB, m *Model, start, end int, o Options) *Engine {
	t.Helper()
	e, err := m.LoadRange(start, end, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func loadHead(t testing.TB, m *Model, o Options) *Head {
	t.Helper()
	h, err := m.LoadHead(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func newState(t testing.TB, e *Engine, start, end int) *State {
	t.Helper()
	return newCache(t, e, start, end, CacheF32)
}

// newCache is newState with another type of cache.
func newCache(t testing.TB, e *Engine, start, end int, c CacheType) *State {
	t.Helper()
	s, err := e.NewState(start, end, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func embed(t testing.TB, h *Head, ids []int32) []float32 {
	t.Helper()
	x := make([]float32, len(ids)*h.model.Hidden)
	if err := h.Embed(ids, x); err != nil {
		t.Fatal(err)
	}
	return x
}

func forward(t testing.TB, e *Engine, items ...Item) {
	t.Helper()
	if err := e.Forward(context.Background(), items); err != nil {
		t.Fatal(err)
	}
}

// feed passes x through the state in steps of at most chunk rows, in place.
func feed(t testing.TB, e *Engine, s *State, x []float32, chunk int) {
	t.Helper()
	h := e.Hidden()
	for rows := len(x) / h; rows > 0; rows = len(x) / h {
		n := min(chunk, rows)
		forward(t, e, Item{s, n, x[:n*h]})
		x = x[n*h:]
	}
}

func logits(t testing.TB, h *Head, x []float32) []float32 {
	t.Helper()
	rows := len(x) / h.model.Hidden
	out := make([]float32, rows*h.model.Vocab)
	if err := h.Logits(x, rows, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func argmax(x []float32) int32 {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return int32(best)
}

// greedy continues ids by n tokens, one at a time.
func greedy(t testing.TB, e *Engine, h *Head, ids []int32, n int) []int32 {
	t.Helper()
	start, end := e.Range()
	s := newState(t, e, start, end)
	defer s.Close()
	x := embed(t, h, ids)
	forward(t, e, Item{s, len(ids), x})
	x = x[len(x)-e.Hidden():]
	var out []int32
	for {
		out = append(out, argmax(logits(t, h, x)))
		if len(out) == n {
			return out
		}
		x = embed(t, h, out[len(out)-1:])
		forward(t, e, Item{s, 1, x})
	}
}

// hash names the bits of x.
func hash(x []float32) string {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// farthest is the largest difference of two tables.
func farthest[T float32 | float64](t testing.TB, a []float32, b []T) float64 {
	t.Helper()
	if len(a) != len(b) {
		t.Fatalf("comparing %d values with %d", len(a), len(b))
	}
	d := 0.0
	for i := range a {
		d = max(d, math.Abs(float64(a[i])-float64(b[i])))
		if a[i] != a[i] {
			return math.Inf(1)
		}
	}
	return d
}

func clone(x []float32) []float32 { return append([]float32(nil), x...) }
