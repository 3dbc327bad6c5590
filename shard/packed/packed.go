// Package packed keeps packed weights on disk, so that loading them again is a mapping of a file: without work, and in memory that
// all processes of the machine share.
//
// A file is one part of a model (a layer, or the head). Its name says what its bytes depend on: the model file, the part, and how
// this program lays weights out. It is a page with a header, the checksums of its data's chunks, and the data.
//
// Invariant: Get returns the bytes that were committed under the same Key, or nothing. A file appears whole, by a rename; what does
// not match its checksums is removed. All of it may be deleted at any time: processes that have it mapped keep it.
// Every failure here means that weights are packed anew, so none is an error of the caller's. Start reading at Get and Create.
package packed

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/meshnet/meshnet/shard/pool"
)

const (
	magic    = "meshpack"
	version  = 1
	page     = 4096
	chunk    = 1 << 20 // bytes under one checksum
	maxBytes = 1 << 40 // of a file's data
	suffix   = ".pack"
	draft    = ".draft-"
)

// Key is what the bytes of a part depend on.
type Key struct {
	Model  [32]byte // SHA-256 of the model file
	Part   string
	Layout [32]byte // of tensor.Layout
	Shape  []int    // rows and columns of each matrix
	Bytes  int64    // of the data
}

func (k *Key) sum() [32]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%d %x %q %x %d %d", version, k.Model, k.Part, k.Layout, k.Shape, k.Bytes)
	return [32]byte(h.Sum(nil))
}

func (k *Key) name() string {
	sum := k.sum()
	return fmt.Sprintf("%s-%s-%x%s", hex.EncodeToString(k.Model[:]), k.Part, sum[:8], suffix)
}

// headBytes is where the data begins: magic, version, sum of the key, size, checksum of each chunk, checksum of the header.
func headBytes(data int64) int64 {
	n := int64(len(magic)) + 4 + 32 + 8 + 4*chunks(data) + 4
	return (n + page - 1) / page * page
}

func chunks(data int64) int64 { return (data + chunk - 1) / chunk }

// Store is a directory of packed parts. Several processes may use one at a time.
type Store struct {
	dir string
	max int64
}

// Open makes the directory if need be and removes what crashed processes left unfinished. max bounds the bytes of all files; those
// that were not used for longest go first.
func Open(dir string, max int64) (*Store, error) {
	if !supported {
		return nil, fmt.Errorf("keep packed weights: not on this system")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep packed weights: %w", err)
	}
	s := &Store{dir, max}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("keep packed weights: %w", err)
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), draft) {
			removeAbandoned(filepath.Join(dir, e.Name()))
		}
	}
	return s, nil
}

// Blob is the memory of one part: read-only and shared when it came from Get, writable until Commit when it came from Create.
type Blob struct {
	key   Key
	store *Store
	whole []byte
	data  []byte
	file  *os.File // of a draft
}

// Data is the part's bytes, page aligned.
func (b *Blob) Data() []byte { return b.data }

// Get maps a part that is there and whole; nil if there is none. All bytes are checked, on the pool's threads.
func (s *Store) Get(k Key, p *pool.Pool) *Blob {
	path := filepath.Join(s.dir, k.name())
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := s.open(f, k, p)
	if err != nil {
		os.Remove(path)
		return nil
	}
	now := time.Now()
	os.Chtimes(path, now, now) // used: see Room
	return b
}

func (s *Store) open(f *os.File, k Key, p *pool.Pool) (*Blob, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	head := headBytes(k.Bytes)
	if k.Bytes <= 0 || k.Bytes > maxBytes || !info.Mode().IsRegular() || info.Size() != head+k.Bytes {
		return nil, fmt.Errorf("%d bytes, want %d", info.Size(), head+k.Bytes)
	}
	whole, err := mapFile(f, head+k.Bytes, false)
	if err != nil {
		return nil, err
	}
	b := &Blob{key: k, store: s, whole: whole, data: whole[head:]}
	if err := b.check(p); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// check compares the header and all checksums.
func (b *Blob) check(p *pool.Pool) error {
	got := make([]byte, len(b.whole)-len(b.data))
	if !safely(func() { copy(got, b.whole) }) {
		return fmt.Errorf("the header cannot be read")
	}
	sums, ok := b.sums(p)
	if !ok || !bytes.Equal(got, b.header(sums)) {
		return fmt.Errorf("damaged")
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sums are the checksums of the data's chunks, false if they cannot be read.
func (b *Blob) sums(p *pool.Pool) ([]uint32, bool) {
	sums := make([]uint32, chunks(int64(len(b.data))))
	var failed atomic.Bool
	p.Run(len(sums), func(i int) {
		part := b.data[i*chunk : min((i+1)*chunk, len(b.data))]
		if !safely(func() { sums[i] = crc32.Checksum(part, castagnoli) }) {
			failed.Store(true)
		}
	})
	return sums, !failed.Load()
}

// safely runs fn and says whether the pages that it reads were there: a file may be cut short, a disk may fail.
func safely(fn func()) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			if _, fault := r.(interface{ Addr() uintptr }); !fault {
				panic(r)
			}
			ok = false
		}
	}()
	fn()
	return true
}

