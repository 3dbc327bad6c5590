package tiny

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/vec"
)

// Mixed is a model for tests of the engine: its matrices take the types in turn, in layers where neighbours have the same type
// (and are stacked when they are packed) and in layers where they have not. Random bytes make the blocks, so that all of a
// type's bits are in use. It has no vocabulary: ids go in, logits come out.
type Mixed struct {
	Arch  string // one of MixedArchs
	Types []gguf.Type
	Seed  uint64
}

// MixedArchs are the architectures that Mixed can make, whether or not the engine knows them.
func MixedArchs() []string { return []string{"llama", "qwen2", "qwen3", "gemma3"} }

// The geometry: rows are one super-block, and the vocabulary is no multiple of anything, for the last rows of a matrix.
const (
	mixedWidth   = 256
	mixedHeads   = 4
	mixedKVHeads = 2
	mixedLayers  = 4
	mixedContext = 640
	mixedWindow  = 24
)

// MixedVocab is how many ids a Mixed model has.
const MixedVocab = 301

// Write writes the model as GGUF.
func (m Mixed) Write(w io.Writer) error {
	if len(m.Types) == 0 {
		return fmt.Errorf("write a mixed model: no types given")
	}
	b := &mixer{Mixed: m, rng: rng{m.Seed}}
	a := m.Arch + "."
	kv := []gguf.KV{
		{Key: "general.architecture", Value: m.Arch},
		{Key: a + "block_count", Value: uint32(mixedLayers)},
		{Key: a + "context_length", Value: uint32(mixedContext)},
		{Key: a + "embedding_length", Value: uint32(mixedWidth)},
		{Key: a + "feed_forward_length", Value: uint32(mixedWidth)},
		{Key: a + "attention.head_count", Value: uint32(mixedHeads)},
		{Key: a + "attention.head_count_kv", Value: uint32(mixedKVHeads)},
		{Key: a + "attention.layer_norm_rms_epsilon", Value: float32(1e-5)},
		{Key: a + "rope.freq_base", Value: float32(10000)},
	}
	b.matrix("token_embd.weight", MixedVocab, 16)
	b.norm("output_norm.weight", mixedWidth)
	switch m.Arch {
	case "llama": // with frequencies of its own and an output matrix of its own
		b.norm("rope_freqs.weight", mixedWidth/mixedHeads/2)
		b.matrix("output.weight", MixedVocab, 3)
	case "qwen2": // with stretched positions and biases
		kv = append(kv, gguf.KV{Key: a + "rope.scaling.type", Value: "linear"}, gguf.KV{Key: a + "rope.scaling.factor", Value: float32(2)})
	case "qwen3": // like qwen2, but with norms of each head
	case "gemma3": // layers that see a window in turns with layers that see all, and a soft cap on logits
		kv = append(kv, gguf.KV{Key: a + "attention.sliding_window", Value: uint32(mixedWindow)}, gguf.KV{Key: a + "attention.sliding_window_pattern", Value: uint32(2)},
			gguf.KV{Key: a + "final_logit_softcapping", Value: float32(30)})
	default:
		return fmt.Errorf("write a mixed model: architecture %q is not one of %v", m.Arch, MixedArchs())
	}
	for i := range mixedLayers {
		b.layer(i)
	}
	return gguf.Write(w, kv, b.tensors)
}

type mixer struct {
	Mixed
	rng     rng
	turn    int
	tensors []gguf.TensorInfo
}

