package blob

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestCheck: a damaged byte is found, a blob that was found whole is not read for a
// day unless it was touched.
func TestCheck(t *testing.T) {
	s := open(t)
	w := create(t, s, "k", "hello")
	path, sum, err := w.Commit(Sum{}, -1)
	if err != nil {
		t.Fatal(err)
	}
	var bad *DamagedError
	rot := func(b string) { // as a disk does: the times stay
		info, err := os.Stat(path)
		if err == nil {
			err = errors.Join(os.WriteFile(path, []byte(b), 0o644), os.Chtimes(path, info.ModTime(), info.ModTime()))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Check(sum); err != nil {
		t.Fatal(err)
	}
	rot("hellO")
	if err := s.Check(sum); err != nil {
		t.Errorf("read again within the day: %v", err)
	}
	old := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(s.stamp(sum), old, old); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(sum); !errors.As(err, &bad) || bad.Got != sha256.Sum256([]byte("hellO")) {
		t.Errorf("a damaged byte: %v", err)
	}
	rot("hello")
	if err := s.Check(sum); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("HELLO"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(sum); !errors.As(err, &bad) {
		t.Errorf("a file that was written to: %v", err)
	}
	if gone, err := s.RemoveDamaged(t.Context(), sum); !gone || err != nil {
		t.Errorf("removed %v, %v", gone, err)
	}
	if all, _ := filepath.Glob(filepath.Join(s.Dir(), "*")); len(all) != 2 { // tmp, lock
		t.Errorf("left: %v", all)
	}
	w = create(t, s, "k again", "hello")
	if _, _, err := w.Commit(sum, 5); err != nil {
		t.Fatal(err)
	}
	if gone, err := s.RemoveDamaged(t.Context(), sum); gone || err != nil {
		t.Errorf("a whole blob: removed %v, %v", gone, err)
	}
}

// TestKilledAtAnyByte: whatever prefix of a blob and its note a process had written
// when it was killed, the blob is not there, and the next one makes it whole.
func TestKilledAtAnyByte(t *testing.T) {
	data, note := []byte("a blob of some bytes"), "etag 20"
	sum := sha256.Sum256(data)
	for _, resumed := range []bool{false, true} {
		for n := range len(data) + 1 {
			for _, k := range []int{0, len(note) / 2, len(note)} {
				dir := t.TempDir()
				name := filepath.Join(dir, "tmp", keyName("k"))
				ext := ".tmp"
				if resumed {
					ext = ".part"
				}
				err := errors.Join(os.MkdirAll(filepath.Join(dir, "tmp"), 0o755), os.WriteFile(name+ext, data[:n], 0o600),
					os.WriteFile(name+ext+".note", []byte(note[:k]), 0o600))
				if err != nil {
					t.Fatal(err)
				}
				at := fmt.Sprintf("killed after %d bytes and %d of the note, resumed %v", n, k, resumed)
				s, err := Open(dir)
				if err != nil {
					t.Fatalf("%s: %v", at, err)
				}
				if _, ok := s.Path(sum); ok {
					t.Fatalf("%s: it is found", at)
				}
				l, err := s.Lock(context.Background(), "k", nil)
				if err != nil {
					t.Fatal(err)
				}
				w, err := l.Resume()
				if err != nil {
					t.Fatal(err)
				}
				if w.Note() != note { // as the hub's code does: nothing is known of those bytes
					err = errors.Join(w.Cut(0), w.SetNote(note))
				}
				if err == nil {
					_, err = w.Write(data[w.Size():])
				}
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := w.Commit(sum, int64(len(data))); err != nil {
					t.Errorf("%s: %v", at, err)
				}
				l.Unlock()
				if err := s.Verify(sum); err != nil {
					t.Errorf("%s: %v", at, err)
				}
				if rest := left(t, s); len(rest) != 0 {
					t.Errorf("%s: left %v", at, rest)
				}
			}
		}
	}
}
