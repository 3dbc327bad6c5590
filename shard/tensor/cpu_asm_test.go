//go:build amd64 || arm64

package tensor

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"unsafe"
)

// Assembly reads call by these offsets (gen/main.go).
func TestCallOffsets(t *testing.T) {
	var c call
	got := []uintptr{unsafe.Offsetof(c.scales), unsafe.Offsetof(c.lines), unsafe.Offsetof(c.steps),
		unsafe.Offsetof(c.a), unsafe.Offsetof(c.out), unsafe.Offsetof(c.outRow), unsafe.Offsetof(c.resume)}
	if want := []uintptr{0, 8, 16, 24, 32, 40, 48}; !slices.Equal(got, want) {
		t.Errorf("offsets %v, assembly uses %v", got, want)
	}
}

// Package vec uses the same instructions.
func TestInstructionsAreThoseOfVec(t *testing.T) {
	ours, err := os.ReadFile("neon_arm64.h")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile("../vec/neon_arm64.h")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(ours, theirs) {
		t.Error("neon_arm64.h differs from the one in ../vec")
	}
}
