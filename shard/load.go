package shard

import (
	"fmt"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/packed"
	"github.com/meshnet/meshnet/shard/pool"
	"github.com/meshnet/meshnet/shard/tensor"
	"github.com/meshnet/meshnet/shard/vec"
)

// loader lays out matrices part by part (a layer, or the head), then gives all of them their weights at once: from packed
// parts on disk where there are any, else from the model file.
type loader struct {
	file     *gguf.File
	cpu      string
	pool     *pool.Pool
	ownPool  bool
	vec      *vec.Kernels
	matrices []*tensor.Matrix
	parts    []loadPart
	arena    *tensor.Arena
	packed   *packed.Store
	sha256   [32]byte
	total    int64
	done     int64
	progress func(done, total int64)
}

// loadPart is what is kept on disk together.
type loadPart struct {
	name     string
	matrices []*tensor.Matrix
	key      packed.Key   // set by reuse, if there is a store
	blob     *packed.Blob // the memory, if it is a file's
}

func newLoader(m *Model, o Options, total int64) (*loader, error) {
	l := &loader{file: m.file, cpu: o.CPU, pool: o.Pool, total: total, progress: o.Progress, packed: m.packed, sha256: m.sha256}
	if l.cpu == "" {
		cpu, err := tensor.CPU()
		if err != nil {
			return nil, err
		}
		l.cpu = cpu
	}
	var err error
	if l.vec, err = vec.For(l.cpu); err != nil {
		return nil, err
	}
	if l.pool == nil {
		l.pool, l.ownPool = pool.New(o.Threads), true
	}
	return l, nil
}

// part begins a part.
func (l *loader) part(name string) { l.parts = append(l.parts, loadPart{name: name}) }

// matrix lays out one matrix of tensors of one type and row length. It has no weights before load.
func (l *loader) matrix(ts ...*gguf.Tensor) (*tensor.Matrix, error) {
	m, err := tensor.LayFor(l.cpu, ts...)
	if err != nil {
		return nil, err
	}
	l.matrices = append(l.matrices, m)
	p := &l.parts[len(l.parts)-1]
	p.matrices = append(p.matrices, m)
	return m, nil
}

// vector copies a float32 vector out of the file; nil stays nil.
func (l *loader) vector(t *gguf.Tensor) ([]float32, error) {
	if t == nil {
		return nil, nil
	}
	v := make([]float32, t.Dims[0])
	if err := tensor.DequantRow(t, 0, v); err != nil {
		return nil, err
	}
	for i, x := range v {
		if !finite(x) {
			return nil, fmt.Errorf("tensor %q: value %d is %g: the file is damaged", t.Name, i, x)
		}
	}
	l.file.Release(t)
	l.count(int64(len(t.Data)))
	return v, nil
}

func (l *loader) count(bytes int64) {
	l.done += bytes
	if l.progress != nil {
		l.progress(l.done, l.total)
	}
}

// load gives the matrices their weights.
func (l *loader) load() error {
	missing := l.reuse()
	if len(missing) == 0 {
		return nil
	}
	l.draft(missing)
	var loose int64 // bytes that no file holds
	for _, p := range missing {
		if p.blob == nil {
			loose += p.bytes()
		}
	}
	var err error
	if loose > 0 {
		if l.arena, err = tensor.NewArena(loose); err != nil {
			return err
		}
	}
	var ms []*tensor.Matrix
	for _, p := range missing {
		if p.blob != nil {
			p.place(p.blob.Data())
		} else {
			p.place(l.arena.Take(p.bytes()))
		}
		ms = append(ms, p.matrices...)
	}
	err = tensor.Fill(l.pool, ms, func(_ *gguf.Tensor, part []byte) {
		l.file.ReleasePart(part)
		l.count(int64(len(part)))
	})
	if err != nil {
		return err
	}
	for _, m := range ms {
		for _, t := range m.Sources() {
			l.file.Release(t) // pages that parts shared
		}
	}
	for _, p := range missing {
		if p.blob != nil {
			p.blob.Commit(l.pool)
		}
	}
	return nil
}

// reuse maps the parts that are on disk and whole, and returns the others.
func (l *loader) reuse() (missing []*loadPart) {
	for i := range l.parts {
		p := &l.parts[i]
		if l.packed != nil {
			p.key = p.makeKey(l)
			if p.blob = l.packed.Get(p.key, l.pool); p.blob != nil {
				p.place(p.blob.Data())
				for _, m := range p.matrices {
					for _, t := range m.Sources() {
						l.count(int64(len(t.Data)))
					}
				}
				continue
			}
		}
		missing = append(missing, p)
	}
	return missing
}

// draft gets files for parts to be packed into, as far as there is room for all of them.
func (l *loader) draft(missing []*loadPart) {
	if l.packed == nil {
		return
	}
	var need int64
	for _, p := range missing {
		need += p.bytes()
	}
	if !l.packed.Room(need) {
		return
	}
	for _, p := range missing {
		p.blob = l.packed.Create(p.key)
	}
}

func (p *loadPart) bytes() int64 { return packedBytes(p.matrices) }

// makeKey names what the part's bytes depend on.
func (p *loadPart) makeKey(l *loader) packed.Key {
	k := packed.Key{Model: l.sha256, Part: p.name, Bytes: p.bytes()}
	var types []gguf.Type
	for _, m := range p.matrices {
		types = append(types, m.Type())
		k.Shape = append(k.Shape, m.Rows(), m.Cols())
	}
	k.Layout, _ = tensor.Layout(types...) // they were laid out, so all have one
	return k
}

func (p *loadPart) place(mem []byte) {
	for _, m := range p.matrices {
		m.Place(mem[:m.Bytes()])
		mem = mem[m.Bytes():]
	}
}

// free drops what was loaded, after an error or at the end.
func (l *loader) free() {
	for _, m := range l.matrices {
		m.Close()
	}
	l.matrices = nil
	for _, p := range l.parts {
		if p.blob != nil {
			p.blob.Close()
		}
	}
	l.parts = nil
	if l.arena != nil {
		l.arena.Close()
		l.arena = nil
	}
	if l.ownPool {
		l.pool.Close()
		l.ownPool = false
	}
}

// bytes is the memory that the packed matrices take.
func (l *loader) bytes() int64 { return packedBytes(l.matrices) }

func packedBytes(ms []*tensor.Matrix) (n int64) {
	for _, m := range ms {
		n += m.Bytes()
	}
	return n
}
