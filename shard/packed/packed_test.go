//go:build linux

package packed

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshnet/meshnet/shard/pool"
)

func newPool(t *testing.T) *pool.Pool {
	p := pool.New(2)
	t.Cleanup(p.Close)
	return p
}

func openStore(t *testing.T, dir string, max int64) *Store {
	t.Helper()
	s, err := Open(dir, max)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func key(part string, n int64) Key {
	return Key{Model: [32]byte{1, 2}, Part: part, Layout: [32]byte{3}, Shape: []int{64, 32}, Bytes: n}
}

// content is what a test puts into a part.
func content(k Key) []byte {
	b := make([]byte, k.Bytes)
	rng := rand.New(rand.NewPCG(uint64(len(k.Part)), uint64(k.Bytes)))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func put(t *testing.T, s *Store, p *pool.Pool, k Key) {
	t.Helper()
	b := s.Create(k)
	if b == nil {
		t.Fatalf("no draft of %s", k.Part)
	}
	if bytes.ContainsFunc(b.Data(), func(r rune) bool { return r != 0 }) {
		t.Fatal("a draft is not zeros")
	}
	copy(b.Data(), content(k))
	b.Commit(p)
	b.Close()
}

func has(t *testing.T, s *Store, p *pool.Pool, k Key) bool {
	t.Helper()
	b := s.Get(k, p)
	if b == nil {
		return false
	}
	defer b.Close()
	if !bytes.Equal(b.Data(), content(k)) {
		t.Fatalf("%s came back as other bytes", k.Part)
	}
	return true
}

// What was committed is there; under another model, part, layout, shape or size it is not.
func TestGetWhatWasCommitted(t *testing.T) {
	p, s := newPool(t), openStore(t, t.TempDir(), 1<<30)
	for _, n := range []int64{1, 64, 4096, chunk - 1, chunk, chunk + 1, 3*chunk + 12345} {
		k := key(fmt.Sprint("layer-", n), n)
		if has(t, s, p, k) {
			t.Fatal("there before it was made")
		}
		put(t, s, p, k)
		if !has(t, s, p, k) {
			t.Fatalf("%d bytes are not there", n)
		}
		for name, change := range map[string]func(*Key){
			"model":  func(k *Key) { k.Model[31]++ },
			"part":   func(k *Key) { k.Part += "0" },
			"layout": func(k *Key) { k.Layout[31]++ },
			"shape":  func(k *Key) { k.Shape = []int{32, 64} },
			"size":   func(k *Key) { k.Bytes++ },
		} {
			other := k
			change(&other)
			if has(t, s, p, other) {
				t.Errorf("found under another %s", name)
			}
		}
	}
}

// A draft that is not committed leaves nothing; one that is committed outlives its file's removal.
func TestDrafts(t *testing.T) {
	p, dir := newPool(t), t.TempDir()
	s := openStore(t, dir, 1<<30)
	k := key("head", 5000)
	b := s.Create(k)
	copy(b.Data(), content(k))
	openStore(t, dir, 1<<30) // another start takes nothing from those who live
	if n := files(t, dir); len(n) != 1 {
		t.Fatalf("files %v", n)
	}
	b.Close()
	if n := files(t, dir); len(n) != 0 {
		t.Fatalf("left over: %v", n)
	}
	put(t, s, p, k)
	b = s.Get(k, p)
	s.Forget(k.Model)
	if n := files(t, dir); len(n) != 0 {
		t.Fatalf("left over: %v", n)
	}
	if !bytes.Equal(b.Data(), content(k)) {
		t.Error("the mapping went with the file")
	}
	b.Close()
	if err := os.WriteFile(filepath.Join(dir, "head"+draft+"123"), make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	openStore(t, dir, 1<<30)
	if n := files(t, dir); len(n) != 0 {
		t.Errorf("a crashed process's draft is still there: %v", n)
	}
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Any damage means that there is nothing, that the file is removed, and that the part can be made again.
func TestDamage(t *testing.T) {
	k := key("layer-3", 2*chunk+777)
	head := headBytes(k.Bytes)
	flip := func(at int64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[at] ^= 0x10
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	cut := func(n int64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.Truncate(path, n); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, damage := range map[string]func(*testing.T, string){
		"magic": flip(0), "version": flip(8), "key": flip(20), "size": flip(44), "first checksum": flip(52), "padding": flip(head - 1),
		"first byte": flip(head), "middle": flip(head + chunk), "last byte": flip(head + k.Bytes - 1),
		"empty": cut(0), "cut in the header": cut(100), "without data": cut(head), "a byte short": cut(head + k.Bytes - 1),
		"a byte long": cut(head + k.Bytes + 1),
		"directory": func(t *testing.T, path string) {
			os.Remove(path)
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, s := newPool(t), openStore(t, t.TempDir(), 1<<30)
			put(t, s, p, k)
			path := filepath.Join(s.dir, k.name())
			damage(t, path)
			if has(t, s, p, k) {
				t.Fatal("found in spite of it")
			}
			if n := files(t, s.dir); len(n) != 0 {
				t.Fatalf("still there: %v", n)
			}
			put(t, s, p, k)
			if !has(t, s, p, k) {
				t.Error("not to be had again")
			}
		})
	}
}

// A file that is cut short after it was mapped, while it is checked, is damage, not the end of the process.
func TestCutWhileMapped(t *testing.T) {
	p, s := newPool(t), openStore(t, t.TempDir(), 1<<30)
	k := key("layer-0", 3*chunk)
	put(t, s, p, k)
	for _, left := range []int64{headBytes(k.Bytes) + chunk, 0} {
		path := filepath.Join(s.dir, k.name())
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := mapFile(f, headBytes(k.Bytes)+k.Bytes, false)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if err := os.Truncate(path, left); err != nil {
			t.Fatal(err)
		}
		b := &Blob{key: k, store: s, whole: whole, data: whole[headBytes(k.Bytes):]}
		if err := b.check(p); err == nil {
			t.Errorf("cut to %d bytes is whole", left)
		}
		b.Close()
		os.Remove(path)
		put(t, s, p, k)
	}
}

// Room removes what was not used for longest, and only as much as it must.
func TestRoom(t *testing.T) {
	const n = 1 << 20
	p, dir := newPool(t), t.TempDir()
	s := openStore(t, dir, 3*(n+page)+n/2)
	now := time.Now()
	for i, part := range []string{"a", "b", "c"} {
		put(t, s, p, key(part, n))
		then := now.Add(time.Duration(i-10) * time.Hour)
		name := key(part, n)
		if err := os.Chtimes(filepath.Join(dir, name.name()), then, then); err != nil {
			t.Fatal(err)
		}
	}
	if !has(t, s, p, key("a", n)) { // which makes b the oldest
		t.Fatal("a is gone")
	}
	if !s.Room(n) {
		t.Fatal("no room")
	}
	for part, want := range map[string]bool{"a": true, "b": false, "c": true} {
		if got := has(t, s, p, key(part, n)); got != want {
			t.Errorf("%s is there: %v", part, got)
		}
	}
	if s.Room(10 * n) {
		t.Error("room for more than the limit")
	}
	if len(files(t, dir)) != 2 {
		t.Error("removed files for what could not fit")
	}
	if s.Create(key("x", 0)) != nil || s.Create(key("x", maxBytes+1)) != nil {
		t.Error("a draft of no size, or of a terabyte")
	}
}

// Many processes make, read, damage and remove the same parts: whoever gets one gets the right bytes.
func TestProcesses(t *testing.T) {
	if dir := os.Getenv("PACKED_TEST_DIR"); dir != "" {
		storm(t, dir)
		return
	}
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestProcesses$", "-test.v")
			cmd.Env = append(os.Environ(), "PACKED_TEST_DIR="+dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	s := openStore(t, dir, 1<<30)
	for _, name := range files(t, dir) {
		if strings.Contains(name, draft) {
			t.Errorf("left over: %s", name)
		}
	}
	s.Forget([32]byte{1, 2})
}

func storm(t *testing.T, dir string) {
	p := newPool(t)
	for i := range 150 {
		s := openStore(t, dir, 3<<20)
		k := key(fmt.Sprint("layer-", rand.IntN(5)), 700_000)
		switch b := s.Get(k, p); {
		case b != nil:
			if !bytes.Equal(b.Data(), content(k)) {
				t.Fatal("other bytes")
			}
			b.Close()
		case s.Room(k.Bytes):
			if b := s.Create(k); b != nil { // nil: another process took it for abandoned
				copy(b.Data(), content(k))
				b.Commit(p)
				if !bytes.Equal(b.Data(), content(k)) {
					t.Fatal("other bytes in the draft")
				}
				b.Close()
			}
		}
		if i%20 == 0 {
			s.Forget(k.Model)
		}
	}
}

// A directory that cannot be is an error, of which callers make a start without.
func TestOpenErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(path, "packed"), 1); err == nil {
		t.Error("a store in a file")
	}
}
