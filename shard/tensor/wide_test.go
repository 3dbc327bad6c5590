package tensor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
)

// plainWide is the set in plain Go with tiles in plain Go.
func plainWide() *kernelSet {
	ks := generic()
	ks.name, ks.wide = "plain tiles", &wide{least: wideRows, lay: layPlain}
	for id := range numForms {
		if f := &forms[id]; !f.float() {
			ks.wide.open[id] = func(c *call) { openPlain(f, c) }
		}
	}
	for kind := range ks.wide.multiply {
		ks.wide.multiply[kind] = func(c *wideCall) { multiplyPlain(kind, c) }
	}
	return ks
}

// openPlain is what a form's open function is to do.
func openPlain(f *form, c *call) {
	size, lines := f.wideBlockBytes(), 1<<(f.wideKind()>>1)
	for b := range c.steps * f.blocks() {
		dst := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(c.a), b*size)), size)
		src := unsafe.Slice(c.linesOf(f, b), f.lineBytes)
		for r := range groupRows {
			d, m := f.scalesOf(c, b, r)
			for h := range lines {
				le.PutUint32(dst[64*h+4*r:], math.Float32bits(d[h]))
				if f.halves {
					m[h] = -m[h]
				}
				if f.mins {
					le.PutUint32(dst[64*(lines+h)+4*r:], math.Float32bits(m[h]))
				}
			}
			var q [blockValues]byte
			f.getLines(src, r, &q)
			for i, v := range q {
				dst[size-512+i/4*64+4*r+i%4] = byte(f.weight(v))
			}
		}
	}
}

// multiplyPlain is what the multiply function of a kind is to do.
func multiplyPlain(kind int, c *wideCall) {
	mins, lines := kind&1 == 1, 1<<(kind>>1)
	size := 512 + 64*lines*(1+kind&1)
	for t := range c.tiles {
		for g := range c.groups {
			weights := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(c.weights), g*c.blocks*size)), c.blocks*size)
			acts := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(c.acts), t*c.stride)), c.blocks*wideActBytes)
			for v := range wideRows {
				for r := range groupRows {
					if c.mask>>r&1 == 0 {
						continue
					}
					out := (*float32)(unsafe.Add(unsafe.Pointer(c.out), (t*wideRows+v)*c.outRow+64*g+4*r))
					acc := float32(0)
					if c.resume == 1 {
						acc = *out
					}
					for b := range c.blocks {
						acc = blockPlain(weights[b*size:][:size], acts[b*wideActBytes:], r, v, lines, mins, acc)
					}
					*out = acc
				}
			}
		}
	}
}

func blockPlain(w, a []byte, r, v, lines int, mins bool, acc float32) float32 {
	at := func(b []byte, line, i int) float32 { return math.Float32frombits(le.Uint32(b[64*line+4*i:])) }
	n := blockValues / lines
	for h := range lines {
		sum := int32(0)
		for i := h * n; i < (h+1)*n; i++ {
			sum += int32(int8(w[len(w)-512+i/4*64+4*r+i%4])) * int32(int8(a[256+32*v+i]))
		}
		acc = fma32(float32(sum), at(w, h, r)*at(a, 0, v), acc)
	}
	for h := range lines {
		if mins {
			field := 1
			if lines == 2 {
				field = 2 + h
			}
			acc = fma32(at(w, lines+h, r), at(a, field, v), acc)
		}
	}
	return acc
}

// layPlain turns tiles of 16 rows into those of the multiply functions.
func layPlain(tile *byte, blocks int) {
	all := unsafe.Slice(tile, blocks*wideActBytes)
	for ; len(all) > 0; all = all[wideActBytes:] {
		b := all[:wideActBytes]
		old := append([]byte{}, b...)
		field := func(i, row int) uint32 { return le.Uint32(old[(i*wideRows+row)*4:]) }
		for row := range wideRows {
			d, first := math.Float32frombits(field(0, row)), int32(field(2, row))
			le.PutUint32(b[64+4*row:], field(3, row))
			le.PutUint32(b[128+4*row:], math.Float32bits(d*float32(first)))
			le.PutUint32(b[192+4*row:], math.Float32bits(d*float32(int32(field(1, row))-first)))
			for k := range 8 {
				le.PutUint32(b[256+32*row+4*k:], field(4+k, row))
			}
		}
	}
}

// Whole tiles and what is left of them, panels and what is left of them, give the bits that rows give one by one.
func TestWideEqualsTwin(t *testing.T) {
	counts := []int{15, 16, 17, 50}
	if testing.Short() { // under emulation
		counts = []int{17}
	}
	kernelsEqualTwin(t, []*kernelSet{plainWide()}, [][2]int{{1, 256}, {33, 256}, {130, 256}, {5, 32}, {48, 96}}, counts)
}

