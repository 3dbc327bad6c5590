package selftest

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard"
	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/tensor"
	"github.com/meshnet/meshnet/shard/tiny"
)

// Every kernel set that this machine has, with one thread and with several, gives the hash of the kernels in plain Go.
func TestWant(t *testing.T) {
	want, err := run(context.Background(), Config{CPU: "generic"}, models())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("generic: %v, %v", want.Hash, want.Took)
	if want.Hash != Want {
		t.Errorf("the kernels in plain Go give %s, Want is %s: if the numerics, types or architectures were changed on purpose, set Want and tell the version", want.Hash, Want)
	}
	counts := []int{1, 2, 3}
	if testing.Short() { // under emulation each takes the better part of a minute
		counts = []int{2}
	}
	for _, cpu := range tensor.CPUs() {
		if cpu == "generic" {
			continue
		}
		for _, threads := range counts {
			r, err := run(context.Background(), Config{CPU: cpu, Threads: threads}, models())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s, %d threads: %v", cpu, threads, r.Took)
			if r.Hash != want.Hash || r.CPU != cpu || r.Threads != threads {
				t.Errorf("%s, %d threads: %+v, the kernels in plain Go give %+v", cpu, threads, r, want)
			}
		}
	}
}

// What the engine can do is in the test: a new type or architecture must be added.
func TestCoversTheEngine(t *testing.T) {
	for _, arch := range model.Known() {
		if !slices.Contains(tiny.MixedArchs(), arch) {
			t.Errorf("the engine knows %s, tiny.Mixed makes models of %v only", arch, tiny.MixedArchs())
		}
	}
	for _, mixed := range models() {
		m := parse(t, mixed)
		uses := map[gguf.Type]int{}
		for _, ts := range m.File().Tensors() {
			if len(ts.Dims) == 2 && strings.HasPrefix(ts.Name, "blk.") {
				uses[ts.Type]++
			}
		}
		for _, typ := range supported() {
			if uses[typ] == 0 {
				t.Errorf("%s: no layer has a matrix of %s", mixed.Arch, typ)
			}
		}
	}
}

func parse(t *testing.T, mixed tiny.Mixed) *shard.Model {
	t.Helper()
	var b bytes.Buffer
	if err := mixed.Write(&b); err != nil {
		t.Fatal(err)
	}
	m, err := shard.Parse(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A hash is no use if the models die out or explode, so that most logits are 0 or all alike.
func TestLogitsAreAlive(t *testing.T) {
	for _, mixed := range models() {
		m := parse(t, mixed)
		e, err := m.LoadRange(0, m.Info().Layers, shard.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		h, err := m.LoadHead(shard.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		s, err := e.NewState(0, m.Info().Layers, shard.CacheF32)
		if err != nil {
			t.Fatal(err)
		}
		const rows = 8
		x, out := make([]float32, rows*e.Hidden()), make([]float32, rows*m.Info().Vocab)
		if err := errors.Join(h.Embed([]int32{1, 2, 3, 4, 5, 6, 7, 300}, x), e.Forward(context.Background(), []shard.Item{{State: s, Rows: rows, X: x}}), h.Logits(x, rows, out)); err != nil {
			t.Fatal(err)
		}
		sum, far := 0.0, 0.0
		for i, v := range out {
			sum += float64(v) * float64(v)
			far = max(far, math.Abs(float64(v-out[i%m.Info().Vocab])))
		}
		if dev := math.Sqrt(sum / float64(len(out))); dev < 0.1 || dev > 100 || far < 0.1 {
			t.Errorf("%s: logits have deviation %g, rows differ by %g", mixed.Arch, dev, far)
		}
	}
}

func TestOtherBitsAreRefused(t *testing.T) {
	other := models()
	other[0].Seed++
	r, err := run(context.Background(), Config{}, other)
	if err != nil || r.Hash == Want {
		t.Fatalf("another model gives %s, %v", r.Hash, err)
	}
	var differs *DiffersError
	err = error(&DiffersError{r})
	if !errors.As(err, &differs) || !strings.Contains(err.Error(), r.Hash) || !strings.Contains(err.Error(), Want) {
		t.Error(err)
	}
	if _, err := Run(context.Background(), Config{CPU: "sse"}); err == nil || errors.As(err, &differs) {
		t.Errorf("an unknown kernel set: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}