func (b *mixer) layer(i int) {
	p := fmt.Sprintf("blk.%d.", i)
	const head, kv = mixedWidth / mixedHeads, mixedWidth / mixedHeads * mixedKVHeads
	same := i%2 == 0
	matrix := func(name string, rows int, like bool) {
		if like && same {
			b.turn--
		}
		b.matrix(p+name+".weight", rows, 1)
	}
	b.norm(p+"attn_norm.weight", mixedWidth)
	matrix("attn_q", mixedWidth, false)
	matrix("attn_k", kv, true)
	matrix("attn_v", kv, true)
	switch b.Arch {
	case "qwen2":
		b.norm(p+"attn_q.bias", mixedWidth)
		b.norm(p+"attn_k.bias", kv)
		b.norm(p+"attn_v.bias", kv)
	case "gemma3":
		b.norm(p+"post_attention_norm.weight", mixedWidth)
		b.norm(p+"post_ffw_norm.weight", mixedWidth)
		fallthrough
	case "qwen3":
		b.norm(p+"attn_q_norm.weight", head)
		b.norm(p+"attn_k_norm.weight", head)
	}
	matrix("attn_output", mixedWidth, false)
	b.norm(p+"ffn_norm.weight", mixedWidth)
	matrix("ffn_gate", mixedWidth, false)
	matrix("ffn_up", mixedWidth, true)
	matrix("ffn_down", mixedWidth, false)
}

// norm makes n float32 between 0.75 and 1.25.
func (b *mixer) norm(name string, n int) {
	t := gguf.TensorInfo{Name: name, Type: gguf.F32, Dims: []uint64{uint64(n)}}
	for range n {
		t.Data = appendRow(t.Data, gguf.F32, []float32{0.75 + float32(b.rng.next()>>48)/(1<<17)})
	}
	b.tensors = append(b.tensors, t)
}

// matrix makes a matrix of the next type whose values have about the deviation gain/16, which keeps the length of a row.
func (b *mixer) matrix(name string, rows int, gain float64) {
	typ := b.Types[b.turn%len(b.Types)]
	b.turn++
	t := gguf.TensorInfo{Name: name, Type: typ, Dims: []uint64{mixedWidth, uint64(rows)}}
	for range rows * mixedWidth / typ.BlockSize() {
		t.Data = b.block(t.Data, typ, gain/16)
	}
	b.tensors = append(b.tensors, t)
}

// block appends a block of random bytes with scales that give its values the deviation s, or a random float.
func (b *mixer) block(dst []byte, typ gguf.Type, s float64) []byte {
	le := binary.LittleEndian
	switch typ {
	case gguf.F32:
		return le.AppendUint32(dst, math.Float32bits(float32(b.rng.bell()*s)))
	case gguf.F16:
		return le.AppendUint16(dst, vec.ToF16(float32(b.rng.bell()*s)))
	case gguf.BF16:
		return le.AppendUint16(dst, uint16(math.Float32bits(float32(b.rng.bell()*s))>>16))
	}
	at := len(dst)
	for n := typ.BlockBytes(); n > 0; n -= 8 {
		var eight [8]byte
		le.PutUint64(eight[:], b.rng.next())
		dst = append(dst, eight[:min(8, n)]...)
	}
	blk := dst[at:]
	half := func(off int, v float64) { le.PutUint16(blk[off:], vec.ToF16(float32(v))) }
	vary := 0.5 + float64(b.rng.next()>>48)/(1<<16) // of scales, and either sign
	if b.rng.next()&1 == 1 {
		vary = -vary
	}
	s *= vary
	switch typ { // s over the deviation of random quants times that of random integer scales
	case gguf.Q8_0:
		half(0, s/74)
	case gguf.Q4_0:
		half(0, s/4.6)
	case gguf.Q5_0:
		half(0, s/9.2)
	case gguf.Q4_1:
		half(0, s/4.6)
		half(2, s/4.6*-7.5)
	case gguf.Q5_1:
		half(0, s/9.2)
		half(2, s/9.2*-15.5)
	case gguf.Q2_K:
		half(80, s/16)
		half(82, s/16*1.5)
	case gguf.Q3_K:
		half(108, s/42)
	case gguf.Q4_K:
		half(0, s/256)
		half(2, s/256*7.5)
	case gguf.Q5_K:
		half(0, s/512)
		half(2, s/512*15.5)
	case gguf.Q6_K:
		half(208, s/1369)
	case gguf.IQ4_NL:
		half(0, s/70)
	case gguf.IQ4_XS:
		half(0, s/1300)
	case gguf.MXFP4: // the exponent of a power of two, on either side of s
		blk[0] = byte(127 + math.Ilogb(s) - int(b.rng.next()&1))
	default:
		panic(fmt.Sprintf("tiny: no random blocks of %s", typ))
	}
	return dst
}
