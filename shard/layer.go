package shard

import (
	"fmt"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/pool"
	"github.com/meshnet/meshnet/shard/tensor"
	"github.com/meshnet/meshnet/shard/vec"
)

// rowRef is one row of a pass.
type rowRef struct {
	state *State
	pos   int
	x     []float32 // the caller's row: Hidden values
}

// layer is a loaded layer.
type layer struct {
	index     int
	mixerNorm []float32
	mixer     block
	mixerPost []float32 // nil if there is none
	ffnNorm   []float32
	ffn       block
	ffnPost   []float32 // nil if there is none
}

// block computes p.y from p.h for the rows p.rows of layer.
type block interface {
	forward(p *pass, layer int)
}

// layer loads one layer.
func (l *loader) layer(d *model.Layer, index int) (*layer, error) {
	ly := &layer{index: index}
	var err error
	for _, v := range []struct {
		to   *[]float32
		from *gguf.Tensor
	}{{&ly.mixerNorm, d.MixerNorm}, {&ly.mixerPost, d.MixerPost}, {&ly.ffnNorm, d.FFNNorm}, {&ly.ffnPost, d.FFNPost}} {
		if *v.to, err = l.vector(v.from); err != nil {
			return nil, err
		}
	}
	switch m := d.Mixer.(type) {
	case *model.Attention:
		ly.mixer, err = l.attention(m)
	default:
		err = fmt.Errorf("no arithmetic for %T", m)
	}
	if err != nil {
		return nil, err
	}
	switch f := d.FFN.(type) {
	case *model.GLU:
		ly.ffn, err = l.glu(f)
	default:
		err = fmt.Errorf("no arithmetic for %T", f)
	}
	return ly, err
}

func (ly *layer) forward(p *pass) {
	p.norm(ly.mixerNorm)
	ly.mixer.forward(p, ly.index)
	p.addNorm(ly.mixerPost, ly.ffnNorm)
	ly.ffn.forward(p, ly.index)
	p.add(ly.ffnPost)
}

// pass is the rows that go through the layers together, and the scratch memory
// for them. One pass is under way in an engine at a time.
type pass struct {
	model   *model.Info
	pool    *pool.Pool
	vec     *vec.Kernels
	scratch tensor.Scratch

	all  []rowRef // of the pass
	rows []rowRef // those of all that the current layer works on
	x    []float32
	h    []float32
	y    []float32

	angles  map[*model.Rope]*angleTable
	buffers map[string][]float32
	mixer   mixer
}

func (p *pass) init(m *model.Info, l *loader) {
	p.model, p.pool, p.vec = m, l.pool, l.vec
	p.angles = map[*model.Rope]*angleTable{}
	p.buffers = map[string][]float32{}
}

// begin forgets the rows of the last pass.
func (p *pass) begin() {
	clear(p.all)
	p.all, p.rows = p.all[:0], p.rows[:0]
}

// buffer returns n values of scratch memory by name. They keep what was in them.
func (p *pass) buffer(name string, n int) []float32 {
	b := p.buffers[name]
	if cap(b) < n {
		b = make([]float32, n)
		p.buffers[name] = b
	}
	return b[:n]
}

// gather makes p.rows the rows that pass through layer and p.x their values.
func (p *pass) gather(layer int) {
	same := len(p.rows) > 0
	for _, r := range p.all {
		was := same && r.state.start <= layer-1 && layer-1 < r.state.end
		is := r.state.start <= layer && layer < r.state.end
		same = same && was == is
	}
	if same {
		return
	}
	p.scatter()
	p.rows = p.rows[:0]
	for _, r := range p.all {
		if r.state.start <= layer && layer < r.state.end {
			p.rows = append(p.rows, r)
		}
	}
	n, h := len(p.rows), p.model.Hidden
	p.x, p.h, p.y = p.buffer("x", n*h), p.buffer("h", n*h), p.buffer("y", n*h)
	for i, r := range p.rows {
		copy(p.x[i*h:(i+1)*h], r.x)
	}
	p.findAngles()
}

// scatter gives the rows' values back to their owners.
func (p *pass) scatter() {
	h := p.model.Hidden
	for i, r := range p.rows {
		copy(r.x, p.x[i*h:(i+1)*h])
	}
	clear(p.rows) // they point to states that may be closed soon
	p.rows = p.rows[:0]
}

// spread calls fn with parts [lo, hi) of n rows, on all threads when there is
// more than a little to do: values is the work of a row, in values touched.
func (p *pass) spread(n, values int, fn func(lo, hi int)) {
	const little = 16 << 10 // about 2 us of work
	parts := min(n, 4*p.pool.Threads(), 1+n*values/little)
	if parts == 1 || p.pool.Threads() == 1 {
		fn(0, n)
		return
	}
	p.pool.Run(parts, func(i int) { fn(n*i/parts, n*(i+1)/parts) })
}

// norm sets p.h to the norm of p.x.
func (p *pass) norm(w []float32) {
	n := p.model.Hidden
	p.spread(len(p.rows), n, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			p.vec.RMSNorm(p.h[i*n:(i+1)*n], p.x[i*n:(i+1)*n], w, p.model.Eps)
		}
	})
}

// addNorm adds p.y to p.x and sets p.h to the norm of that. With post, what is
// added is the norm of p.y.
func (p *pass) addNorm(post, w []float32) {
	n := p.model.Hidden
	p.spread(len(p.rows), 2*n, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			x := p.addRow(i, post)
			p.vec.RMSNorm(p.h[i*n:(i+1)*n], x, w, p.model.Eps)
		}
	})
}

// add adds p.y to p.x, as addNorm does.
func (p *pass) add(post []float32) {
	p.spread(len(p.rows), p.model.Hidden, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			p.addRow(i, post)
		}
	})
}

func (p *pass) addRow(i int, post []float32) []float32 {
	n := p.model.Hidden
	x, y := p.x[i*n:(i+1)*n], p.y[i*n:(i+1)*n]
	if post != nil {
		p.vec.RMSNorm(y, y, post, p.model.Eps)
	}
	p.vec.Add(x, y)
	return x
}
