// Package selftest computes one hash of all that the engine can do, which must be the same on every machine.
//
// A volunteer whose hash differs has a broken CPU, a broken compiler or another version, and would say other words than
// its mesh. The hash is of every logit's bits of small random models: every type of weights, every architecture, stacked and
// single matrices, every type of cache, rows in odd chunks and one by one, alone and beside another session.
//
// Invariant: Want is what the kernels in plain Go, the definition of every bit, compute. Whether those are right is not
// judged here but by the engine's tests against PyTorch. Start reading at Run.
package selftest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"math"
	"slices"
	"time"

	"github.com/meshnet/meshnet/shard"
	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/pool"
	"github.com/meshnet/meshnet/shard/tensor"
	"github.com/meshnet/meshnet/shard/tiny"
)

// Want is the hash of a machine that agrees with all others. It changes when the engine learns a type or an architecture, and
// when its numerics change: then every node of a mesh needs the same version.
const Want = "95301f0aa6a7099122dc746c286a7e67"

// Config says what to compute with.
type Config struct {
	Threads int    // 0: as many as the machine runs at once
	CPU     string // kernel set; "": the best, or what MESHNET_CPU says
}

// Result is what this machine computes.
type Result struct {
	Hash    string        // 32 hex digits, over all models
	CPU     string        // kernel set
	Threads int           // that took part
	Models  []ModelResult // in a fixed order
	Took    time.Duration
}

// ModelResult is the hash of one model, to say where machines part.
type ModelResult struct {
	Name string `json:"name"`
	Hash string `json:"hash"`
}

// DiffersError is a machine that computes other bits than all others.
type DiffersError struct{ Result }

func (e *DiffersError) Error() string {
	return fmt.Sprintf("self-test: this machine computes %s with its %s kernels, others %s: its text would differ from theirs, so it must not serve. "+
		"Try MESHNET_CPU=generic; if that gives the right hash, please report the CPU; if not, memory or CPU may be faulty", e.Hash, e.CPU, Want)
}

// Run computes the hash and compares it with Want: other bits are a *DiffersError, beside the result.
func Run(ctx context.Context, cfg Config) (Result, error) {
	r, err := run(ctx, cfg, models())
	if err == nil && r.Hash != Want {
		err = &DiffersError{r}
	}
	return r, err
}

// models are the engine's architectures, each with all types, in another order each.
func models() []tiny.Mixed {
	var out []tiny.Mixed
	types := supported()
	for i, arch := range tiny.MixedArchs() {
		if !slices.Contains(model.Known(), arch) {
			continue
		}
		at := i * 3 % len(types)
		out = append(out, tiny.Mixed{Arch: arch, Seed: uint64(i + 1), Types: append(append([]gguf.Type{}, types[at:]...), types[:at]...)})
	}
	return out
}

func supported() []gguf.Type {
	var out []gguf.Type
	for t := range gguf.Type(64) {
		if t.Known() && tensor.Supported(t) {
			out = append(out, t)
		}
	}
	return out
}

func run(ctx context.Context, cfg Config, models []tiny.Mixed) (Result, error) {
	begun := time.Now()
	p := pool.New(cfg.Threads)
	defer p.Close()
	r := Result{Threads: p.Threads()}
	all := sha256.New()
	for i, m := range models {
		sum := sha256.New()
		var err error
		if r.CPU, err = compute(ctx, m, i, shard.Options{Pool: p, CPU: cfg.CPU}, sum); err != nil {
			return r, fmt.Errorf("self-test with a %s model: %w", m.Arch, err)
		}
		r.Models = append(r.Models, ModelResult{m.Arch, name(sum)})
		all.Write(sum.Sum(nil))
	}
	r.Hash, r.Took = name(all), time.Since(begun)
	return r, nil
}

func name(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)[:16]) }

// steps are the rows that the two sessions get at a time; 0: the session is left out.
var steps = [][2]int{{1, 0}, {7, 0}, {53, 9}, {2, 1}, {1, 1}, {0, 3}, {5, 1}, {1, 0}, {1, 1}}

// deep goes on where steps end, for the architecture deepArch: into the second span of attention.
var deep = [][2]int{{450, 0}, {1, 1}, {3, 0}}

const deepArch = "gemma3" // has layers that see all and layers that see a window

// compute feeds two sessions and adds the bits of all logits to sum. Their caches are of two types, others for each
// model; the deep architecture's turn through all types, and go deep with one: what a span is, is the same for all.
func compute(ctx context.Context, mixed tiny.Mixed, first int, o shard.Options, sum hash.Hash) (cpu string, err error) {
	var file bytes.Buffer
	if err := mixed.Write(&file); err != nil {
		return "", err
	}
	m, err := shard.Parse(file.Bytes())
	if err != nil {
		return "", err
	}
	defer m.Close()
	e, err := m.LoadRange(0, m.Info().Layers, o)
	if err != nil {
		return "", err
	}
	defer e.Close()
	h, err := m.LoadHead(o)
	if err != nil {
		return "", err
	}
	defer h.Close()
	s := &sessions{head: h, engine: e, vocab: m.Info().Vocab, sum: sum}
	turns := [][][2]int{steps}
	if mixed.Arch == deepArch {
		turns = [][][2]int{steps, slices.Concat(steps, deep), steps}
	}
	for i, todo := range turns {
		if err := s.run(ctx, first+i, m.Info().Layers, todo); err != nil {
			return "", err
		}
	}
	return e.CPU(), nil
}

type sessions struct {
	head   *shard.Head
	engine *shard.Engine
	vocab  int
	states [2]*shard.State
	sum    hash.Hash
}

// run is two new sessions' steps, with caches of the types from the first-th on.
func (s *sessions) run(ctx context.Context, first, layers int, steps [][2]int) (err error) {
	types := shard.CacheTypes()
	for i := range s.states {
		if s.states[i], err = s.engine.NewState(0, layers, types[(first+i)%len(types)]); err != nil {
			return err
		}
		defer s.states[i].Close()
	}
	for _, rows := range steps {
		if err := s.step(ctx, rows); err != nil {
			return err
		}
	}
	return nil
}

// step feeds rows tokens to each session, in one batch.
func (s *sessions) step(ctx context.Context, rows [2]int) error {
	var batch []shard.Item
	for i, n := range rows {
		if n == 0 {
			continue
		}
		ids := make([]int32, n)
		for j := range ids {
			ids[j] = int32(((s.states[i].Len()+j)*7919 + 13 + 100*i) % s.vocab)
		}
		x := make([]float32, n*s.engine.Hidden())
		if err := s.head.Embed(ids, x); err != nil {
			return err
		}
		batch = append(batch, shard.Item{State: s.states[i], Rows: n, X: x})
	}
	if err := s.engine.Forward(ctx, batch); err != nil {
		return err
	}
	for _, it := range batch {
		out := make([]float32, it.Rows*s.vocab)
		if err := s.head.Logits(it.X, it.Rows, out); err != nil {
			return err
		}
		bits := make([]byte, 0, 4*len(out))
		for _, v := range out {
			bits = binary.LittleEndian.AppendUint32(bits, math.Float32bits(v))
		}
		s.sum.Write(bits)
	}
	return nil
}
