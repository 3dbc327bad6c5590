// Package bench measures a whole engine: how fast it takes a prompt and makes tokens, and what share of the machine's own
// limits that is.
//
// Invariant: a token is timed as it is made in earnest: embedding, all layers, final norm, output matrix. Nothing is sampled. Start
// reading at Run.
package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/meshnet/meshnet/shard"
	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
	"github.com/meshnet/meshnet/shard/tensor"
	"github.com/meshnet/meshnet/shard/tensor/probe"
)

// Config says what to measure.
type Config struct {
	Prefill int // tokens of a prompt, in one chunk; 0: not measured
	Decode  int // steps of one token a session; 0: not measured
	Depth   int // tokens that are there before, untimed
	Batch   int // sessions that decode together
	Rounds  int
	Cache   shard.CacheType
	Threads int    // 0: as many as the machine runs at once
	CPU     string // kernel set; "": the best, or what MESHNET_CPU says
	Note    func(text string)
}

// Validate lists all faults.
func (c *Config) Validate() error {
	var errs []error
	check := func(what string, v, least int) {
		if v < least {
			errs = append(errs, fmt.Errorf("%s is %d, want at least %d", what, v, least))
		}
	}
	check("prefill", c.Prefill, 0)
	check("decode", c.Decode, 0)
	check("depth", c.Depth, 0)
	check("batch", c.Batch, 1)
	check("rounds", c.Rounds, 1)
	if !c.Cache.Known() {
		errs = append(errs, fmt.Errorf("%v is not known", c.Cache))
	}
	if c.Prefill == 0 && c.Decode == 0 {
		errs = append(errs, errors.New("prefill and decode are both 0: nothing is left to measure"))
	}
	return errors.Join(errs...)
}

// Result is what was measured. Speeds are medians over the rounds; a decode's counts the tokens of all sessions.
type Result struct {
	Model   string `json:"model"`
	Arch    string `json:"arch"`
	Types   string `json:"types"` // of the matrices, most bytes first
	Kernels string `json:"kernels"`
	Note    string `json:"kernels_note,omitempty"` // of better ones that the CPU has: why they are not used
	Threads int    `json:"threads"`
	Prefill int    `json:"prefill"`
	Decode  int    `json:"decode"`
	Depth   int    `json:"depth"`
	Batch   int    `json:"batch"`
	Rounds  int    `json:"rounds"`

	LoadSeconds       float64 `json:"load_seconds"`
	FirstTokenSeconds float64 `json:"first_token_seconds"` // from opening the file to the logits after one token
	WeightBytes       int64   `json:"weight_bytes"`        // packed, read once a step
	CacheType         string  `json:"cache_type"`
	CacheBytes        int64   `json:"cache_bytes"`    // of all sessions, at their longest
	ResidentBytes     int64   `json:"resident_bytes"` // of the process after the last round; 0: not known

	PrefillPerS float64   `json:"prefill_tokens_per_s"`
	DecodePerS  float64   `json:"decode_tokens_per_s"`
	PrefillRuns []float64 `json:"prefill_runs"`
	DecodeRuns  []float64 `json:"decode_runs"`

	Limits Limits `json:"limits"`
	// PrefillOps are operations a second in matrices; DecodeBytes are weights read a second.
	PrefillOps  float64 `json:"prefill_ops_per_s"`
	DecodeBytes float64 `json:"decode_bytes_per_s"`
	// PrefillPercent is the time that the matrices' operations would take at the machine's peaks (int8, or float32 for float
	// weights), of the time that it took. DecodePercent is DecodeBytes of the read bandwidth.
	PrefillPercent float64 `json:"prefill_percent_of_limit"`
	DecodePercent  float64 `json:"decode_percent_of_limit"`
}

// Limits are what package probe finds on the same threads, before and after the rounds: the higher of both.
type Limits struct {
	ReadBytesPerS float64 `json:"read_bytes_per_s"`
	Int8OpsPerS   float64 `json:"int8_ops_per_s"`
	Int8With      string  `json:"int8_with"`
	FloatOpsPerS  float64 `json:"float_ops_per_s"`
	FloatWith     string  `json:"float_with"`
}

const (
	probeBytes = 256 << 20 // beyond the caches of any machine that a volunteer has
	probeTime  = 150 * time.Millisecond
	warmRows   = 32
	warmSteps  = 4
)

