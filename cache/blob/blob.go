// Package blob keeps large files by the SHA-256 of what they hold, in one
// directory that all processes of a machine share.
//
// Invariant: a name in the store is the hash of the whole file under it. A
// file gets its name only after its bytes were hashed on the way in, synced
// and renamed; so after a crash, a kill or a full disk there is either the
// whole file or none, and a partial one is never found by Path.
//
// One key (whatever names the wish for a blob: a hash, a reference) is
// produced by one process at a time, see Store.Lock; a crash releases it.
// Start reading at Lock.Create and Writer.Commit.
//
//	DIR/<sha256>         the blobs, mode 0644, never written again
//	DIR/<sha256>.checked when it was last read and found whole: its time
//	DIR/<sha256>.json    what the user of the store remembers about one
//	DIR/tmp/<key>.*      files being made, by the holder of the key's lock
//	DIR/lock/<key>       empty files, locked with flock
package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Sum is a SHA-256.
type Sum = [sha256.Size]byte

// keepParts is how long a download that could be resumed is kept.
const keepParts = 14 * 24 * time.Hour

// Home is the directory of everything meshnet keeps: $MESHNET_HOME, else
// $XDG_DATA_HOME/meshnet, else ~/.local/share/meshnet. It need not exist.
func Home() (string, error) {
	if dir := os.Getenv("MESHNET_HOME"); dir != "" {
		return filepath.Abs(dir)
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) { // the XDG rules ignore relative ones
		return filepath.Join(dir, "meshnet"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no place to keep data: %w; set MESHNET_HOME to a directory", err)
	}
	return filepath.Join(home, ".local", "share", "meshnet"), nil
}

// Store is one directory of blobs. Safe for use by goroutines and processes.
type Store struct{ dir string }

// Open makes the directory when it is missing and clears what dead processes
// left half done.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir}
	for _, d := range []string{dir, s.tmp(""), s.lockPath("")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("open blob store: %w; set MESHNET_HOME to a directory that you may write", err)
		}
	}
	if err := s.clean(time.Now()); err != nil {
		return nil, fmt.Errorf("open blob store: %w", err)
	}
	return s, nil
}

// Dir is where the store is.
func (s *Store) Dir() string { return s.dir }

func (s *Store) tmp(name string) string      { return filepath.Join(s.dir, "tmp", name) }
func (s *Store) lockPath(name string) string { return filepath.Join(s.dir, "lock", name) }

// clean removes temporary files whose key nobody holds. Downloads that could
// be resumed stay for keepParts.
func (s *Store) clean(now time.Time) error {
	entries, err := os.ReadDir(s.tmp(""))
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // gone meanwhile
		}
		key, ext, _ := strings.Cut(e.Name(), ".")
		if (ext == "part" || ext == "part.note") && now.Sub(info.ModTime()) < keepParts {
			continue
		}
		f, err := tryLock(s.lockPath(key))
		if err != nil || f == nil {
			continue // somebody is at work on it
		}
		err = os.RemoveAll(s.tmp(e.Name()))
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// ParseSum reads a hash of 64 hex digits.
func ParseSum(s string) (sum Sum, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(sum) {
		return sum, fmt.Errorf("%q is not a SHA-256 (64 hex digits)", s)
	}
	copy(sum[:], b)
	return sum, nil
}

func (s *Store) path(sum Sum) string { return filepath.Join(s.dir, hex.EncodeToString(sum[:])) }

// Path is the file of a blob, if the store has it.
func (s *Store) Path(sum Sum) (string, bool) {
	p := s.path(sum)
	info, err := os.Stat(p)
	return p, err == nil && info.Mode().IsRegular()
}

// Info is a blob in List.
type Info struct {
	Sum   Sum
	Size  int64 // bytes
	Added time.Time
}

// List names all blobs, by hash.
func (s *Store) List() ([]Info, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list blobs: %w", err)
	}
	var list []Info
	for _, e := range entries {
		sum, err := ParseSum(e.Name())
		if err != nil || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list blobs: %w", err)
		}
		list = append(list, Info{sum, info.Size(), info.ModTime()})
	}
	return list, nil
}

// Remove deletes a blob and what was remembered about it. Processes that have
// the file open keep it until they close it. Removing nothing is no error.
func (s *Store) Remove(sum Sum) error {
	err := os.Remove(s.path(sum))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove blob: %w", err)
	}
	for _, name := range []string{s.path(sum) + ".json", s.stamp(sum)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove blob: %w", err)
		}
	}
	return syncDir(s.dir)
}

// Verify reads a blob again and fails when the disk gave back other bytes.
func (s *Store) Verify(sum Sum) error {
	f, err := os.Open(s.path(sum))
	if err != nil {
		return fmt.Errorf("verify blob: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("verify blob: %w", err)
	}
	if got := Sum(h.Sum(nil)); got != sum {
		return fmt.Errorf("verify blob: %w", &DamagedError{s.path(sum), got})
	}
	return nil
}

// SetMeta remembers v, as JSON, beside the blob; it replaces what was there.
func (s *Store) SetMeta(sum Sum, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("remember blob: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := s.Lock(ctx, "meta", nil)
	if err != nil {
		return fmt.Errorf("remember blob: %w", err)
	}
	defer l.Unlock()
	f, err := os.OpenFile(s.tmp(l.key+".tmp"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("remember blob: %w", s.explain(err, 0))
	}
	defer os.Remove(f.Name()) // after a rename there is nothing to remove
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("remember blob: %w", s.explain(err, int64(len(data))))
	}
	if err := os.Rename(f.Name(), s.path(sum)+".json"); err != nil {
		return fmt.Errorf("remember blob: %w", err)
	}
	return syncDir(s.dir)
}

// Meta reads what was remembered into v, and says whether there was anything.
func (s *Store) Meta(sum Sum, v any) (bool, error) {
	data, err := os.ReadFile(s.path(sum) + ".json")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return false, fmt.Errorf("read %s.json: %w", s.path(sum), err)
	}
	return true, nil
}

// SpaceError: the disk has no room for what is to come.
type SpaceError struct {
	Dir        string
	Need, Free int64 // bytes
}

func (e *SpaceError) Error() string {
	return fmt.Sprintf("no room in %s: %s needed, %s free; free some space (`meshnet model rm NAME` removes models), or set MESHNET_HOME to a directory on a larger disk",
		e.Dir, Bytes(e.Need), Bytes(e.Free))
}

// Space fails with a *SpaceError when the disk has less than need bytes free.
// It is a courtesy: what fills the disk later is reported by Writer.
func (s *Store) Space(need int64) error {
	free, err := freeBytes(s.dir)
	if err != nil || free >= need { // a file system that does not say is tried
		return nil
	}
	return &SpaceError{s.dir, need, free}
}

// explain turns "no space left on device" into a *SpaceError.
func (s *Store) explain(err error, need int64) error {
	if !isDiskFull(err) {
		return err
	}
	free, _ := freeBytes(s.dir)
	return &SpaceError{s.dir, need, free}
}

// Bytes writes a size for people: "98.4 MB".
func Bytes(n int64) string {
	f, units := float64(n), "kMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	i := -1
	for f >= 999.95 && i < len(units)-1 {
		f /= 1000
		i++
	}
	return fmt.Sprintf("%.1f %cB", f, units[i])
}
