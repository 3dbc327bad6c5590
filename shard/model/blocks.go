package model

import (
	"encoding/binary"
	"fmt"
	"math"
)

// The blocks that architectures share.

// ends takes the embedding, the final norm and the output matrix.
func (r *reader) ends() {
	in := r.info
	const embed, output = "token_embd.weight", "output.weight"
	if t, ok := r.file.Tensor(embed); ok && len(t.Dims) == 2 && t.Dims[1] >= 1 && t.Dims[1] <= maxDim {
		in.Vocab = int(t.Dims[1])
	}
	r.bytes = &in.EmbedBytes
	in.Embed = r.matrix(embed, in.Hidden, in.Vocab)
	r.bytes = &in.OutputBytes
	in.OutputNorm = r.vector("output_norm.weight", in.Hidden)
	if _, ok := r.file.Tensor(output); ok {
		in.Output = r.matrix(output, in.Hidden, in.Vocab)
	} else {
		in.Tied = true
		in.Output = in.Embed
		in.OutputBytes += in.EmbedBytes
	}
	r.bytes = nil
}

// layers calls build for each layer i, with the names' prefix.
func (r *reader) layers(build func(i int, blk string) Layer) {
	in := r.info
	in.LayerBytes = make([]int64, in.Layers)
	in.Plan = make([]Layer, in.Layers)
	for i := range in.Plan {
		r.bytes = &in.LayerBytes[i]
		in.Plan[i] = build(i, fmt.Sprintf("blk.%d.", i))
	}
	r.bytes = nil
}

// attention takes q, k, v and output, and the biases that are there.
func (r *reader) attention(blk string, rope *Rope) *Attention {
	in := r.info
	q, kv := in.Heads*in.HeadDim, in.KVHeads*in.HeadDim
	return &Attention{
		Heads: in.Heads, KVHeads: in.KVHeads, HeadDim: in.HeadDim, Rope: rope,
		Scale: float32(1 / math.Sqrt(float64(in.HeadDim))),
		Q:     r.matrix(blk+"attn_q.weight", in.Hidden, q),
		K:     r.matrix(blk+"attn_k.weight", in.Hidden, kv),
		V:     r.matrix(blk+"attn_v.weight", in.Hidden, kv),
		O:     r.matrix(blk+"attn_output.weight", q, in.Hidden),
		QBias: r.optional(blk+"attn_q.bias", q),
		KBias: r.optional(blk+"attn_k.bias", kv),
		VBias: r.optional(blk+"attn_v.bias", kv),
	}
}

// headNorms takes the norms of q's and k's heads.
func (r *reader) headNorms(blk string, a *Attention) {
	a.QNorm = r.vector(blk+"attn_q_norm.weight", a.HeadDim)
	a.KNorm = r.vector(blk+"attn_k_norm.weight", a.HeadDim)
}

func (r *reader) glu(blk string, act Activation) *GLU {
	in := r.info
	return &GLU{
		Size: in.FFN, Act: act,
		Gate: r.matrix(blk+"ffn_gate.weight", in.Hidden, in.FFN),
		Up:   r.matrix(blk+"ffn_up.weight", in.Hidden, in.FFN),
		Down: r.matrix(blk+"ffn_down.weight", in.FFN, in.Hidden),
	}
}

// rope reads the rotary embedding that all layers share.
func (r *reader) rope(halves bool) *Rope {
	p := &Rope{
		Dims:   r.count("rope.dimension_count", r.info.HeadDim, r.info.HeadDim),
		Base:   r.positive("rope.freq_base", 10000),
		Scale:  1,
		Halves: halves,
	}
	if p.Dims%16 != 0 {
		r.fault("key %q is %d, want a multiple of 16", r.key("rope.dimension_count"), p.Dims)
	}
	switch kind, _ := r.file.String(r.key("rope.scaling.type")); kind {
	case "", "none":
	case "linear":
		p.Scale = 1 / r.positive("rope.scaling.factor", 0)
	default:
		r.fault("rope scaling %q is not supported; none and linear are", kind)
	}
	const factors = "rope_freqs.weight"
	if t := r.optional(factors, p.Dims/2); t != nil {
		p.Factors = make([]float32, p.Dims/2)
		for i := range p.Factors {
			p.Factors[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
			if f := p.Factors[i]; !(f > 0) || f > math.MaxFloat32 {
				r.fault("tensor %q: value %d is %g, want a number above 0", factors, i, f)
			}
		}
	}
	return p
}

// localLayers says which layers see only a window: all but every n-th, where
// attention.sliding_window_pattern is n or lists them.
func (r *reader) localLayers(n int) []bool {
	const name = "attention.sliding_window_pattern"
	if list, ok := r.file.Bools(r.key(name)); ok {
		if len(list) == r.info.Layers {
			return list
		}
		r.fault("key %q has %d values, want one for each of %d layers", r.key(name), len(list), r.info.Layers)
	} else {
		n = r.count(name, maxDim, n)
	}
	local := make([]bool, r.info.Layers)
	for i := range local {
		local[i] = (i+1)%n != 0
	}
	return local
}
