package model

import "math"

// gemma3 has norms of q and k like qwen3, norms before and after each block,
// GELU, scaled embeddings, and layers that see only a window of positions and
// have angles of their own. What the file leaves out is fixed here: the pattern
// of the layers, their base, and that the largest model scales scores otherwise.
// The norms' weights are complete in the file (transformers adds 1 to them).
func gemma3(r *reader) {
	r.ends()
	in := r.info
	in.EmbedScale = float32(math.Sqrt(float64(in.Hidden)))
	const limit = "final_logit_softcapping"
	if v, ok := r.file.Float(r.key(limit)); r.file.Has(r.key(limit)) && !(ok && v == 0) {
		in.LogitCap = float32(r.positive(limit, 0))
	}
	global := r.rope(true)
	local := &Rope{Dims: global.Dims, Base: r.positive("rope.freq_base_swa", 10000), Scale: 1, Factors: global.Factors, Halves: true}
	window := r.count("attention.sliding_window", maxContext, 0)
	isLocal := r.localLayers(6)
	scale := 1 / math.Sqrt(float64(in.HeadDim))
	if in.Layers == 62 { // the 27B
		scale = 1 / math.Sqrt(float64(in.Hidden)/float64(in.Heads))
	}
	r.layers(func(i int, blk string) Layer {
		a := r.attention(blk, global)
		if isLocal[i] {
			a.Rope, a.Window = local, window
		}
		a.Scale = float32(scale)
		r.headNorms(blk, a)
		return Layer{
			MixerNorm: r.vector(blk+"attn_norm.weight", in.Hidden),
			Mixer:     a,
			MixerPost: r.vector(blk+"post_attention_norm.weight", in.Hidden),
			FFNNorm:   r.vector(blk+"ffn_norm.weight", in.Hidden),
			FFN:       r.glu(blk, GELU),
			FFNPost:   r.vector(blk+"post_ffw_norm.weight", in.Hidden),
		}
	})
}