func (b *Blob) header(sums []uint32) []byte {
	h := make([]byte, 0, headBytes(b.key.Bytes))
	h = append(h, magic...)
	h = binary.LittleEndian.AppendUint32(h, version)
	sum := b.key.sum()
	h = append(h, sum[:]...)
	h = binary.LittleEndian.AppendUint64(h, uint64(b.key.Bytes))
	for _, s := range sums {
		h = binary.LittleEndian.AppendUint32(h, s)
	}
	h = binary.LittleEndian.AppendUint32(h, crc32.Checksum(h, castagnoli))
	return h[:cap(h)]
}

// Create maps a new file of zeros for a part; nil if that cannot be had. It is nobody else's to see before Commit.
func (s *Store) Create(k Key) *Blob {
	if k.Bytes <= 0 || k.Bytes > maxBytes {
		return nil
	}
	f, err := os.CreateTemp(s.dir, k.Part+draft)
	if err != nil {
		return nil
	}
	size := headBytes(k.Bytes) + k.Bytes
	err = claim(f, size)
	var whole []byte
	if err == nil {
		whole, err = mapFile(f, size, true)
	}
	if err != nil {
		f.Close()
		os.Remove(f.Name())
		return nil
	}
	return &Blob{key: k, store: s, whole: whole, data: whole[headBytes(k.Bytes):], file: f}
}

// Commit makes a draft that is filled what Get finds from now on, and its memory read-only.
func (b *Blob) Commit(p *pool.Pool) {
	sums, ok := b.sums(p)
	if ok {
		copy(b.whole, b.header(sums))
	}
	seal(b.whole)
	// Without a sync: what a power cut leaves half written does not match its checksums.
	if !ok || os.Rename(b.file.Name(), filepath.Join(b.store.dir, b.key.name())) != nil {
		os.Remove(b.file.Name())
	}
	b.file.Close()
	b.file = nil
}

// Close unmaps the memory, and drops a draft that was not committed.
func (b *Blob) Close() {
	if b.file != nil {
		os.Remove(b.file.Name())
		b.file.Close()
		b.file = nil
	}
	unmap(b.whole)
	b.whole, b.data = nil, nil
}

// Room says whether need bytes may be added, after removing what was not used for longest. The disk keeps a tenth free, too.
func (s *Store) Room(need int64) bool {
	if need > s.max {
		return false
	}
	list, total := s.list()
	free, all := space(s.dir)
	for _, e := range list {
		if total+need <= s.max && free-need >= all/10 {
			return true
		}
		if free+total-need < all/10 {
			return false // not even without all of it
		}
		if os.Remove(filepath.Join(s.dir, e.name)) == nil {
			free += e.size
		}
		total -= e.size
	}
	return total+need <= s.max && free-need >= all/10
}

type entry struct {
	name string
	size int64
	used time.Time
}

// list is all files, the one not used for longest first, and their size.
func (s *Store) list() (list []entry, total int64) {
	entries, _ := os.ReadDir(s.dir)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		total += info.Size()
		if strings.HasSuffix(e.Name(), suffix) {
			list = append(list, entry{e.Name(), info.Size(), info.ModTime()})
		}
	}
	slices.SortFunc(list, func(a, b entry) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.name, b.name)) })
	return list, total
}

// Forget removes all parts of a model.
func (s *Store) Forget(model [32]byte) {
	list, _ := s.list()
	for _, e := range list {
		if strings.HasPrefix(e.name, hex.EncodeToString(model[:])+"-") {
			os.Remove(filepath.Join(s.dir, e.name))
		}
	}
}
