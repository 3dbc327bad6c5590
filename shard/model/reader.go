package model

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/tensor"
)

// reader takes keys and tensors out of a file and collects what is wrong.
type reader struct {
	file   *gguf.File
	arch   string
	info   *Info
	used   map[string]bool
	bytes  *int64 // where the sizes of the tensors taken are added up
	faults []error
	more   int
}

// maxFaults bounds an error's length: a file with the wrong size of everything
// would fill the screen.
const maxFaults = 8

// Bounds of geometry, far above any model, that keep products of two inside
// an int and make shapes that no tensor can have fail early.
const (
	maxDim     = 1 << 24
	maxContext = 1 << 28
)

func newReader(f *gguf.File, arch string) *reader {
	return &reader{file: f, arch: arch, info: &Info{Arch: arch}, used: map[string]bool{}}
}

func (r *reader) fault(format string, args ...any) {
	if len(r.faults) == maxFaults {
		r.more++
		return
	}
	r.faults = append(r.faults, fmt.Errorf(format, args...))
}

func (r *reader) err() error {
	if r.more > 0 {
		return errors.Join(append(r.faults, fmt.Errorf("and %d more faults", r.more))...)
	}
	return errors.Join(r.faults...)
}

func (r *reader) key(name string) string { return r.arch + "." + name }

// count reads a whole number in [1, limit]. Without a default (0) the key must
// be there.
func (r *reader) count(name string, limit, def int) int {
	key := r.key(name)
	v, ok := r.file.Uint(key)
	switch {
	case !r.file.Has(key) && def > 0:
		return def
	case !r.file.Has(key):
		r.fault("key %q is missing", key)
	case !ok:
		r.fault("key %q is of kind %s, want a whole number", key, r.file.Kind(key))
	case v < 1 || v > uint64(limit):
		r.fault("key %q is %d, want 1 to %d", key, v, limit)
	default:
		return int(v)
	}
	return 1 // keeps divisions after a fault harmless
}

// positive reads a number above 0. Without a default (0) the key must be there.
func (r *reader) positive(name string, def float64) float64 {
	key := r.key(name)
	v, ok := r.file.Float(key)
	switch {
	case !r.file.Has(key) && def > 0:
		return def
	case !r.file.Has(key):
		r.fault("key %q is missing", key)
	case !ok:
		r.fault("key %q is of kind %s, want a number", key, r.file.Kind(key))
	case !(v > 0) || math.IsInf(v, 1):
		r.fault("key %q is %g, want a number above 0", key, v)
	default:
		return v
	}
	return 1
}

// geometry reads what all architectures have.
func (r *reader) geometry() {
	in := r.info
	in.Name, _ = r.file.String("general.name")
	in.Layers = r.count("block_count", maxDim, 0)
	in.Hidden = r.count("embedding_length", maxDim, 0)
	in.FFN = r.count("feed_forward_length", maxDim, 0)
	in.Heads = r.count("attention.head_count", maxDim, 0)
	in.KVHeads = r.count("attention.head_count_kv", maxDim, in.Heads)
	in.HeadDim = r.count("attention.key_length", maxDim, max(1, in.Hidden/in.Heads))
	in.Context = r.count("context_length", maxContext, 0)
	in.Eps = float32(r.positive("attention.layer_norm_rms_epsilon", 0))
	if v := r.count("attention.value_length", maxDim, in.HeadDim); v != in.HeadDim {
		r.fault("values of %d and keys of %d a head: unequal sizes are not supported", v, in.HeadDim)
	}
	if in.Heads%in.KVHeads != 0 {
		r.fault("%d heads cannot share %d key heads evenly", in.Heads, in.KVHeads)
	}
	// The vector kernels work on 16 values at a time.
	for _, c := range []struct {
		what string
		n    int
	}{{"embedding_length", in.Hidden}, {"head size", in.HeadDim}, {"feed_forward_length", in.FFN}} {
		if c.n%16 != 0 {
			r.fault("%s is %d, want a multiple of 16", c.what, c.n)
		}
	}
	// Every layer has tensors, so this bounds all loops over layers.
	if n := len(r.file.Tensors()); in.Layers > n {
		r.fault("key %q is %d, but the file has only %d tensors", r.key("block_count"), in.Layers, n)
	}
	if _, ok := r.file.Uint(r.key("expert_count")); ok && r.count("expert_count", maxDim, 0) > 1 {
		r.fault("a mixture of experts is not supported")
	}
}

// matrix takes a weight matrix of rows rows and cols columns.
func (r *reader) matrix(name string, cols, rows int) *gguf.Tensor {
	t := r.take(name, cols, rows)
	if t != nil && !tensor.Supported(t.Type) {
		r.fault("tensor %q is of type %v, which is not supported for matrices", name, t.Type)
	}
	return t
}

// vector takes a float32 vector.
func (r *reader) vector(name string, n int) *gguf.Tensor {
	t := r.take(name, n)
	if t != nil && t.Type != gguf.F32 {
		r.fault("tensor %q is of type %v, want F32", name, t.Type)
	}
	return t
}

// optional is vector for one that may be absent.
func (r *reader) optional(name string, n int) *gguf.Tensor {
	if _, ok := r.file.Tensor(name); !ok {
		return nil
	}
	return r.vector(name, n)
}

func (r *reader) take(name string, dims ...int) *gguf.Tensor {
	t, ok := r.file.Tensor(name)
	if !ok {
		r.fault("tensor %q is missing", name)
		return nil
	}
	r.used[name] = true
	same := len(t.Dims) >= len(dims)
	for i, d := range t.Dims {
		want := 1 // trailing dims of 1 mean nothing
		if i < len(dims) {
			want = dims[i]
		}
		same = same && d == uint64(want)
	}
	if !same {
		r.fault("tensor %q has dims %v, want %v", name, t.Dims, dims)
		return nil
	}
	if t.Data == nil {
		r.fault("tensor %q is of the unknown type %v", name, t.Type)
		return nil
	}
	if r.bytes != nil {
		*r.bytes += int64(len(t.Data))
	}
	return t
}

// unused finds tensors of layers that no block took: the engine would compute
// something else than the model's maker meant.
func (r *reader) unused() {
	for _, t := range r.file.Tensors() {
		if strings.HasPrefix(t.Name, "blk.") && !r.used[t.Name] && !strings.HasSuffix(t.Name, ".attn_rot_embd") {
			r.fault("tensor %q has no place in this architecture as supported here", t.Name)
		}
	}
}
