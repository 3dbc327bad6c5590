package shard

import (
	"errors"
	"fmt"
	"sync"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/tensor"
)

// Head turns token ids into rows and rows into logits. Its methods may be called
// from several goroutines; they take turns.
type Head struct {
	model  *model.Info
	loader *loader
	embed  *gguf.Tensor
	norm   []float32
	output *tensor.Matrix

	mu   sync.Mutex
	pass pass
}

// LoadHead packs the final norm and the output matrix. Embeddings are looked up
// in the file, which must stay open. Close frees what was packed.
func (m *Model) LoadHead(o Options) (*Head, error) {
	l, err := newLoader(m, o, m.info.OutputBytes)
	if err != nil {
		return nil, fmt.Errorf("load the head: %w", err)
	}
	h := &Head{model: m.info, loader: l, embed: m.info.Embed}
	l.part("head")
	h.norm, err = l.vector(m.info.OutputNorm)
	if err == nil {
		h.output, err = l.matrix(m.info.Output)
	}
	if err == nil {
		err = l.load()
	}
	if err != nil {
		l.free()
		return nil, fmt.Errorf("load the head: %w", err)
	}
	h.pass.init(m.info, l)
	return h, nil
}

// Bytes is the memory that the packed weights take.
func (h *Head) Bytes() int64 { return h.loader.bytes() }

// Close frees the weights, after which the head must not be used.
func (h *Head) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loader.free()
	h.output = nil
}

// Embed writes the rows of ids to dst, len(ids) x Hidden values.
func (h *Head) Embed(ids []int32, dst []float32) error {
	n := h.model.Hidden
	if len(dst) != len(ids)*n {
		return fmt.Errorf("embed %d tokens: room for %d values, want %d", len(ids), len(dst), len(ids)*n)
	}
	for i, id := range ids {
		if id < 0 || int(id) >= h.model.Vocab {
			return fmt.Errorf("embed: token %d is outside the vocabulary of %d", id, h.model.Vocab)
		}
		if err := tensor.DequantRow(h.embed, int(id), dst[i*n:(i+1)*n]); err != nil {
			return fmt.Errorf("embed token %d: %w", id, err)
		}
	}
	if s := h.model.EmbedScale; s != 0 {
		h.loader.vec.Scale(dst, s)
	}
	return nil
}

// Logits writes the logits of each of the rows of x, the output of the last
// layer, to dst: rows x Vocab values. x is not changed.
func (h *Head) Logits(x []float32, rows int, dst []float32) error {
	n, vocab := h.model.Hidden, h.model.Vocab
	if rows < 1 || len(x) != rows*n || len(dst) != rows*vocab {
		return fmt.Errorf("logits of %d rows: %d values in and %d out, want %d and %d", rows, len(x), len(dst), rows*n, rows*vocab)
	}
	if at := notFinite(x); at >= 0 {
		return fmt.Errorf("logits: input is %w at row %d", ErrNotFinite, at/n)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.output == nil {
		return errors.New("the head is closed")
	}
	p := &h.pass
	for lo := 0; lo < rows; lo += maxPass {
		m := min(maxPass, rows-lo)
		normed := p.buffer("h", m*n)
		p.spread(m, n, func(a, b int) {
			for i := a; i < b; i++ {
				p.vec.RMSNorm(normed[i*n:(i+1)*n], x[(lo+i)*n:(lo+i+1)*n], h.norm, h.model.Eps)
			}
		})
		out := dst[lo*vocab : (lo+m)*vocab]
		h.output.Mul(p.pool, normed, m, out, &p.scratch)
		if h.model.LogitCap != 0 {
			p.cap(out, h.model.LogitCap)
		}
	}
	return nil
}

// cap replaces x by limit * tanh(x / limit).
func (p *pass) cap(x []float32, limit float32) {
	const part = 4096
	p.spread((len(x)+part-1)/part, 8*part, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			p.vec.SoftCap(x[i*part:min((i+1)*part, len(x))], limit)
		}
	})
}
