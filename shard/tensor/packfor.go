package tensor

import (
	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
)

// PackFusedFor is PackFused for the kernel set of that name: "avx512", "avxvnni", "avx2" or "generic". It fails when the CPU lacks it.
func PackFusedFor(cpu string, p *pool.Pool, ts ...*gguf.Tensor) (*Matrix, error) {
	ks, err := choose(cpu)
	if err != nil {
		return nil, err
	}
	return packFused(ks, p, ts...)
}
