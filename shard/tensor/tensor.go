// Package tensor multiplies packed weight matrices with rows of activations.
//
// Invariant: an output value depends on its weight row and its activation row and on nothing else; not on how many rows
// came with it, on tiles, threads or instruction sets. The kernels in plain Go (twin.go) define every bit; those in
// assembly, written by gen, equal them.
//
// A matrix is repacked once, when it is loaded (form.go says how it then lies in memory), and quantized weights meet
// activations that are quantized to int8 in blocks of 32 (acts.go). Start reading at Matrix.Mul, then form.go and twin.go.
package tensor

import (
	"fmt"
	"runtime"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
)

// MaxCols bounds the length of a row, far above any model's.
const MaxCols = 1 << 20

// Matrix is a packed weight matrix of Rows x Cols. It is safe for concurrent use; Close frees its memory.
type Matrix struct {
	rows, cols int
	typ        gguf.Type
	form       *form
	panel      int // bytes of 64 packed rows
	data       []byte
	free       func()
	cleanup    runtime.Cleanup
	ks         *kernelSet
	sources    []*gguf.Tensor
}

// Pack repacks a tensor of one or two dims for multiplication; one dim is a single row. It spreads the work over p and
// fails on a type without kernels, on rows that are not whole blocks, and on scales or values that are not finite.
func Pack(t *gguf.Tensor, p *pool.Pool) (*Matrix, error) { return PackFused(p, t) }

// PackFused stacks the rows of several tensors of one type and one row length into one matrix.
func PackFused(p *pool.Pool, ts ...*gguf.Tensor) (*Matrix, error) {
	ks, err := chosen()
	if err != nil {
		return nil, err
	}
	return packFused(ks, p, ts...)
}

func packFused(ks *kernelSet, p *pool.Pool, ts ...*gguf.Tensor) (*Matrix, error) {
	m, err := lay(ks, ts...)
	if err != nil {
		return nil, err
	}
	mem, free, err := alloc(int(m.Bytes()))
	if err != nil {
		return nil, fmt.Errorf("pack tensor %q: %w", ts[0].Name, err)
	}
	m.Place(mem)
	if err := Fill(p, []*Matrix{m}, nil); err != nil {
		free()
		return nil, err
	}
	m.free = free
	m.cleanup = runtime.AddCleanup(m, func(free func()) { free() }, m.free)
	return m, nil
}

// check says whether a tensor can become a matrix.
func check(t *gguf.Tensor) error {
	f := formOf(t.Type)
	switch {
	case f == nil:
		return fmt.Errorf("type %s has no kernels here; known are %s", t.Type, knownTypes())
	case len(t.Dims) < 1 || len(t.Dims) > 2:
		return fmt.Errorf("%d dims, a matrix has 1 or 2", len(t.Dims))
	case t.Dims[0] > MaxCols:
		return fmt.Errorf("rows of %d values, at most %d are supported", t.Dims[0], MaxCols)
	case t.Dims[0]%uint64(f.unit) != 0:
		return fmt.Errorf("rows of %d values are not whole blocks of %d (%s)", t.Dims[0], f.unit, t.Type)
	case len(t.Data) != t.Rows()*t.RowBytes():
		return fmt.Errorf("%d bytes of data, dims %d of %s need %d", len(t.Data), t.Dims, t.Type, t.Rows()*t.RowBytes())
	}
	return nil
}

// Rows is the length of one output row.
func (m *Matrix) Rows() int { return m.rows }

// Cols is the length of one activation row.
func (m *Matrix) Cols() int { return m.cols }

// Type is the weights' type in the file.
func (m *Matrix) Type() gguf.Type { return m.typ }

// Bytes is the memory that the packed weights take.
func (m *Matrix) Bytes() int64 { return int64(m.panels()) * int64(m.panel) }

func (m *Matrix) panels() int { return (m.rows + panelRows - 1) / panelRows }

// Close frees the weights, unless they are in memory given by Place. The matrix must not be used afterwards. A matrix that
// is dropped without Close is freed when it is collected.
func (m *Matrix) Close() {
	if m.free != nil {
		m.cleanup.Stop()
		m.free()
		m.free = nil
	}
	m.data = nil
}

// Row writes the weights of row i, dequantized exactly as ggml does, to dst[:Cols()].
func (m *Matrix) Row(i int, dst []float32) {
	if i < 0 || i >= m.rows {
		panic(fmt.Sprintf("tensor: row %d of a matrix of %d rows", i, m.rows))
	}
	m.form.row(m.data[i/panelRows*m.panel:][:m.panel], i%panelRows, dst[:m.cols])
	runtime.KeepAlive(m)
}
