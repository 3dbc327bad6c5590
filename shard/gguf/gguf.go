// Package gguf reads and writes model files in the GGUF format, versions 2 and 3, little endian.
//
// A file comes from a stranger. Invariant: after Parse, every Tensor.Data and every value lies inside the file, and
// nothing was allocated by a length that the remaining bytes could not hold.
// Start reading at Parse; the format itself is in parse.go, value access in value.go.
package gguf

import (
	"fmt"
	"os"
)

// File is a parsed model file. It is safe for concurrent readers; Close ends the life of every Data slice.
type File struct {
	Version uint32

	data    []byte
	unmap   func() error // nil when the caller owns data
	keys    []string     // in file order
	values  map[string]value
	tensors []*Tensor // in file order
	byName  map[string]*Tensor
}

// Tensor is one tensor of a file.
type Tensor struct {
	Name string
	Type Type
	Dims []uint64 // fastest first: Dims[0] values make a row
	Data []byte   // aliases the file; nil when Type is unknown, whose size nobody knows
}

// Rows is the number of rows: the product of all dims but the first.
func (t *Tensor) Rows() int {
	n := 1
	for _, d := range t.Dims[1:] {
		n *= int(d)
	}
	return n
}

// RowBytes is the size of one row in Data.
func (t *Tensor) RowBytes() int {
	if !t.Type.Known() {
		return 0
	}
	return int(t.Dims[0]) / t.Type.BlockSize() * t.Type.BlockBytes()
}

// Open maps a file and parses it. The mapping is shared by all processes that have the file open; the file must not be
// cut short while it is open (the next access would kill the process), so keep models where only the owner writes.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("open model %q: it is not a regular file", path)
	}
	if info.Size() < headerBytes {
		return nil, fmt.Errorf("open model %q: %d bytes are too few for a GGUF file", path, info.Size())
	}
	data, unmap, err := mapFile(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("open model %q: %w", path, err)
	}
	g, err := Parse(data)
	if err != nil {
		unmap()
		return nil, fmt.Errorf("read model %q: %w", path, err)
	}
	g.unmap = unmap
	return g, nil
}

// Close unmaps the file. No Data slice of it may be used afterwards.
func (f *File) Close() error {
	if f.unmap == nil {
		return nil
	}
	err := f.unmap()
	f.unmap, f.data = nil, nil
	return err
}

// Size is the length of the file in bytes.
func (f *File) Size() int64 { return int64(len(f.data)) }

// Tensor finds a tensor by name.
func (f *File) Tensor(name string) (*Tensor, bool) {
	t, ok := f.byName[name]
	return t, ok
}

// Tensors lists all tensors in the order of the file. The slice is the file's own.
func (f *File) Tensors() []*Tensor { return f.tensors }

// Release tells the system that a tensor's pages will not be needed soon. They are read again from the file if they are.
func (f *File) Release(t *Tensor) { f.ReleasePart(t.Data) }

// ReleasePart is Release for a part of a tensor's Data.
func (f *File) ReleasePart(part []byte) {
	if f.unmap != nil && len(part) > 0 {
		release(f.data, part)
	}
}
