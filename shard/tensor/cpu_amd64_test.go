package tensor

import (
	"os"
	"regexp"
	"slices"
	"testing"
	"unsafe"
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

// Assembly reads call by these offsets (gen/main.go).
func TestCallOffsets(t *testing.T) {
	var c call
	got := []uintptr{unsafe.Offsetof(c.scales), unsafe.Offsetof(c.lines), unsafe.Offsetof(c.steps),
		unsafe.Offsetof(c.a), unsafe.Offsetof(c.out), unsafe.Offsetof(c.outRow), unsafe.Offsetof(c.resume)}
	if want := []uintptr{0, 8, 16, 24, 32, 40, 48}; !slices.Equal(got, want) {
		t.Errorf("offsets %v, assembly uses %v", got, want)
	}
}
