package tensor

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
)

// LayFor is PackFused for the kernel set of that name ("amx", "avx512", "avxvnni", "avx2", "neon" or "generic"), without the packing: the matrix knows its shape and the Bytes it will take, and has no weights
// until it was given memory by Place, and weights by Fill, or memory that holds them already. It must not be used before.
func LayFor(cpu string, ts ...*gguf.Tensor) (*Matrix, error) {
	ks, err := choose(cpu)
	if err != nil {
		return nil, err
	}
	return lay(ks, ts...)
}

func lay(ks *kernelSet, ts ...*gguf.Tensor) (*Matrix, error) {
	if len(ts) == 0 {
		return nil, errors.New("pack matrix: no tensor given")
	}
	rows := 0
	for _, t := range ts {
		if err := check(t); err != nil {
			return nil, fmt.Errorf("pack tensor %q: %w", t.Name, err)
		}
		if t.Type != ts[0].Type || t.Dims[0] != ts[0].Dims[0] {
			return nil, fmt.Errorf("pack tensor %q: %s rows of %d cannot be stacked on %s rows of %d of %q",
				t.Name, t.Type, t.Dims[0], ts[0].Type, ts[0].Dims[0], ts[0].Name)
		}
		rows += t.Rows()
	}
	m := &Matrix{rows: rows, cols: int(ts[0].Dims[0]), typ: ts[0].Type, form: formOf(ts[0].Type), ks: ks, sources: ts}
	m.panel = m.form.panelBytes(m.cols)
	return m, nil
}

// Place gives a laid matrix its memory, Bytes() long and aligned to 64, which must outlive it.
func (m *Matrix) Place(mem []byte) {
	if int64(len(mem)) != m.Bytes() || misaligned(mem) || m.data != nil {
		panic(fmt.Sprintf("tensor: %d bytes of memory for a matrix that takes %d", len(mem), m.Bytes()))
	}
	m.data = mem[:len(mem):len(mem)]
}

// Sources are the tensors whose rows the matrix holds, in order.
func (m *Matrix) Sources() []*gguf.Tensor { return m.sources }

const (
	// fillChunk is what one call of Fill's loop packs: enough to be worth handing to a thread, little enough to share.
	fillChunk = 256 << 10
	// fillBatch is what is packed between two reports, and so how much of the file is held meanwhile.
	fillBatch = 16 << 20
)

// fillTask is some panels of a matrix.
type fillTask struct {
	m        *Matrix
	from, to int
}

// Fill packs the rows of the matrices' tensors into their memory, which must be zeros. It spreads the work over p and
// fails on scales and values that are not finite. From the calling goroutine done is told which part of which tensor will
// not be read again; nil is nobody.
func Fill(p *pool.Pool, ms []*Matrix, done func(t *gguf.Tensor, part []byte)) error {
	var batch []fillTask
	size := 0
	flush := func() error {
		var mu sync.Mutex
		var first error
		p.Run(len(batch), func(i int) {
			for at := batch[i].from; at < batch[i].to; at++ {
				if err := batch[i].m.fillPanel(at); err != nil {
					mu.Lock()
					first = err
					mu.Unlock()
					return
				}
			}
		})
		if first == nil && done != nil {
			for _, t := range batch {
				t.m.parts(t.from*panelRows, min(t.to*panelRows, t.m.rows), done)
			}
		}
		batch, size = batch[:0], 0
		return first
	}
	for _, m := range ms {
		each := max(1, fillChunk/m.panel)
		for at := 0; at < m.panels(); at += each {
			t := fillTask{m, at, min(at+each, m.panels())}
			batch = append(batch, t)
			if size += (t.to - t.from) * m.panel; size >= fillBatch {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	return flush()
}

// parts calls fn with what rows [from, to) are in the file.
func (m *Matrix) parts(from, to int, fn func(t *gguf.Tensor, part []byte)) {
	for _, t := range m.sources {
		n := t.Rows()
		if lo, hi := max(from, 0), min(to, n); lo < hi {
			fn(t, t.Data[lo*t.RowBytes():hi*t.RowBytes()])
		}
		from, to = from-n, to-n
	}
}

// panelSource is the rows of one panel in the file.
type panelSource struct {
	raw [panelRows][]byte // nil: padding
	t   [panelRows]*gguf.Tensor
	row [panelRows]int
}

func (m *Matrix) fillPanel(i int) error {
	var src panelSource
	t, row := 0, i*panelRows
	for row >= m.sources[t].Rows() {
		row -= m.sources[t].Rows()
		t++
	}
	for r := 0; r < panelRows && t < len(m.sources); r++ {
		n := m.sources[t].RowBytes()
		src.raw[r], src.t[r], src.row[r] = m.sources[t].Data[row*n:][:n], m.sources[t], row
		if row++; row == m.sources[t].Rows() {
			row, t = 0, t+1
		}
	}
	r, bad := m.form.fill(m.data[i*m.panel:][:m.panel], &src.raw, m.cols)
	if bad >= 0 {
		return fmt.Errorf("pack tensor %q: row %d has a scale or value that is not finite, near column %d: the file is damaged",
			src.t[r].Name, src.row[r], bad)
	}
	return nil
}

// Layout identifies how matrices of these types lie in memory, by how this program packs samples of them: weights that
// were packed by another program under the same name are the same bytes.
func Layout(types ...gguf.Type) ([32]byte, error) {
	h := sha256.New()
	for _, typ := range types {
		f := formOf(typ)
		if f == nil {
			return [32]byte{}, fmt.Errorf("type %s has no kernels here; known are %s", typ, knownTypes())
		}
		fmt.Fprintf(h, "%s %d\n", typ, panelRows)
		sum := sampleSums[f.id]()
		h.Write(sum[:])
	}
	return [32]byte(h.Sum(nil)), nil
}

// sampleSums are the sums of each form's sample, made once: a model asks for them part by part.
var sampleSums = func() (sums [numForms]func() [32]byte) {
	for _, ft := range formTypes {
		sums[ft.form] = sync.OnceValue(func() [32]byte { return sha256.Sum256(forms[ft.form].sample(ft.typ)) })
	}
	return sums
}()

// sample is a packed panel of two units of noise.
func (f *form) sample(typ gguf.Type) []byte {
	cols := max(2*f.unit, 8)
	n := cols / typ.BlockSize() * typ.BlockBytes()
	rng := rand.New(rand.NewPCG(1, uint64(f.id)))
	panel := make([]byte, f.panelBytes(cols))
	raw := make([]byte, n+8)
	for r := range panelRows {
		for { // until the noise has no scale that is not finite
			for i := 0; i < n; i += 8 {
				binary.LittleEndian.PutUint64(raw[i:], rng.Uint64())
			}
			if f.fillRow(panel, r, raw[:n], cols) < 0 {
				break
			}
		}
	}
	return panel
}
