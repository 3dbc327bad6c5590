package tensor

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/meshnet/meshnet/shard/pool"
)

// wide is how a kernel set multiplies many rows of activations, where it has units for tiles (AMX): open the weights of a panel
// into signed bytes, once; then multiply them with tile after tile of 16 rows. The bits are those of the other kernels: the sums
// of a block are exact integers, and what follows is the same arithmetic.
//
// An opened block of 32 values of a group:
//
//	16 float32, the scale of each row (with halves, two lines: one for each 16 values)
//	if mins: 16 float32 minimum, to be added (with halves, two lines, to be subtracted)
//	8 lines of 64 bytes: line k, dword r, byte b: value 4k+b of row r, less its zero
//
// A tile of 16 rows of activations has for each block:
//
//	16 float32 d; 16 d * sum; 16 d * -sum of the first 16; 16 d * -sum of the last 16
//	16 times the 32 int8 of a row
type wide struct {
	least    int                   // rows from which on it pays
	open     [numForms]func(*call) // c.steps units of a group to c.a; out and resume are not used
	multiply [4]func(*wideCall)    // by wideKind
	lay      func(*byte, int)      // a tile of 16 rows, as quantize writes them, becomes one of these, in place
}

// wideCall is the work of one call of multiply: some groups of a panel times some tiles. Assembly reads it by offset.
type wideCall struct {
	weights *byte // opened; one group after another
	groups  int
	blocks  int
	acts    *byte // the first tile's first block
	tiles   int
	stride  int      // bytes from a tile to the next
	out     *float32 // first output of the first row; the groups' outputs are adjacent
	outRow  int      // bytes from one row's outputs to the next's
	resume  int      // 1: begin with the sums that out holds, not with 0
	mask    int      // bit r: output r of each group exists
	sums    *byte    // 2 KB for the kernel, aligned
}

const (
	wideRows      = 16
	wideActBytes  = actBlockBytes * wideRows // of a block
	wideSumsBytes = 2048
	// Blocks that are opened at once: the groups of a panel then take under 1 MB.
	maxWideBlocks = 256
	// Products of 16 x 16 x 32 in one call, at some 80 cycles, and twice that with halves: at 3 GHz it takes some 30 us.
	maxWideProducts = 512
)

// wideKind is which of the multiply functions takes a form.
func (f *form) wideKind() int {
	kind := 0
	if f.mins {
		kind |= 1
	}
	if f.halves {
		kind |= 2
	}
	return kind
}

// wideBlockBytes is the size of an opened block of a group.
func (f *form) wideBlockBytes() int {
	return blockValues*groupRows + 64<<bits.OnesCount(uint(f.wideKind()))
}

// wideRows is how many of n rows go the wide way: whole tiles of 16.
func (ks *kernelSet) wideRows(f *form, n int) int {
	if ks.wide == nil || f.float() || n < ks.wide.least {
		return 0
	}
	return n / wideRows * wideRows
}

// wideJob is a multiplication of whole tiles of 16 rows.
type wideJob struct {
	job
	mu   sync.Mutex
	free []*wideBuffer // one for each thread that was ever busy at the same time; kept, so that a multiplication allocates nothing
}

// wideBuffer is what a thread needs.
type wideBuffer struct {
	data []byte // aligned: the kernel's sums, then the opened weights of a panel
	open kernel
	in   call
	call wideCall
}

// mulWide computes the outputs of the first n rows, which are whole tiles.
func (s *Scratch) mulWide(p *pool.Pool, m *Matrix, n int, out []float32) {
	j := &s.wideJob
	j.m, j.acts, j.n, j.out = m, s.prepareWide(p, m.ks, n), n, out
	j.split(p.Threads())
	if j.run == nil {
		j.run = j.chunk
	}
	p.Run(j.panelChunks*j.tileChunks, j.run)
	j.m, j.acts, j.out = nil, nil, nil
}

// prepareWide makes the first n rows ready, unless they are.
func (s *Scratch) prepareWide(p *pool.Pool, ks *kernelSet, n int) *tiles {
	t := &s.wide
	if t.width == wideRows && t.n == n {
		return t
	}
	t.width, t.n = wideRows, n
	blocks := s.cols / blockValues
	t.reserve(n * blocks * actBlockBytes)
	cols := s.cols
	p.Run(n/wideRows, func(i int) {
		dst := t.data[i*blocks*wideActBytes:][:blocks*wideActBytes]
		for r := range wideRows {
			ks.quantize(s.x[(i*wideRows+r)*cols:][:cols], dst, wideRows, r)
		}
		for at := 0; at < blocks; at += maxWideBlocks {
			invokeLay(ks.wide, &dst[at*wideActBytes], min(maxWideBlocks, blocks-at))
		}
	})
	return t
}

func (j *wideJob) chunk(i int) {
	p0, p1 := cut(j.panels, i/j.tileChunks, j.panelChunks)
	t0, t1 := cut(j.tiles, i%j.tileChunks, j.tileChunks)
	b := j.take()
	for p := p0; p < p1; p++ {
		j.panel(p, t0, t1, b)
	}
	b.in, b.call = call{}, wideCall{}
	j.mu.Lock()
	j.free = append(j.free, b)
	j.mu.Unlock()
}

// take is a buffer, which chunk gives back.
func (j *wideJob) take() *wideBuffer {
	var b *wideBuffer
	j.mu.Lock()
	if last := len(j.free) - 1; last >= 0 {
		b, j.free = j.free[last], j.free[:last]
	}
	j.mu.Unlock()
	if b == nil {
		b = new(wideBuffer)
	}
	blocks := min(maxWideBlocks, j.m.cols/blockValues)
	if need := wideSumsBytes + blocks*panelGroups*j.m.form.wideBlockBytes(); len(b.data) < need {
		b.data = aligned(need)
	}
	return b
}

