package tensor

import (
	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
)

// PackFusedFor is PackFused for the kernel set of that name, "avx512", "avxvnni", "avx2", "neon" or "generic", with the matrix in
// an arena, or in memory of its own if that is nil. It fails when the CPU lacks the kernels.
func PackFusedFor(cpu string, a *Arena, p *pool.Pool, ts ...*gguf.Tensor) (*Matrix, error) {
	ks, err := choose(cpu)
	if err != nil {
		return nil, err
	}
	return packFused(a, ks, p, ts...)
}
