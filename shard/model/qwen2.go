package model

// qwen2 is llama with rotary pairs half a head apart and with biases on q, k and
// v, which it always has.
func qwen2(r *reader) {
	r.ends()
	rope := r.rope(true)
	r.layers(func(_ int, blk string) Layer {
		a := r.attention(blk, rope)
		if a.QBias == nil || a.KBias == nil || a.VBias == nil {
			r.fault("tensors %q, k and v are missing or broken", blk+"attn_q.bias")
		}
		return Layer{
			MixerNorm: r.vector(blk+"attn_norm.weight", r.info.Hidden),
			Mixer:     a,
			FFNNorm:   r.vector(blk+"ffn_norm.weight", r.info.Hidden),
			FFN:       r.glu(blk, SiLU),
		}
	})
}
