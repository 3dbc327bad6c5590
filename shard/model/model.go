// Package model knows what a model file must hold: the geometry and, layer by
// layer, the blocks that an architecture is made of.
//
// An architecture is a small file (llama.go, qwen3.go) that describes each layer
// as data: a Mixer, which looks back at earlier positions, and an FFN. The
// engine (package shard) has one implementation for each kind of block and knows
// no architectures. A new architecture is a file here; a new kind of block is a
// type here and its arithmetic there.
//
// Invariant: every tensor that an Info points to is in the file with the dims
// and a type that the engine computes, and a layer holds no tensor that the
// engine would ignore. Start with Read.
package model

import (
	"errors"
	"fmt"

	"github.com/meshnet/meshnet/shard/gguf"
)

// Info describes a model file. Ranges of layers count from 0.
type Info struct {
	Arch    string
	Name    string // general.name, as the file says it
	Layers  int
	Hidden  int // values of a row between layers
	Heads   int
	KVHeads int
	HeadDim int
	FFN     int // inner size of the feed-forward block
	Vocab   int
	Context int // positions that the model was made for
	Eps     float32
	Tied    bool // the output matrix is the embedding matrix

	EmbedScale float32 // multiplies embeddings, if not 0
	LogitCap   float32 // c: logits become c * tanh(logits / c), if not 0

	// Bytes of the tensors in the file, to plan memory: a loaded layer takes
	// about as many. OutputBytes is what a head loads (final norm and output
	// matrix, which is the embedding matrix again when Tied); EmbedBytes stay in
	// the mapped file, where single rows are looked up.
	LayerBytes  []int64
	EmbedBytes  int64
	OutputBytes int64

	Plan       []Layer
	Embed      *gguf.Tensor // [Hidden, Vocab]
	OutputNorm *gguf.Tensor // [Hidden]
	Output     *gguf.Tensor // [Hidden, Vocab]
}

// Layer is one transformer block: x += Mixer(rms(x, MixerNorm)), then
// x += FFN(rms(x, FFNNorm)). Where there is a Post, it is the norm of what is
// added: x += rms(Mixer(…), MixerPost).
type Layer struct {
	MixerNorm *gguf.Tensor
	Mixer     Mixer
	MixerPost *gguf.Tensor // nil if there is none
	FFNNorm   *gguf.Tensor
	FFN       FFN
	FFNPost   *gguf.Tensor // nil if there is none
}

// Mixer is a block with state: *Attention.
type Mixer interface {
	// StateRow says what the block keeps for each position: how many vectors, and
	// how many values each of them has.
	StateRow() (vectors, dim int)
}

// FFN is a block without state: *GLU.
type FFN interface{ ffn() }

// Attention is causal softmax attention with grouped heads. Query head h reads
// the key and value head h / (Heads / KVHeads).
type Attention struct {
	Heads, KVHeads, HeadDim int
	Rope                    *Rope
	Scale                   float32 // multiplies q · k
	Window                  int     // position p sees p-Window+1 .. p; 0: all up to p
	Q, K, V, O              *gguf.Tensor
	QBias, KBias, VBias     *gguf.Tensor // nil if there is none
	QNorm, KNorm            *gguf.Tensor // [HeadDim], of each head before Rope; nil if there is none
}

// StateRow counts a key and a value for each head.
func (a *Attention) StateRow() (vectors, dim int) { return 2 * a.KVHeads, a.HeadDim }

// Rope is a rotary embedding of the first Dims values of a head. Layers with
// the same angles share one Rope.
type Rope struct {
	Dims    int
	Base    float64
	Scale   float64   // multiplies the position
	Factors []float32 // divide the frequencies; nil or Dims/2 values
	Halves  bool      // pairs (i, i+Dims/2), else (2i, 2i+1)
}

// GLU is Down · (act(Gate · h) * (Up · h)).
type GLU struct {
	Size           int
	Act            Activation
	Gate, Up, Down *gguf.Tensor
}

func (*GLU) ffn() {}

// Activation is the function in a GLU.
type Activation int

const (
	SiLU Activation = iota
	GELU            // in its tanh form
)

// architectures lists what Read knows. Each function fills in the rest of an
// Info whose common geometry has been read.
func architectures() map[string]func(r *reader) {
	return map[string]func(r *reader){
		"gemma3": gemma3,
		"llama":  llama,
		"qwen2":  qwen2,
		"qwen3":  qwen3,
	}
}

// Known lists the architectures that Read accepts, in alphabetical order.
func Known() []string { return []string{"gemma3", "llama", "qwen2", "qwen3"} }

// Read checks everything in the file that the engine needs and describes it.
// The Info points into the file. The error lists what is wrong.
func Read(f *gguf.File) (*Info, error) {
	arch, ok := f.String("general.architecture")
	if !ok {
		return nil, errors.New("the file does not say its architecture (general.architecture): is it a language model?")
	}
	build, ok := architectures()[arch]
	if !ok {
		return nil, fmt.Errorf("architecture %q is not supported; the supported ones are %v", arch, Known())
	}
	r := newReader(f, arch)
	r.geometry()
	if len(r.faults) == 0 {
		build(r)
		r.unused()
	}
	if err := r.err(); err != nil {
		return nil, fmt.Errorf("model of architecture %q: %w", arch, err)
	}
	return r.info, nil
}
