package shard

import (
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/tensor"
)

// swiglu is down · (silu(gate · h) * (up · h)).
type swiglu struct {
	size   int
	gateUp *linear
	down   *tensor.Matrix
	views  [2]view
}

func (l *loader) swiglu(d *model.SwiGLU) (*swiglu, error) {
	gateUp, err := l.linear("ffn", d.Gate, d.Up)
	if err != nil {
		return nil, err
	}
	down, err := l.matrix(d.Down)
	if err != nil {
		return nil, err
	}
	return &swiglu{size: d.Size, gateUp: gateUp, down: down}, nil
}

func (f *swiglu) forward(p *pass, _ int) {
	n := len(p.rows)
	v := f.gateUp.mul(p, p.h, n, f.views[:])
	act := p.buffer("act", n*f.size)
	p.spread(n, 4*f.size, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			p.vec.SiLUMul(act[i*f.size:(i+1)*f.size], v[0].row(i), v[1].row(i))
		}
	})
	f.down.Mul(p.pool, act, n, p.y, &p.scratch)
}
