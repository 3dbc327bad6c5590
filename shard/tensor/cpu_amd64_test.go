package tensor

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// The tests of kernels run on what kernelSets finds: it must find what the kernel of the system reports.
func TestKernelSetsOfThisCPU(t *testing.T) {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return // not Linux: nothing to compare with
	}
	has := func(flags ...string) bool {
		for _, f := range flags {
			if !regexp.MustCompile(`(?m)^flags\s*:.*\b` + f + `\b`).Match(info) {
				return false
			}
		}
		return true
	}
	want := []string{"generic"}
	if has("avx2", "fma", "f16c") {
		want = slices.Insert(want, 0, "avx2")
		if has("avx_vnni") {
			want = slices.Insert(want, 0, "avxvnni")
		}
		if has("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni") {
			want = slices.Insert(want, 0, "avx512")
			if a := amxOfThisProcess(); has("amx_tile", "amx_int8") {
				t.Logf("AMX: %v", a.why) // the system may have it and refuse it
				if a.set != nil {
					want = slices.Insert(want, 0, "amx")
				}
			}
		}
	}
	var got []string
	for _, ks := range kernelSets() {
		got = append(got, ks.name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("kernel sets %v, the system's CPU flags allow %v", got, want)
	}
}
