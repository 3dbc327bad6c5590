package catalog

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/meshnet/meshnet/cache/blob"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// record is a Progress that keeps what it is told.
type record struct {
	mu    sync.Mutex
	lines []string
	at    int64
}

func (r *record) Start(task string, total int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf("%s %d", task, total))
	r.at = 0
}

func (r *record) At(done int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if done < r.at {
		r.lines = append(r.lines, fmt.Sprintf("went back from %d to %d", r.at, done))
	}
	r.at = done
}

func (r *record) Note(text string) { r.Start(text, -1) }

func (r *record) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n")
}

func openStore(t *testing.T) *blob.Store {
	t.Helper()
	s, err := blob.Open(filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// weights is n bytes that begin as a GGUF file does.
func weights(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	copy(b, "GGUF")
	return b
}

func hashOf(b []byte) Hash { return sha256.Sum256(b) }

// listOf is a catalogue of one model.
func listOf(m Model) *Catalog { return &Catalog{[]Model{m}} }

func isFile(t *testing.T, l Local, want []byte) {
	t.Helper()
	got, err := os.ReadFile(l.Path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) || l.SHA256 != sha256.Sum256(want) || l.Size != int64(len(want)) {
		t.Fatalf("%s is not the file: %d bytes, want %d", l.Path, len(got), len(want))
	}
}

// nothingHere checks that no blob came to be.
func nothingHere(t *testing.T, s *blob.Store) {
	t.Helper()
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("store has %v, %v", list, err)
	}
}