// Run measures the model file at path.
func Run(ctx context.Context, path string, cfg Config) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := pool.New(cfg.Threads)
	defer p.Close()
	b := &bencher{cfg: cfg, pool: p, result: &Result{Prefill: cfg.Prefill, Decode: cfg.Decode, Depth: cfg.Depth, Batch: cfg.Batch, Rounds: cfg.Rounds, Threads: p.Threads(), CacheType: cfg.Cache.String()}}
	defer b.close()
	err := b.load(ctx, path)
	if err == nil {
		err = b.probe()
	}
	if err == nil {
		err = b.rounds(ctx)
	}
	if err == nil {
		err = b.probe()
	}
	if err != nil {
		return nil, err
	}
	b.shares()
	return b.result, nil
}

type bencher struct {
	cfg    Config
	pool   *pool.Pool
	result *Result
	model  *shard.Model
	engine *shard.Engine
	head   *shard.Head
	states []*shard.State // one a session, at depth between runs
	x, out []float32
}

func (b *bencher) close() {
	for _, s := range b.states {
		s.Close()
	}
	if b.head != nil {
		b.head.Close()
	}
	if b.engine != nil {
		b.engine.Close()
	}
	if b.model != nil {
		_ = b.model.Close() // only read
	}
}

func (b *bencher) note(format string, args ...any) {
	if b.cfg.Note != nil {
		b.cfg.Note(fmt.Sprintf(format, args...))
	}
}

// load loads the whole model, and makes one token.
func (b *bencher) load(ctx context.Context, path string) (err error) {
	begun := time.Now()
	if b.model, err = shard.Open(path); err != nil {
		return err
	}
	in, r := b.model.Info(), b.result
	if longest := b.cfg.Depth + max(b.cfg.Prefill, b.cfg.Decode); longest > in.Context {
		return fmt.Errorf("depth %d and %d tokens more are beyond the model's context of %d", b.cfg.Depth, longest-b.cfg.Depth, in.Context)
	}
	o := shard.Options{Pool: b.pool, CPU: b.cfg.CPU}
	if b.engine, err = b.model.LoadRange(0, in.Layers, o); err != nil {
		return err
	}
	if b.head, err = b.model.LoadHead(o); err != nil {
		return err
	}
	r.LoadSeconds = time.Since(begun).Seconds()
	r.Model, r.Arch, r.Kernels, r.WeightBytes = in.Name, in.Arch, b.engine.CPU(), b.engine.Bytes()+b.head.Bytes()
	r.Types, r.Note = types(b.model.File()), tensor.CPUNote()
	most := max(b.cfg.Prefill, b.cfg.Batch, warmRows, chunk)
	b.x, b.out = make([]float32, most*in.Hidden), make([]float32, max(b.cfg.Batch, 1)*in.Vocab)
	for range b.cfg.Batch {
		s, err := b.engine.NewState(0, in.Layers, b.cfg.Cache)
		if err != nil {
			return err
		}
		b.states = append(b.states, s)
	}
	if err := b.step(ctx, 1); err != nil {
		return err
	}
	r.FirstTokenSeconds = time.Since(begun).Seconds()
	return nil
}

// types names the types of a file's matrices, those with most bytes first.
func types(f *gguf.File) string {
	bytes := map[gguf.Type]int{}
	var names []gguf.Type
	for _, t := range f.Tensors() {
		if len(t.Dims) == 2 {
			if bytes[t.Type] == 0 {
				names = append(names, t.Type)
			}
			bytes[t.Type] += len(t.Data)
		}
	}
	slices.SortStableFunc(names, func(a, b gguf.Type) int { return bytes[b] - bytes[a] })
	var out []string
	for _, t := range names {
		out = append(out, t.String())
	}
	return strings.Join(out, " ")
}

// probe measures the limits, and keeps the higher of two measurements.
func (b *bencher) probe() error {
	b.note("measuring the limits of this machine ...")
	pr, err := probe.New(b.pool, probeBytes)
	if err != nil {
		return err
	}
	defer pr.Close()
	l := &b.result.Limits
	l.ReadBytesPerS = max(l.ReadBytesPerS, pr.Read(probeTime))
	ops, with := pr.Int8(probeTime)
	l.Int8OpsPerS, l.Int8With = max(l.Int8OpsPerS, ops), with
	ops, with = pr.Float(probeTime)
	l.FloatOpsPerS, l.FloatWith = max(l.FloatOpsPerS, ops), with
	return nil
}