// panel computes the outputs of panel p for tiles t0 to t1, as many units at a time as the buffer takes.
func (j *wideJob) panel(p, t0, t1 int, b *wideBuffer) {
	m, f := j.m, j.m.form
	left := min(panelRows, m.rows-p*panelRows)
	most := maxWideBlocks / f.blocks()
	for unit, steps := 0, f.steps(m.cols); unit < steps; unit += most {
		n := min(most, steps-unit)
		j.open(p, unit, n, (left+groupRows-1)/groupRows, b)
		b.call = wideCall{blocks: n * f.blocks(), stride: m.cols / blockValues * wideActBytes, outRow: m.rows * 4,
			resume: min(1, unit), sums: &b.data[0]}
		whole, rest := left/groupRows, left%groupRows
		for g, most := 0, wideGroupsOfCall(b.call.blocks); g < whole; g += most {
			j.multiply(p, g, min(most, whole-g), 1<<groupRows-1, t0, t1, unit, b)
		}
		if rest > 0 { // only the group's first rows have outputs
			j.multiply(p, whole, 1, 1<<rest-1, t0, t1, unit, b)
		}
	}
}

// open opens n units of the first groups of panel p.
func (j *wideJob) open(p, unit, n, groups int, b *wideBuffer) {
	f := j.m.form
	w := j.m.data[p*j.m.panel:][:j.m.panel]
	b.open.fn = j.m.ks.wide.open[f.id]
	for g := range groups {
		b.in = call{scales: &w[f.scales(unit, g)], lines: &w[f.lines(unit*f.blocks(), g)], steps: n,
			a: &b.data[wideSumsBytes+g*n*f.blocks()*f.wideBlockBytes()]}
		invoke(&b.open, &b.in)
	}
}

// multiply multiplies groups from g on of panel p, opened from unit on, with tiles t0 to t1.
func (j *wideJob) multiply(p, g, groups, mask, t0, t1, unit int, b *wideBuffer) {
	m, f, c := j.m, j.m.form, &b.call
	c.weights, c.groups, c.mask = &b.data[wideSumsBytes+g*c.blocks*f.wideBlockBytes()], groups, mask
	most := wideTilesOfCall(c.blocks, groups)
	for t := t0; t < t1; t += c.tiles {
		c.tiles = min(most, t1-t)
		c.acts = &j.acts.data[t*c.stride+unit*f.blocks()*wideActBytes]
		c.out = &j.out[t*wideRows*m.rows+p*panelRows+g*groupRows]
		invokeWide(m.ks.wide.multiply[f.wideKind()], c)
	}
}

// wideGroupsOfCall and wideTilesOfCall are how much of a panel, and how many tiles, one call of multiply takes.
func wideGroupsOfCall(blocks int) int { return max(1, min(panelGroups, maxWideProducts/blocks)) }

func wideTilesOfCall(blocks, groups int) int { return max(1, maxWideProducts/(blocks*groups)) }

// These are not inlined, as invoke is not.
//
//go:noinline
func invokeWide(fn func(*wideCall), c *wideCall) { fn(c) }

//go:noinline
func invokeLay(w *wide, tile *byte, blocks int) { w.lay(tile, blocks) }

// aligned is n bytes that begin at a multiple of 64.
func aligned(n int) []byte {
	b := make([]byte, n+63)
	off := -int(uintptr(unsafe.Pointer(&b[0]))) & 63
	return b[off : off+n]
}

// checkWide computes a small product with each form, and says with which the bits are not those of plain Go.
func (ks *kernelSet) checkWide() error {
	p := pool.New(1)
	defer p.Close()
	const rows, cols = groupRows + 3, 256
	n := ks.wide.least
	x, random := make([]float32, n*cols), uint32(1)
	next := func() uint32 {
		random = random*1664525 + 1013904223
		return random >> 8
	}
	for i := range x {
		x[i] = float32(int32(next()>>8)-1<<15) / 1024
	}
	s := new(Scratch)
	s.Quantize(p, x, n, cols)
	plain := new(Scratch)
	plain.Quantize(p, x, n, cols)
	for id := range numForms {
		f := &forms[id]
		if f.float() {
			continue
		}
		m := Matrix{rows: rows, cols: cols, form: f, panel: f.panelBytes(cols), data: make([]byte, f.panelBytes(cols)), ks: ks}
		for i := range m.data {
			m.data[i] = byte(next() >> 8)
		}
		for u := range f.steps(cols) {
			for g := range panelGroups {
				f.plainScales(m.data[f.scales(u, g):], next)
			}
		}
		got, want := make([]float32, n*rows), make([]float32, n*rows)
		m.MulQ(p, s, got)
		m.ks = generic()
		m.MulQ(p, plain, want)
		for i, v := range want {
			if math.Float32bits(got[i]) != math.Float32bits(v) {
				return fmt.Errorf("with weights of %d bits (form %d) it computes %g where plain Go computes %g", f.bits, id, got[i], v)
			}
		}
	}
	return nil
}

// plainScales overwrites the scales (and minimums) of a group's unit with ordinary numbers, and those of sub-blocks with what a
// file can hold.
func (f *form) plainScales(s []byte, next func() uint32) {
	for r := range groupRows {
		v := uint16(next())
		if f.bfloat {
			le.PutUint16(s[2*r:], v&0x807f|120<<7)
			continue
		}
		le.PutUint16(s[2*r:], v&0x83ff|8<<10)
		if f.mins {
			le.PutUint16(s[32+2*r:], v>>3&0x03ff|8<<10)
		}
	}
	if f.super && f.mins && !f.halves { // 6 bits
		for i := f.subScales(); i < f.scaleBytes; i++ {
			s[i] &= 63
		}
	}
}
