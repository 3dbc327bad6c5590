package tensor

import (
	"os"
	"regexp"
	"testing"
)

// The tests of kernels run on what kernelSets finds: it must find what the kernel of the system reports.
func TestKernelSetsOfThisCPU(t *testing.T) {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !regexp.MustCompile(`(?m)^Features\s*:`).Match(info) {
		return // not Linux, or another CPU's under emulation: nothing to compare with
	}
	want := regexp.MustCompile(`(?m)^Features\s*:.*\basimddp\b`).Match(info)
	if got := kernelSets()[0].name == "neon"; got != want {
		t.Errorf("neon found: %v, the system's CPU features allow it: %v", got, want)
	}
}
