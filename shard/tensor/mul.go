package tensor

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/meshnet/meshnet/shard/pool"
)

// Mul computes out[i][r] = W[r] · x[i] for n rows of Cols() activations in x, into n rows of Rows() outputs in out, spread
// over p. Quantized weights meet x quantized to int8; F32, F16 and BF16 meet it as it is. A row of x with a NaN or an
// infinity gives outputs that are not finite.
func (m *Matrix) Mul(p *pool.Pool, x []float32, n int, out []float32, s *Scratch) {
	s.Quantize(p, x, n, m.cols)
	m.MulQ(p, s, out)
}

// MulQ is Mul with the rows given to s.Quantize before, so that several matrices share their preparation.
func (m *Matrix) MulQ(p *pool.Pool, s *Scratch, out []float32) {
	if s.cols != m.cols || len(out) < s.n*m.rows {
		panic(fmt.Sprintf("tensor: %d rows of %d activations and room for %d outputs, matrix of %d x %d",
			s.n, s.cols, len(out), m.rows, m.cols))
	}
	if s.n == 0 {
		return
	}
	wide := m.ks.wideRows(m.form, s.n)
	if wide > 0 {
		s.mulWide(p, m, wide, out)
	}
	if wide < s.n {
		s.mul(p, m, s.n-wide, out[wide*m.rows:])
	}
	runtime.KeepAlive(m)
}

// mul computes the outputs of the last n rows.
func (s *Scratch) mul(p *pool.Pool, m *Matrix, n int, out []float32) {
	j := &s.job
	j.m, j.acts, j.n, j.out = m, s.prepare(p, m.ks, m.form.float(), n), n, out
	j.split(p.Threads())
	chunks := j.panelChunks * j.tileChunks
	if j.run == nil {
		j.run = j.chunk
	}
	if chunks > len(j.calls) {
		j.calls = make([]paddedCall, chunks)
	}
	p.Run(chunks, j.run)
	j.m, j.acts, j.out = nil, nil, nil
	clear(j.calls)
}

// job is one multiplication, cut into chunks of panels times tiles.
type job struct {
	m                       *Matrix
	acts                    *tiles
	n                       int
	out                     []float32
	panels, tiles           int
	panelChunks, tileChunks int
	calls                   []paddedCall // one a chunk; kept, so that a multiplication allocates nothing
	run                     func(int)    // j.chunk
}

// paddedCall keeps the calls of two threads on lines of their own.
type paddedCall struct {
	call
	_ [128 - unsafe.Sizeof(call{})]byte
}

const (
	// A chunk below this many bytes of weights times tiles costs less than handing it to another thread (some 2 us).
	minChunkBytes   = 32 << 10
	chunksPerThread = 8
)

// Assembly cannot be stopped for the collector, so a call is to end within 100 us.
const (
	// A call takes at most this much of a panel, even if it uses some groups only: the others come along from memory. A thread that
	// gets 5 GB/s of the memory's bandwidth still keeps the limit.
	maxCallBytes = 512 << 10
	// It multiplies at most this many pairs of values, where taking a weight apart counts as takeApart of them. The slowest
	// kernels (F16) do 64 G of these a second on a 3.7 GHz core, so one a third as fast still keeps the limit.
	maxCallWork = 2 << 20
	takeApart   = 2
)

// callSteps is how many units of a row one call takes, for some groups of 16 rows and a tile of activation rows.
func (f *form) callSteps(groups, rows int) int {
	return max(1, min(maxCallBytes/f.unitBytes(), maxCallWork/f.stepWork(groups, rows)))
}

// stepWork is what one unit adds to the work of a call.
func (f *form) stepWork(groups, rows int) int {
	return f.unit * groups * groupRows * (rows + takeApart)
}

// split chooses the number of chunks: enough of them that a thread that comes late or is slow holds up little, few
// enough that none is trivial. Rows are cut first, because each cut of the tiles reads the weights once more.
func (j *job) split(threads int) {
	j.panels = j.m.panels()
	j.tiles = (j.n + j.acts.width - 1) / j.acts.width
	j.tileChunks = 1
	if threads == 1 {
		j.panelChunks = 1
		return
	}
	most := max(1, j.panels*j.m.panel*j.tiles/minChunkBytes)
	want := min(most, threads*chunksPerThread)
	j.panelChunks = min(j.panels, want)
	j.tileChunks = min(j.tiles, (want+j.panelChunks-1)/j.panelChunks)
}

// cut is the part [from, to) of n that belongs to piece i of k.
func cut(n, i, k int) (from, to int) { return n * i / k, n * (i + 1) / k }

func (j *job) chunk(i int) {
	p0, p1 := cut(j.panels, i/j.tileChunks, j.panelChunks)
	t0, t1 := cut(j.tiles, i%j.tileChunks, j.tileChunks)
	m := j.m
	rowBytes := m.cols / blockValues * actBlockBytes
	if m.form.float() {
		rowBytes = m.cols * 4
	}
	c := &j.calls[i].call
	for p := p0; p < p1; p++ {
		for t := t0; t < t1; t++ {
			rows := min(j.acts.width, j.n-t*j.acts.width)
			c.a = &j.acts.data[t*j.acts.width*rowBytes]
			j.panel(c, p, rows, j.out[t*j.acts.width*m.rows+p*panelRows:])
		}
	}
}

// panel computes the outputs of panel p for a tile of rows; out begins with the first of them.
func (j *job) panel(c *call, p, rows int, out []float32) {
	m := j.m
	k := &m.ks.kernels[m.form.id][rows]
	w := m.data[p*m.panel:][:m.panel]
	left := m.rows - p*panelRows
	for g := 0; g < panelGroups && g*groupRows < left; g += k.groups {
		c.scales, c.lines = &w[m.form.scales(0, g)], &w[m.form.lines(0, g)]
		if width := k.groups * groupRows; g*groupRows+width > left {
			j.ragged(k, c, rows, left-g*groupRows, out[g*groupRows:])
			return
		}
		c.out, c.outRow = &out[g*groupRows], m.rows*4
		j.multiply(k, c, rows)
	}
}

// ragged computes the last groups when they are padded: only the first width outputs exist, so they go through a buffer.
func (j *job) ragged(k *kernel, c *call, rows, width int, out []float32) {
	buf := make([]float32, rows*panelRows)
	c.out, c.outRow = &buf[0], panelRows*4
	j.multiply(k, c, rows)
	for v := range rows {
		copy(out[v*j.m.rows:][:width], buf[v*panelRows:])
	}
}

// multiply calls a kernel, in several calls if the rows are long.
func (j *job) multiply(k *kernel, c *call, rows int) {
	f, total := j.m.form, j.m.form.steps(j.m.cols)
	most := f.callSteps(k.groups, rows)
	rowBytes := f.blocks() * actBlockBytes
	if f.float() {
		rowBytes = 4
	}
	a := c.a
	for done := 0; done < total; done += c.steps {
		c.steps, c.resume = min(most, total-done), min(1, done)
		invoke(k, c)
		if done+c.steps < total {
			c.scales = (*byte)(unsafe.Add(unsafe.Pointer(c.scales), c.steps*f.unitBytes()))
			c.lines = (*byte)(unsafe.Add(unsafe.Pointer(c.lines), c.steps*f.unitBytes()))
			c.a = (*byte)(unsafe.Add(unsafe.Pointer(c.a), c.steps*rows*rowBytes))
		}
	}
	c.a = a
}

// invoke is not inlined: its prologue is where a loop of assembly calls can be stopped for the collector.
//
//go:noinline
func invoke(k *kernel, c *call) { k.fn(c) }
