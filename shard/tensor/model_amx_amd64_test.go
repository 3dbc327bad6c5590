//go:build linux

package tensor_test

import (
	"testing"

	"github.com/meshnet/meshnet/shard/selftest"
	"github.com/meshnet/meshnet/shard/tensor"
)

// Whole small models of every architecture, with matrices of every type, under MESHNET_CPU=amx: the hash of every other machine.
func TestAMXModelsEmulated(t *testing.T) {
	if !tensor.EmulatedAMX(t) {
		return
	}
	tensor.PretendAMX()
	if names := tensor.CPUs(); names[0] != "amx" {
		t.Fatalf("the kernel sets of this process are %v", names)
	}
	r, err := selftest.Run(t.Context(), selftest.Config{Threads: 2, CPU: "amx"})
	if err != nil || r.CPU != "amx" {
		t.Errorf("%+v, %v", r, err)
	}
}