func (b *bencher) rounds(ctx context.Context) error {
	if err := b.warm(ctx); err != nil {
		return err
	}
	r := b.result
	for i := range b.cfg.Rounds {
		b.note("round %d of %d ...", i+1, b.cfg.Rounds)
		if b.cfg.Prefill > 0 {
			start := time.Now()
			if err := b.prompt(ctx, b.states[0], b.cfg.Prefill); err != nil {
				return err
			}
			if err := b.logits(b.cfg.Prefill-1, 1); err != nil {
				return err
			}
			r.PrefillRuns = append(r.PrefillRuns, float64(b.cfg.Prefill)/time.Since(start).Seconds())
			b.back()
		}
		if b.cfg.Decode > 0 {
			start := time.Now()
			for range b.cfg.Decode {
				if err := b.step(ctx, b.cfg.Batch); err != nil {
					return err
				}
			}
			r.DecodeRuns = append(r.DecodeRuns, float64(b.cfg.Decode*b.cfg.Batch)/time.Since(start).Seconds())
			r.CacheBytes = 0
			for _, s := range b.states {
				r.CacheBytes += s.Bytes()
			}
			b.back()
		}
	}
	r.PrefillPerS, r.DecodePerS, r.ResidentBytes = median(r.PrefillRuns), median(r.DecodeRuns), resident()
	return nil
}

// warm touches all memory once and fills the sessions to their depth.
func (b *bencher) warm(ctx context.Context) error {
	rows := min(warmRows, b.model.Info().Context-1)
	if err := b.prompt(ctx, b.states[0], rows); err != nil {
		return err
	}
	for i := 0; i < warmSteps && b.states[0].Len() < b.model.Info().Context; i++ {
		if err := b.step(ctx, 1); err != nil {
			return err
		}
	}
	for _, s := range b.states {
		s.Truncate(0)
		for s.Len() < b.cfg.Depth {
			if err := b.prompt(ctx, s, min(chunk, b.cfg.Depth-s.Len())); err != nil {
				return err
			}
		}
	}
	return nil
}

// chunk is the rows by which the depth is filled.
const chunk = 512

// back takes the sessions back to their depth.
func (b *bencher) back() {
	for _, s := range b.states {
		s.Truncate(b.cfg.Depth)
	}
}

// id is the token at a position: any will do.
func (b *bencher) id(pos int) int32 { return int32((7919*pos + 13) % b.model.Info().Vocab) }

// prompt feeds n rows to a session in one chunk.
func (b *bencher) prompt(ctx context.Context, s *shard.State, n int) error {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = b.id(s.Len() + i)
	}
	x := b.x[:n*b.engine.Hidden()]
	if err := b.head.Embed(ids, x); err != nil {
		return err
	}
	return b.engine.Forward(ctx, []shard.Item{{State: s, Rows: n, X: x}})
}

// step feeds one row to each of the first n sessions and computes their logits.
func (b *bencher) step(ctx context.Context, n int) error {
	h := b.engine.Hidden()
	ids, batch := make([]int32, n), make([]shard.Item, n)
	for i := range n {
		ids[i] = b.id(b.states[i].Len() + i)
		batch[i] = shard.Item{State: b.states[i], Rows: 1, X: b.x[i*h : (i+1)*h]}
	}
	if err := b.head.Embed(ids, b.x[:n*h]); err != nil {
		return err
	}
	if err := b.engine.Forward(ctx, batch); err != nil {
		return err
	}
	return b.logits(0, n)
}

// logits computes those of n rows from row first on.
func (b *bencher) logits(first, n int) error {
	h := b.engine.Hidden()
	return b.head.Logits(b.x[first*h:(first+n)*h], n, b.out[:n*b.model.Info().Vocab])
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(x))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// shares sets the speeds beside the limits.
func (b *bencher) shares() {
	r, l := b.result, b.result.Limits
	whole, part := 0.0, 0.0 // operations and seconds at the peaks, of a whole prompt
	for _, t := range b.model.File().Tensors() {
		rows := float64(b.cfg.Prefill)
		switch {
		case len(t.Dims) != 2:
			continue
		case t == b.model.Info().Output:
			rows = 1 // only the last row's logits are wanted
		case !strings.HasPrefix(t.Name, "blk."):
			continue
		}
		ops := 2 * rows * float64(t.Dims[0]) * float64(t.Dims[1])
		whole += ops
		if t.Type == gguf.F32 || t.Type == gguf.F16 || t.Type == gguf.BF16 {
			part += ops / l.FloatOpsPerS
		} else {
			part += ops / l.Int8OpsPerS
		}
	}
	if b.cfg.Prefill > 0 {
		seconds := float64(b.cfg.Prefill) / r.PrefillPerS
		r.PrefillOps, r.PrefillPercent = whole/seconds, percent(part/seconds)
	}
	if b.cfg.Decode > 0 {
		r.DecodeBytes = float64(r.WeightBytes) * r.DecodePerS / float64(b.cfg.Batch)
		r.DecodePercent = percent(r.DecodeBytes / l.ReadBytesPerS)
	}
}

func percent(x float64) float64 { return math.Round(1000*x) / 10 }
