//go:build linux

package tensor

import (
	"testing"

	"github.com/meshnet/meshnet/shard/tensor/emulate"
	"golang.org/x/sys/cpu"
)

// Where the CPU lacks AVX-VNNI, this test runs its kernels all the same. So every byte of the kernels is what runs elsewhere.
func TestAVXVNNIEmulated(t *testing.T) {
	if cpu.X86.HasAVXVNNI || !cpu.X86.HasAVX2 || !cpu.X86.HasFMA || !cpu.X86.HasF16C {
		return // the other tests run them; or nothing can
	}
	if emulate.Child(t, emulate.VNNI) {
		sets := []*kernelSet{avxVNNI()}
		kernelsEqualTwin(t, sets, [][2]int{{64, 256}, {5, 32}, {48, 96}}, []int{1, 2, 3})
		kernelsEqualNaive(t, sets, 16, 256)
	}
}
