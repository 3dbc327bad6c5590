package model

// llama also covers Mistral and the other models that GGUF files under this
// name: plain pre-norm attention and SwiGLU. The converter has reordered q and
// k so that rotary pairs are neighbours.
func llama(r *reader) {
	r.ends()
	rope := r.rope(false)
	r.layers(func(_ int, blk string) Layer {
		return Layer{
			MixerNorm: r.vector(blk+"attn_norm.weight", r.info.Hidden),
			Mixer:     r.attention(blk, rope),
			FFNNorm:   r.vector(blk+"ffn_norm.weight", r.info.Hidden),
			FFN:       r.glu(blk, SiLU),
		}
	})
}
