//go:build linux

package probe

import (
	"slices"
	"testing"

	"github.com/meshnet/meshnet/shard/tensor"
	"github.com/meshnet/meshnet/shard/tensor/emulate"
)

// The loop of tiles ends where no CPU here could run it: under emulation, which also sees that it releases them.
func TestTilesEmulated(t *testing.T) {
	if slices.Contains(tensor.CPUs(), "amx") || emulate.Child(t, emulate.AMX(t)) {
		dotTiles(3)
	}
}
