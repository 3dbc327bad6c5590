package shard

import (
	"fmt"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/tensor"
)

// linear is several weight matrices that are multiplied with the same rows.
// Neighbours of one type are stacked into one, for fewer and longer loops.
type linear struct {
	matrices []*tensor.Matrix
	buffers  []string // names of the scratch buffers for their output
	parts    []part
}

// part is where the output of one of the tensors is.
type part struct {
	matrix, offset, rows int
}

// view is a table of rows inside a wider one.
type view struct {
	data          []float32
	offset, width int
	stride        int
}

func (v view) row(i int) []float32 {
	return v.data[i*v.stride+v.offset:][:v.width]
}

func (l *loader) linear(name string, ts ...*gguf.Tensor) (*linear, error) {
	li := &linear{}
	for len(ts) > 0 {
		n := 1
		for n < len(ts) && ts[n].Type == ts[0].Type {
			n++
		}
		m, err := l.matrix(ts[:n]...)
		if err != nil {
			return nil, err
		}
		offset := 0
		for _, t := range ts[:n] {
			li.parts = append(li.parts, part{len(li.matrices), offset, t.Rows()})
			offset += t.Rows()
		}
		li.buffers = append(li.buffers, fmt.Sprint(name, len(li.matrices)))
		li.matrices = append(li.matrices, m)
		ts = ts[n:]
	}
	return li, nil
}

// maxParts is the most tensors of a linear.
const maxParts = 3

// mul multiplies n rows of x and returns each tensor's output. The memory is
// good until the next linear of that name.
func (li *linear) mul(p *pass, x []float32, n int, views []view) []view {
	p.scratch.Quantize(p.pool, x, n, li.matrices[0].Cols())
	var outs [maxParts][]float32
	for i, m := range li.matrices {
		outs[i] = p.buffer(li.buffers[i], n*m.Rows())
		m.MulQ(p.pool, &p.scratch, outs[i])
	}
	views = views[:0]
	for _, pt := range li.parts {
		views = append(views, view{outs[pt.matrix], pt.offset, pt.rows, li.matrices[pt.matrix].Rows()})
	}
	return views
}