func TestWideAllocatesNothing(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	ks := plainWide()
	ks.wide.open[formQ4m] = func(*call) {}
	ks.wide.multiply[1] = func(*wideCall) {}
	ks.wide.lay = func(*byte, int) {}
	m, err := packFused(ks, p, randomTensor(gguf.Q4_1, 640, 512, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	const n = 2 * wideRows
	x, out, s := randomActs(n, 512, 1), make([]float32, n*640), new(Scratch)
	if a := testing.AllocsPerRun(20, func() { m.Mul(p, x, n, out, s) }); a >= 2 {
		t.Errorf("%v allocations", a)
	}
}

// What is checked at the start finds a set that errs, in any form, and lets a right one pass.
func TestCheckWide(t *testing.T) {
	if err := plainWide().checkWide(); err != nil {
		t.Errorf("plain Go: %v", err)
	}
	for id := range numForms {
		f := &forms[id]
		if f.float() {
			continue
		}
		ks := plainWide()
		ks.wide.open[id] = func(c *call) {
			openPlain(f, c)
			last := c.steps*f.blocks()*f.wideBlockBytes() - 1
			*(*byte)(unsafe.Add(unsafe.Pointer(c.a), last-60)) ^= 4 // a value of row 0
		}
		if err := ks.checkWide(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(form %d)", id)) {
			t.Errorf("form %d opened wrongly: %v", id, err)
		}
	}
	for kind := range 4 {
		ks := plainWide()
		ks.wide.multiply[kind] = func(c *wideCall) {
			multiplyPlain(kind, c)
			out := (*float32)(unsafe.Add(unsafe.Pointer(c.out), 15*c.outRow))
			*out = math.Nextafter32(*out, 0)
		}
		if ks.checkWide() == nil {
			t.Errorf("kind %d multiplied wrongly, and nobody saw", kind)
		}
	}
	ks := plainWide()
	ks.wide.lay = func(tile *byte, blocks int) {}
	if ks.checkWide() == nil {
		t.Error("tiles laid wrongly, and nobody saw")
	}
}

// randomTile is a tile of 16 rows as quantizers write it.
func randomTile(blocks int, seed uint64) []byte {
	tile := aligned(blocks * wideActBytes)
	r := rand.New(rand.NewPCG(seed, 5))
	for row := range wideRows {
		x := randomActs(1, blocks*blockValues, seed+uint64(row))
		if row == 3 {
			x[r.IntN(len(x))] = float32(math.NaN())
		}
		quantizeTwin(x, tile, wideRows, row)
	}
	return tile
}

// wideExtremes multiplies the largest weights and activations, and rows that are not finite.
func wideExtremes(t *testing.T, ks *kernelSet) {
	p := pool.New(1)
	const rows, cols = 19, 256
	n := ks.wide.least
	for _, typ := range allTypes() {
		for _, fill := range []byte{0x00, 0x7f, 0x80, 0xff} {
			ts := randomTensor(typ, rows, cols, 3)
			for i := range ts.Data {
				ts.Data[i] = fill
			}
			for i := 0; i < len(ts.Data); i += typ.BlockBytes() {
				for _, at := range scalesAt(typ) {
					le.PutUint16(ts.Data[i+at:], 0x2c01)
				}
				if typ == gguf.MXFP4 {
					ts.Data[i] = 120
				}
			}
			if formOf(typ).float() {
				ts = randomTensor(typ, rows, cols, 3)
			}
			x := randomActs(n, cols, 8)
			for i := range cols {
				x[i], x[cols+i], x[2*cols+i] = 1, -1, float32(1-2*(i&1))
			}
			x[5*cols+77], x[7*cols] = float32(math.NaN()), float32(math.Inf(1))
			m, err := packFused(generic(), p, ts)
			if err != nil {
				t.Fatal(err)
			}
			want, got := make([]float32, n*rows), make([]float32, n*rows)
			m.Mul(p, x, n, want, new(Scratch))
			m.ks = ks
			m.Mul(p, x, n, got, new(Scratch))
			bitsEqual(t, fmt.Sprintf("%s %s %#x", ks.name, typ, fill), got, want)
			for i, v := range got {
				if row := i / rows; (v-v != 0) != (row == 5 || row == 7) {
					t.Fatalf("%s %s: output %d of row %d is %g", ks.name, typ, i%rows, row, v)
				}
			}
			m.Close()
		}
	}
}

// wideCalls has several tiles and groups in a call of multiply, and rows that are longer than a call takes.
func wideCalls(t *testing.T, ks *kernelSet) {
	p := pool.New(1)
	for _, c := range []struct {
		typ           gguf.Type
		rows, cols, n int
	}{
		{gguf.Q4_1, 70, 64, 16 * 9}, {gguf.Q2_K, 33, 256, 16 * 5}, {gguf.Q8_0, 17, maxWideBlocks*blockValues + 96, 16 * 3},
		{gguf.Q6_K, 20, maxWideBlocks*blockValues + 256, 16 * 2},
	} {
		m, err := packFused(generic(), p, randomTensor(c.typ, c.rows, c.cols, 1))
		if err != nil {
			t.Fatal(err)
		}
		x := randomActs(c.n, c.cols, 2)
		want, got := make([]float32, c.n*c.rows), make([]float32, c.n*c.rows)
		m.Mul(p, x, c.n, want, new(Scratch))
		m.ks = ks
		m.Mul(p, x, c.n, got, new(Scratch))
		bitsEqual(t, fmt.Sprintf("%s %s %dx%d n=%d", ks.name, c.typ, c.rows, c.cols, c.n), got, want)
		m.Close()
	}
}

func TestWideExtremes(t *testing.T) { wideExtremes(t, plainWide()) }

func TestWideCalls(t *testing.T) { wideCalls(t, plainWide()) }
