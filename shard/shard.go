// Package shard computes a range of a model's layers: it is the engine.
//
// A Model is an open file. An Engine holds the weights of layers [start, end)
// and applies them to rows of many sessions at once; a State is what one session
// leaves behind in them. A Head holds what stands before the first layer and
// after the last: embedding, final norm, output matrix.
//
// Invariant: the output for a row depends on the model file and on the rows of
// its session so far. Not on how layers are split over engines, how many rows
// come at once, which other sessions share the batch, how many threads compute
// it, or which instructions they use.
//
// Start with Engine.Forward; a layer is in layer.go, attention in attention.go.
package shard

import (
	"errors"
	"fmt"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/pool"
	"github.com/meshnet/meshnet/shard/tensor"
	"github.com/meshnet/meshnet/shard/vec"
)

// Model is an open model file, checked, with nothing loaded.
type Model struct {
	file *gguf.File
	info *model.Info
}

// Open maps a model file and checks all that the engine will need of it.
func Open(path string) (*Model, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := model.Read(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("model file %q: %w", path, err), f.Close())
	}
	return &Model{file: f, info: info}, nil
}

// Parse is Open for the bytes of a file, which must not change while the model is in use.
func Parse(data []byte) (*Model, error) {
	f, err := gguf.Parse(data)
	if err != nil {
		return nil, err
	}
	info, err := model.Read(f)
	if err != nil {
		return nil, err
	}
	return &Model{file: f, info: info}, nil
}

// Info describes the model. It must not be changed.
func (m *Model) Info() *model.Info { return m.info }

// File is the open file.
func (m *Model) File() *gguf.File { return m.file }

// Close unmaps the file. Engines may be used on; a Head, which looks up
// embeddings in the file, may not.
func (m *Model) Close() error { return m.file.Close() }

// Options say how weights are loaded and computed with.
type Options struct {
	Threads int        // of a new pool; 0: as many as the machine runs at once
	Pool    *pool.Pool // used instead of a new one; it stays the caller's to close
	CPU     string     // kernel set: "avx512", "avxvnni", "avx2", "neon", "generic"; "": the best, or what MESHNET_CPU says

	// Progress is called from the loading goroutine after each matrix.
	Progress func(doneBytes, totalBytes int64)
}

// loader packs tensors and keeps count.
type loader struct {
	file     *gguf.File
	cpu      string
	pool     *pool.Pool
	ownPool  bool
	vec      *vec.Kernels
	matrices []*tensor.Matrix
	arena    tensor.Arena
	total    int64
	done     int64
	progress func(done, total int64)
}

func newLoader(m *Model, o Options, total int64) (*loader, error) {
	l := &loader{file: m.file, cpu: o.CPU, pool: o.Pool, total: total, progress: o.Progress}
	if l.cpu == "" {
		cpu, err := tensor.CPU()
		if err != nil {
			return nil, err
		}
		l.cpu = cpu
	}
	var err error
	if l.vec, err = vec.For(l.cpu); err != nil {
		return nil, err
	}
	if l.pool == nil {
		l.pool, l.ownPool = pool.New(o.Threads), true
	}
	return l, nil
}

// matrix packs tensors of one type and row length into one matrix.
func (l *loader) matrix(ts ...*gguf.Tensor) (*tensor.Matrix, error) {
	m, err := tensor.PackFusedFor(l.cpu, &l.arena, l.pool, ts...)
	if err != nil {
		return nil, err
	}
	l.matrices = append(l.matrices, m)
	for _, t := range ts {
		l.count(t)
	}
	return m, nil
}

// vector copies a float32 vector out of the file; nil stays nil.
func (l *loader) vector(t *gguf.Tensor) ([]float32, error) {
	if t == nil {
		return nil, nil
	}
	v := make([]float32, t.Dims[0])
	if err := tensor.DequantRow(t, 0, v); err != nil {
		return nil, err
	}
	for i, x := range v {
		if !finite(x) {
			return nil, fmt.Errorf("tensor %q: value %d is %g: the file is damaged", t.Name, i, x)
		}
	}
	l.count(t)
	return v, nil
}

func (l *loader) count(t *gguf.Tensor) {
	l.file.Release(t)
	l.done += int64(len(t.Data))
	if l.progress != nil {
		l.progress(l.done, l.total)
	}
}

// free drops what was loaded, after an error or at the end.
func (l *loader) free() {
	for _, m := range l.matrices {
		m.Close()
	}
	l.matrices = nil
	if l.ownPool {
		l.pool.Close()
		l.ownPool = false
	}
}

// bytes is the memory that the packed matrices take.
func (l *loader) bytes() int64 {
	var n int64
	for _, m := range l.matrices {
		n += m.Bytes()
	}
	return n
}
