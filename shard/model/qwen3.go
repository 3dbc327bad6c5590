package model

// qwen3 is llama with rotary pairs half a head apart and with norms over each
// head of q and k.
func qwen3(r *reader) {
	r.ends()
	rope := r.rope(true)
	r.layers(func(_ int, blk string) Layer {
		a := r.attention(blk, rope)
		r.headNorms(blk, a)
		return Layer{
			MixerNorm: r.vector(blk+"attn_norm.weight", r.info.Hidden),
			Mixer:     a,
			FFNNorm:   r.vector(blk+"ffn_norm.weight", r.info.Hidden),
			FFN:       r.glu(blk, SiLU),
		}
	})
}
