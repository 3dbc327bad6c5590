package shard

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard/packed"
)

// packedFiles are the files that are kept for a model.
func packedFiles(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// Weights from disk give the bits that packed ones do: made by one kernel set and used by another, in other ranges, after damage.
func TestPackedWeightsGiveTheSameBits(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // nothing is kept elsewhere
	}
	ids := readGolden(t, "testdata/llama/golden.safetensors").ints["tokens_70"]
	for _, path := range []string{"testdata/qwen2/model-f16.gguf", "testdata/llama_q/mix_q41_q50_q51.gguf", "testdata/llama_q/q4_k.gguf"} {
		t.Run(path, func(t *testing.T) {
			dir := t.TempDir()
			m := open(t, path)
			n := m.Info().Layers
			run := func(cpu string, cut int) string {
				var done, total int64
				o := Options{Threads: 2, CPU: cpu, Progress: func(d, of int64) { done, total = d, of }}
				first := load(t, m, 0, cut, o)
				engines := []*Engine{first}
				if done != total {
					t.Errorf("progress ended at %d of %d", done, total)
				}
				if cut < n {
					engines = append(engines, load(t, m, cut, n, o))
				}
				got := bits(t, loadHead(t, m, o), engines, nil, CacheF16, ids, 7)
				if e := first.Bytes(); e <= 0 {
					t.Errorf("an engine of %d bytes", e)
				}
				return got
			}
			want := run("generic", 1)
			store, err := packed.Open(dir, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			m.KeepPacked(store, [32]byte{9})
			if got := run("generic", 1); got != want {
				t.Errorf("packed into files: %s, want %s", got, want)
			}
			kept := packedFiles(t, dir)
			if len(kept) != n+1 {
				t.Fatalf("%d layers and a head are in %v", n, kept)
			}
			for _, cpu := range cpus(t) {
				if got := run(cpu, max(1, n-1)); got != want {
					t.Errorf("from files, %s: %s, want %s", cpu, got, want)
				}
			}
			for i, name := range kept {
				info, err := os.Stat(name)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Truncate(name, info.Size()*int64(i)/int64(n+1)); err != nil {
					t.Fatal(err)
				}
			}
			if got := run("", 1); got != want {
				t.Errorf("after all files were cut short: %s, want %s", got, want)
			}
			if again := packedFiles(t, dir); len(again) != n+1 {
				t.Errorf("made again: %v", again)
			}
		})
	}
}

// Without room nothing is kept and everything works; a load that fails leaves no file.
func TestPackedWithoutRoom(t *testing.T) {
	if runtime.GOOS != "linux" {
		return
	}
	dir := t.TempDir()
	m := open(t, "testdata/qwen2/model-f16.gguf")
	store, err := packed.Open(dir, 1000)
	if err != nil {
		t.Fatal(err)
	}
	m.KeepPacked(store, [32]byte{9})
	load(t, m, 0, 1, Options{Threads: 1})
	if kept := packedFiles(t, dir); len(kept) != 0 {
		t.Errorf("kept in spite of the limit: %v", kept)
	}

	b := readData(t, "testdata/llama_q/q4_k.gguf")
	path := filepath.Join(t.TempDir(), "bad.gguf")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	bad := open(t, path)
	last, ok := bad.File().Tensor("blk.0.ffn_down.weight")
	if !ok {
		t.Fatal("the model has no such tensor")
	}
	at := bytes.Index(b, last.Data)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{0xff, 0xff}, int64(at)); err != nil { // a scale that is no number
		t.Fatal(err)
	}
	if store, err = packed.Open(dir, 1<<30); err != nil {
		t.Fatal(err)
	}
	bad.KeepPacked(store, [32]byte{8})
	if _, err := bad.LoadRange(0, bad.Info().Layers, Options{Threads: 2}); err == nil || !strings.Contains(err.Error(), "ffn_down") {
		t.Errorf("a damaged file was loaded: %v", err)
	}
	if kept := packedFiles(t, dir); len(kept) != 0 {
		t.Errorf("kept of a damaged file: %v", kept)
	}
}
