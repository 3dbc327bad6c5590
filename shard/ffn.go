package shard

import (
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/tensor"
)

// glu is down · (act(gate · h) * (up · h)).
type glu struct {
	size   int
	act    func(dst, gate, up []float32)
	gateUp *linear
	down   *tensor.Matrix
	views  [2]view
}

func (l *loader) glu(d *model.GLU) (*glu, error) {
	act := l.vec.SiLUMul
	if d.Act == model.GELU {
		act = l.vec.GELUMul
	}
	gateUp, err := l.linear("ffn", d.Gate, d.Up)
	if err != nil {
		return nil, err
	}
	down, err := l.matrix(d.Down)
	if err != nil {
		return nil, err
	}
	return &glu{size: d.Size, act: act, gateUp: gateUp, down: down}, nil
}

func (f *glu) forward(p *pass, _ int) {
	n := len(p.rows)
	v := f.gateUp.mul(p, p.h, n, f.views[:])
	act := p.buffer("act", n*f.size)
	p.spread(n, 4*f.size, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			f.act(act[i*f.size:(i+1)*f.size], v[0].row(i), v[1].row(i))
		}
	})
	f.down.Mul(p.pool, act, n, p.y, &p.scratch)
}
