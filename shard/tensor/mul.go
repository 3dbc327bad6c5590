package tensor

import (
	"fmt"
	"runtime"

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
	j := &job{m: m, acts: s.prepare(p, m.ks, m.form.float()), n: s.n, out: out}
	j.split(p.Threads())
	p.Run(j.panelChunks*j.tileChunks, j.chunk)
	runtime.KeepAlive(m)
}

// job is one multiplication, cut into chunks of panels (four groups of rows) times tiles.
type job struct {
	m                       *Matrix
	acts                    *tiles
	n                       int
	out                     []float32
	panels, tiles           int
	panelChunks, tileChunks int
}

const (
	panelGroups = 4
	// A chunk below this many bytes of weights times tiles costs less than handing it to another thread (some 2 us).
	minChunkBytes   = 32 << 10
	chunksPerThread = 8
)

// split chooses the number of chunks: enough of them that a thread that comes late or is slow holds up little, few
// enough that none is trivial. Rows are cut first, because each cut of the tiles reads the weights once more.
func (j *job) split(threads int) {
	j.panels = (j.m.groups() + panelGroups - 1) / panelGroups
	j.tiles = (j.n + j.acts.width - 1) / j.acts.width
	j.tileChunks = 1
	if threads == 1 {
		j.panelChunks = 1
		return
	}
	most := max(1, j.panels*panelGroups*j.m.group*j.tiles/minChunkBytes)
	want := min(most, threads*chunksPerThread)
	j.panelChunks = min(j.panels, want)
	j.tileChunks = max(1, min(j.tiles, want/j.panelChunks))
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
	c := &call{group: m.group, lines: m.lines, steps: m.form.steps(m.cols), outRow: m.rows * 4}
	whole := m.rows / groupRows // groups without padding
	for p := p0; p < p1; p++ {
		g0 := p * panelGroups
		g1 := min(g0+panelGroups, whole)
		for t := t0; t < t1; t++ {
			rows := min(j.acts.width, j.n-t*j.acts.width)
			k := &m.ks.kernels[m.form.id][rows]
			c.a = &j.acts.data[t*j.acts.width*rowBytes]
			out := j.out[t*j.acts.width*m.rows:]
			for g := g0; g < g1; {
				c.w, c.out = &m.data[g*m.group], &out[g*groupRows]
				c.group, c.outGroup = m.group, groupRows*4
				if g+k.groups > g1 {
					c.group, c.outGroup = 0, 0 // too few left: the same group in every place of the kernel
					g++
				} else {
					g += k.groups
				}
				invoke(k, c)
			}
			if whole >= g0 && whole < g0+panelGroups && m.rows%groupRows != 0 {
				j.ragged(k, c, rows, whole, out)
			}
		}
	}
}

// ragged computes the last group when it is padded: its outputs go through a buffer.
func (j *job) ragged(k *kernel, c *call, rows, g int, out []float32) {
	m := j.m
	buf := make([]float32, rows*groupRows)
	r := *c
	r.w, r.group = &m.data[g*m.group], 0
	r.out, r.outGroup, r.outRow = &buf[0], 0, groupRows*4
	invoke(k, &r)
	for v := range rows {
		copy(out[v*m.rows+g*groupRows:][:m.rows%groupRows], buf[v*groupRows:])
	}
}

// invoke is not inlined: its prologue is where a loop of assembly calls can be stopped for the collector.
//
//go:noinline
func invoke(k *kernel, c *call) { k.fn(c) }
