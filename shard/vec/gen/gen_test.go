package main

import (
	"os"
	"path/filepath"
	"testing"
)

// What is committed is what the generator writes.
func TestCommittedFilesAreCurrent(t *testing.T) {
	for file, want := range outputs() {
		got, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is not what gen writes: run go generate ./shard/vec", file)
		}
	}
}
