package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"time"
)

// lockPoll is how often a held lock is tried again.
const lockPoll = 200 * time.Millisecond

// Lock is the right to produce one key's blob; one process, one goroutine of
// it, has it at a time. It ends with Unlock, or with the process.
type Lock struct {
	s    *Store
	key  string
	file *os.File
}

// Lock waits for the right to produce key, any text. waiting, if not nil, is
// called once when somebody else has it: after the wait the blob is probably
// there, so look again before making it.
func (s *Store) Lock(ctx context.Context, key string, waiting func()) (*Lock, error) {
	name := keyName(key)
	for {
		f, err := tryLock(s.lockPath(name))
		if err != nil {
			return nil, fmt.Errorf("lock %q: %w", key, err)
		}
		if f != nil {
			return &Lock{s, name, f}, nil
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %q: another process is at it: %w", key, ctx.Err())
		case <-time.After(lockPoll):
		}
	}
}

// keyName is a key as a file name.
func keyName(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}

// Unlock gives the right back. Twice does no harm.
func (l *Lock) Unlock() { l.file.Close() }

// Dir makes an empty scratch directory on the store's disk, which is the
// lock's: remove it when done, or the next to open the store will.
func (l *Lock) Dir() (string, error) {
	dir := l.s.tmp(l.key + ".dir")
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return "", fmt.Errorf("make scratch directory: %w", err)
	}
	return dir, nil
}

// Create begins a blob from nothing. What is not committed is removed by
// Abort, or after a crash by the next to open the store.
func (l *Lock) Create() (*Writer, error) {
	return l.open(".tmp", os.O_TRUNC)
}

// Resume begins a blob with what an earlier Suspend, or crash, left of one
// begun by Resume. Writer.Size says how much that is; it was hashed again. See
// Note for what it is a part of.
func (l *Lock) Resume() (*Writer, error) {
	w, err := l.open(".part", 0)
	if err != nil {
		return nil, err
	}
	if w.size, err = io.Copy(w.hash, w.file); err != nil {
		w.file.Close()
		return nil, fmt.Errorf("resume: %w", err)
	}
	return w, nil
}

func (l *Lock) open(ext string, flag int) (*Writer, error) {
	f, err := os.OpenFile(l.s.tmp(l.key+ext), os.O_RDWR|os.O_CREATE|flag, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create blob: %w", l.s.explain(err, 0))
	}
	return &Writer{s: l.s, file: f, hash: sha256.New()}, nil
}

// Writer takes a blob's bytes in order.
type Writer struct {
	s    *Store
	file *os.File
	hash hash.Hash
	size int64
	done bool
}

// Write appends and hashes. Its error says what to do when the disk is full.
func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.file.Write(p)
	w.hash.Write(p[:n])
	w.size += int64(n)
	if err != nil {
		err = fmt.Errorf("write blob: %w", w.s.explain(err, int64(len(p)-n)))
	}
	return n, err
}

// Size is how many bytes are in.
func (w *Writer) Size() int64 { return w.size }

// Sum is the hash of what is in.
func (w *Writer) Sum() Sum {
	// hash.Hash.Sum does not disturb the state, so writing may go on.
	return Sum(w.hash.Sum(nil))
}

// Cut throws away all but the first n bytes, which are hashed again.
func (w *Writer) Cut(n int64) error {
	if n > w.size {
		return fmt.Errorf("cut blob: %d of %d bytes", n, w.size)
	}
	if n == w.size {
		return nil
	}
	if err := w.file.Truncate(n); err != nil {
		return fmt.Errorf("cut blob: %w", err)
	}
	if _, err := w.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("cut blob: %w", err)
	}
	w.hash.Reset()
	var err error
	if w.size, err = io.Copy(w.hash, w.file); err != nil {
		return fmt.Errorf("cut blob: %w", err)
	}
	return nil
}

// MismatchError: the bytes are not those that were asked for.
type MismatchError struct {
	WantSize, GotSize int64 // WantSize < 0: any
	Want, Got         Sum   // equal to zero: any
}

func (e *MismatchError) Error() string {
	if e.WantSize >= 0 && e.GotSize != e.WantSize {
		word := "cut short"
		if e.GotSize > e.WantSize {
			word = "another file"
		}
		return fmt.Sprintf("%d bytes came instead of %d: %s", e.GotSize, e.WantSize, word)
	}
	return fmt.Sprintf("the SHA-256 is %x, %x was expected: damaged on the way, or another file", e.Got, e.Want)
}

// Commit checks size (unless negative) and hash (unless zero), makes the bytes
// durable and gives them their name. On a *MismatchError, or any other error,
// what was written is removed.
func (w *Writer) Commit(want Sum, size int64) (path string, sum Sum, err error) {
	defer w.Abort()
	sum = w.Sum()
	if size >= 0 && w.size != size || want != (Sum{}) && sum != want {
		return "", sum, &MismatchError{size, w.size, want, sum}
	}
	path = w.s.path(sum)
	if err := errors.Join(w.file.Chmod(0o644), w.file.Sync()); err != nil {
		return "", sum, fmt.Errorf("commit blob: %w", w.s.explain(err, w.size))
	}
	if _, ok := w.s.Path(sum); ok { // came under another key meanwhile
		return path, sum, nil
	}
	if err := os.Rename(w.file.Name(), path); err != nil {
		return "", sum, fmt.Errorf("commit blob: %w", err)
	}
	w.done = true
	w.file.Close()
	os.Remove(w.file.Name() + ".note")
	return path, sum, syncDir(w.s.dir)
}

// Abort removes what was written. After Commit or Suspend it does nothing.
func (w *Writer) Abort() {
	if !w.done {
		w.done = true
		w.file.Close()
		os.Remove(w.file.Name())
		os.Remove(w.file.Name() + ".note")
	}
}

// Note is the text kept with a blob that is resumed, "" if there is none: what
// the bytes are a part of (an etag), so that they are not continued with others.
func (w *Writer) Note() string {
	b, _ := os.ReadFile(w.file.Name() + ".note")
	return string(b)
}

// SetNote keeps a text for Note.
func (w *Writer) SetNote(text string) error {
	if err := os.WriteFile(w.file.Name()+".note", []byte(text), 0o600); err != nil {
		return fmt.Errorf("note: %w", w.s.explain(err, int64(len(text))))
	}
	return nil
}

// Suspend closes a writer and leaves what is in, if anything, for Resume.
func (w *Writer) Suspend() error {
	if w.done {
		return nil
	}
	if w.size == 0 {
		w.Abort()
		return nil
	}
	w.done = true
	if err := errors.Join(w.file.Sync(), w.file.Close()); err != nil {
		return fmt.Errorf("suspend blob: %w", err)
	}
	return nil
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, fs.ErrInvalid) {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
