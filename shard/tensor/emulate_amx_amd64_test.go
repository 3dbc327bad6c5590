//go:build linux

package tensor

import (
	"testing"

	"github.com/meshnet/meshnet/shard/tensor/emulate"
)

// EmulatedAMX is true where the kernels for AMX can run: on a CPU that has it, else in a child process, under emulation.
func EmulatedAMX(t *testing.T) bool {
	switch {
	case amxOfThisProcess().set != nil:
		return true
	case !hasAVX512():
		return false // nothing can run the rest of the kernels
	}
	return emulate.Child(t, emulate.AMX(t))
}

// PretendAMX makes this process choose AMX.
func PretendAMX() { amxOfThisProcess = func() amx { return amx{set: amxSet()} } }

// Where the CPU lacks AMX, its kernels run under emulation: every form, whole and ragged panels and tiles, every bit of the twin's.
func TestAMXEmulated(t *testing.T) {
	if !EmulatedAMX(t) {
		return
	}
	ks := amxSet()
	if err := ks.checkWide(); err != nil {
		t.Errorf("the check at the start: %v", err)
	}
	ks.wide.least = wideRows
	kernelsEqualTwin(t, []*kernelSet{ks}, [][2]int{{64, 256}, {1, 32}, {15, 64}, {17, 96}, {83, 256}}, []int{15, 16, 17, 35})
}

// The extremes, where sums are largest, and rows that are not finite, which no other row may show.
func TestAMXExtremesEmulated(t *testing.T) {
	if EmulatedAMX(t) {
		wideExtremes(t, amxSet())
	}
}

// One call over several tiles and groups, and one row over several calls.
func TestAMXCallsEmulated(t *testing.T) {
	if EmulatedAMX(t) {
		wideCalls(t, amxSet())
	}
}
