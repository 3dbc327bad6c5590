package shard

import (
	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/tensor"
	"github.com/meshnet/meshnet/shard/vec"
)

// attention is causal softmax attention. A state's chunk of a layer holds, for
// each key head, a key chunk and a value chunk as package vec reads them.
//
// What a query vector gets out of the keys and values is computed in mix.go.
type attention struct {
	heads, kvHeads, dim int
	group               int // query heads of a key head
	rope                *model.Rope
	qkv                 *linear
	qb, kb, vb          []float32 // nil without bias
	qNorm, kNorm        []float32 // nil without norm
	out                 *tensor.Matrix
	scale               float32
	window              int // positions that one sees, its own included; 0: all
	views               [3]view
}

func (l *loader) attention(d *model.Attention) (*attention, error) {
	a := &attention{
		heads: d.Heads, kvHeads: d.KVHeads, dim: d.HeadDim, group: d.Heads / d.KVHeads, rope: d.Rope,
		scale: d.Scale, window: d.Window,
	}
	var err error
	if a.qkv, err = l.linear("qkv", d.Q, d.K, d.V); err != nil {
		return nil, err
	}
	if a.out, err = l.matrix(d.O); err != nil {
		return nil, err
	}
	for _, v := range []struct {
		to   *[]float32
		from *gguf.Tensor
	}{{&a.qb, d.QBias}, {&a.kb, d.KBias}, {&a.vb, d.VBias}, {&a.qNorm, d.QNorm}, {&a.kNorm, d.KNorm}} {
		if *v.to, err = l.vector(v.from); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *attention) forward(p *pass, layer int) {
	n := len(p.rows)
	v := a.qkv.mul(p, p.h, n, a.views[:])
	width := a.heads * a.dim
	angles := p.angles[a.rope]
	p.spread(n, 4*(a.heads+2*a.kvHeads)*a.dim, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			a.prepare(p, angles, layer, i, v)
		}
	})
	o := p.buffer("attention", n*width)
	p.mixer.run(p, a, layer, v[0], o)
	a.out.Mul(p.pool, o, n, p.y, &p.scratch)
}

// prepare adds the biases, norms and turns q and k, scales q, and puts k and v of row i
// into its state.
func (a *attention) prepare(p *pass, angles *angleTable, layer, i int, v []view) {
	q, k, val := v[0].row(i), v[1].row(i), v[2].row(i)
	if a.qb != nil {
		p.vec.Add(q, a.qb)
	}
	if a.kb != nil {
		p.vec.Add(k, a.kb)
	}
	if a.vb != nil {
		p.vec.Add(val, a.vb)
	}
	cos, sin := angles.row(i)
	turn := p.vec.RopePairs
	if a.rope.Halves {
		turn = p.vec.RopeHalves
	}
	for h := range a.heads {
		head := q[h*a.dim : (h+1)*a.dim]
		if a.qNorm != nil {
			p.vec.RMSNorm(head, head, a.qNorm, p.model.Eps)
		}
		turn(head, cos, sin)
	}
	p.vec.Scale(q, a.scale)
	r := p.rows[i]
	chunk, slot := r.state.rows(layer, r.pos), r.pos%vec.Chunk
	for h := range a.kvHeads {
		head := k[h*a.dim : (h+1)*a.dim]
		if a.kNorm != nil {
			p.vec.RMSNorm(head, head, a.kNorm, p.model.Eps)
		}
		turn(head, cos, sin)
		keys, values := a.part(r.state, chunk, h)
		r.state.cache.PutKey(keys, slot, head)
		r.state.cache.PutValue(values, slot, val[h*a.dim:(h+1)*a.dim])
	}
}

// part is the key chunk and the value chunk of a key head in a chunk of a state.
func (a *attention) part(s *State, chunk []byte, kvHead int) (keys, values []byte) {
	n := s.cache.PartBytes(a.dim)
	chunk = chunk[2*n*kvHead : 2*n*(kvHead+1)]
	return chunk[:n], chunk[n:]
}

// sees is the first position that pos looks at.
func (a *attention) sees(pos int) int {
	if a.window == 0 {
		return 0
	}
	return max(0, pos+1-a.window)
}

// angleTable is the cosines and sines of a pass's rows for one Rope.
type angleTable struct {
	angles   *vec.Angles
	half     int
	cos, sin []float32 // rows x half
}

func (t *angleTable) row(i int) (cos, sin []float32) {
	return t.cos[i*t.half : (i+1)*t.half], t.sin[i*t.half : (i+1)*t.half]
}

// addAngles makes a table for each Rope of the layers.
func (p *pass) addAngles(layers []model.Layer) {
	for _, ly := range layers {
		a, ok := ly.Mixer.(*model.Attention)
		if !ok || p.angles[a.Rope] != nil {
			continue
		}
		r := a.Rope
		p.angles[r] = &angleTable{half: r.Dims / 2, angles: vec.NewAngles(r.Dims, r.Base, r.Scale, r.Factors)}
	}
}

// findAngles fills the tables for the positions of p.rows.
func (p *pass) findAngles() {
	n := len(p.rows)
	for _, t := range p.angles {
		if cap(t.cos) < n*t.half {
			t.cos, t.sin = make([]float32, n*t.half), make([]float32, n*t.half)
		}
		t.cos, t.sin = t.cos[:n*t.half], t.sin[:n*t.half]
		p.spread(n, 100*t.half, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				cos, sin := t.row(i)
				t.angles.At(p.rows[i].pos, cos, sin)
			}
		})
	}
}
