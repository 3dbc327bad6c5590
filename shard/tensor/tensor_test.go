package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
	"github.com/nlpodyssey/safetensors"
)

// golden is a file of blocks that ggml quantized (and random ones), with what ggml dequantizes them to.
func golden(t *testing.T, typ gguf.Type) (tensor *gguf.Tensor, want []float32) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", typ.String()+".safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	st, err := safetensors.Deserialize(data)
	if err != nil {
		t.Fatal(err)
	}
	raw, ok := st.Tensor("raw")
	deq, ok2 := st.Tensor("deq")
	if !ok || !ok2 {
		t.Fatal("no raw or deq in the file")
	}
	rows, cols := deq.Shape()[0], deq.Shape()[1]
	for i := 0; i < len(deq.Data()); i += 4 {
		want = append(want, math.Float32frombits(binary.LittleEndian.Uint32(deq.Data()[i:])))
	}
	return &gguf.Tensor{Name: "golden", Type: typ, Dims: []uint64{cols, rows}, Data: raw.Data()}, want
}

func allTypes() []gguf.Type {
	var out []gguf.Type
	for _, ft := range formTypes {
		out = append(out, ft.typ)
	}
	return out
}

// Dequantization equals ggml's, bit by bit, from the file's layout and from the packed one.
func TestDequantGolden(t *testing.T) {
	p := pool.New(1)
	for _, typ := range allTypes() {
		if typ == gguf.F32 {
			continue
		}
		t.Run(typ.String(), func(t *testing.T) {
			ts, want := golden(t, typ)
			m, err := Pack(ts, p)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			cols := m.Cols()
			for r := range m.Rows() {
				direct, packed := make([]float32, cols), make([]float32, cols)
				if err := DequantRow(ts, r, direct); err != nil {
					t.Fatal(err)
				}
				m.Row(r, packed)
				for c, w := range want[r*cols:][:cols] {
					if math.Float32bits(direct[c]) != math.Float32bits(w) || math.Float32bits(packed[c]) != math.Float32bits(w) {
						t.Fatalf("row %d column %d: %g from the file, %g packed, ggml has %g", r, c, direct[c], packed[c], w)
					}
				}
			}
		})
	}
}

// randomTensor has random bits everywhere, but scales that are ordinary numbers.
func randomTensor(typ gguf.Type, rows, cols int, seed uint64) *gguf.Tensor {
	r := rand.New(rand.NewPCG(seed, uint64(typ)))
	t := &gguf.Tensor{Name: "random", Type: typ, Dims: []uint64{uint64(cols), uint64(rows)}}
	t.Data = make([]byte, rows*t.RowBytes())
	for i := range t.Data {
		t.Data[i] = byte(r.Uint32())
	}
	scale := func(b []byte) { // a float16 of either sign, 2^-9 to 2^-5
		binary.LittleEndian.PutUint16(b, uint16(r.Uint32()&0x83ff)|uint16(6+r.IntN(4))<<10)
	}
	for i := 0; i < len(t.Data); i += typ.BlockBytes() {
		b := t.Data[i:]
		for _, at := range scalesAt(typ) {
			scale(b[at:])
		}
		switch typ {
		case gguf.MXFP4:
			b[0] = byte(118 + r.IntN(12))
		case gguf.F32:
			binary.LittleEndian.PutUint32(b, math.Float32bits(float32(r.NormFloat64())))
		case gguf.BF16:
			binary.LittleEndian.PutUint16(b, uint16(math.Float32bits(float32(r.NormFloat64()))>>16))
		}
	}
	return t
}

// scalesAt is where a block has its float16 scale and minimum.
func scalesAt(typ gguf.Type) []int {
	switch typ {
	case gguf.F32, gguf.BF16, gguf.MXFP4:
		return nil
	case gguf.Q6_K:
		return []int{208}
	case gguf.Q3_K:
		return []int{108}
	case gguf.Q2_K:
		return []int{80, 82}
	case gguf.Q4_1, gguf.Q5_1, gguf.Q4_K, gguf.Q5_K:
		return []int{0, 2}
	}
	return []int{0}
}

func randomActs(n, cols int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 77))
	x := make([]float32, n*cols)
	for i := range x {
		x[i] = float32(r.NormFloat64())
		if r.IntN(400) == 0 {
			x[i] *= 50
		}
	}
	for i := range min(32, cols) { // a block of zeros
		x[i] = 0
	}
	return x
}

// dequantActs is what a row's int8 form stands for, computed apart from the kernels' layout.
func dequantActs(x []float32) []float64 {
	out := make([]float64, len(x))
	for b := 0; b < len(x); b += 32 {
		top := 0.0
		for _, v := range x[b : b+32] {
			top = math.Max(top, math.Abs(float64(v)))
		}
		d := float32(top) / 127
		if d == 0 {
			continue
		}
		for i, v := range x[b : b+32] {
			out[b+i] = float64(d) * math.RoundToEven(float64(v*(1/d)))
		}
	}
	return out
}

// The definition against float64 on the dequantized weights and the quantized activations.
func TestTwinAgainstFloat64(t *testing.T) {
	p := pool.New(1)
	for _, typ := range allTypes() {
		t.Run(typ.String(), func(t *testing.T) {
			const rows, cols, n = 37, 512, 3
			ts := randomTensor(typ, rows, cols, 1)
			m, err := packFused(generic(), p, ts)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			x := randomActs(n, cols, 2)
			out := make([]float32, n*rows)
			m.Mul(p, x, n, out, new(Scratch))
			w := make([]float32, cols)
			for r := range rows {
				if err := DequantRow(ts, r, w); err != nil {
					t.Fatal(err)
				}
				for i := range n {
					a := dequantActs(x[i*cols:][:cols])
					want, size := 0.0, 0.0
					for c := range cols {
						v := a[c]
						if formOf(typ).float() {
							v = float64(x[i*cols+c])
						}
						want += float64(w[c]) * v
						size += math.Abs(float64(w[c]) * v)
					}
					if got := float64(out[i*rows+r]); math.Abs(got-want) > 2e-6*size {
						t.Fatalf("row %d, activations %d: %g, float64 says %g", r, i, got, want)
					}
				}
			}
		})
	}
}

func bitsEqual(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) && !(got[i] != got[i] && want[i] != want[i]) {
			t.Fatalf("%s: output %d is %g (%08x), the twin's %g (%08x)", what, i, got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

// Every kernel set equals the twin for every type, over row counts that leave every remainder, all tile widths, threads.
func TestKernelsEqualTwin(t *testing.T) {
	counts := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}
	if testing.Short() { // under emulation
		counts = []int{1, 2, 3, 4, 9}
	}
	kernelsEqualTwin(t, kernelSets(), [][2]int{{1, 256}, {15, 512}, {16, 768}, {33, 256}, {64, 1280}, {130, 256}, {5, 32}, {48, 96}, {100, 160}},
		counts)
}

func kernelsEqualTwin(t *testing.T, sets []*kernelSet, shapes [][2]int, counts []int) {
	t.Helper()
	pools := []*pool.Pool{pool.New(1), pool.New(3)}
	for _, p := range pools {
		defer p.Close()
	}
	for _, typ := range allTypes() {
		t.Run(typ.String(), func(t *testing.T) {
			for _, shape := range shapes {
				rows, cols := shape[0], shape[1]
				if cols%typ.BlockSize() != 0 {
					continue
				}
				ts := randomTensor(typ, rows, cols, uint64(rows))
				ref, err := packFused(generic(), pools[0], ts)
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range counts {
					x := randomActs(n, cols, uint64(n))
					want := make([]float32, n*rows)
					for i := range n { // row by row: what a row gives must not depend on its company
						ref.Mul(pools[0], x[i*cols:], 1, want[i*rows:], new(Scratch))
					}
					for _, ks := range sets {
						m := *ref
						m.ks = ks
						got := make([]float32, n*rows+16)
						for i := range got {
							got[i] = 12345
						}
						m.Mul(pools[n%2], x, n, got, new(Scratch))
						bitsEqual(t, fmt.Sprintf("%s %dx%d n=%d", ks.name, rows, cols, n), got, want)
						for _, v := range got[n*rows:] {
							if v != 12345 {
								t.Fatalf("%s %dx%d n=%d wrote past the outputs", ks.name, rows, cols, n)
							}
						}
					}
				}
				ref.Close()
			}
		})
	}
}

// A row too long for one call is summed in several: no bit may differ. The twin in one call is the reference.
func TestLongRows(t *testing.T) {
	p := pool.New(1)
	for _, typ := range allTypes() {
		const rows, n = 70, 3
		cols := (2*maxCallBytes/formOf(typ).unitBytes() + 5) * formOf(typ).unit // for whole panels; for less of one or more rows other cuts
		m, err := packFused(generic(), p, randomTensor(typ, rows, cols, 1))
		if err != nil {
			t.Fatal(err)
		}
		x := randomActs(n, cols, 2)
		s := new(Scratch)
		s.Quantize(p, x, n, cols)
		acts := s.prepare(p, m.ks, m.form.float(), n)
		want := make([]float32, n*panelRows)
		for g := range panelGroups {
			c := &call{&m.data[m.form.scales(0, g)], &m.data[m.form.lines(0, g)], m.form.steps(cols), &acts.data[0],
				&want[g*groupRows], panelRows * 4, 0}
			m.ks.kernels[m.form.id][n].fn(c)
		}
		for _, ks := range kernelSets() {
			long := *m
			long.ks = ks
			got := make([]float32, n*rows)
			long.Mul(p, x, n, got, new(Scratch))
			for i := range n {
				bitsEqual(t, ks.name+" "+typ.String(), got[i*rows:][:panelRows], want[i*panelRows:][:panelRows])
			}
		}
		m.Close()
	}
}

func TestMulAllocatesNothing(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	for _, ks := range kernelSets() {
		m, err := packFused(ks, p, randomTensor(gguf.Q4_1, 640, 512, 1))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 13} {
			x, out, s := randomActs(n, 512, 1), make([]float32, n*640), new(Scratch)
			if a := testing.AllocsPerRun(20, func() { m.Mul(p, x, n, out, s) }); a >= 2 {
				t.Errorf("%s, %d rows: %v allocations", ks.name, n, a)
			}
		}
		m.Close()
	}
}

func TestQuantizeEqualsTwin(t *testing.T) {
	const cols = 32 * 40
	special := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 126.5, 127, -127, 0x1p-126, 0x1p-149, -0x1p-140, 3e38, -3.4e38, 1e-36,
		float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 0.5, 1.5, 2.5}
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 50 {
		x := make([]float32, cols)
		for i := range x {
			switch block := i / 32 % 4; {
			case block == 0:
				x[i] = float32(r.NormFloat64())
			case block == 1: // ties: the largest is 127, so that the scale is 1
				x[i] = float32(r.IntN(254)-127) + 0.5*float32(r.IntN(2))
				if i%32 == 7 || x[i] > 127 {
					x[i] = 127
				}
			case block == 2 && round%2 == 0:
				x[i] = special[r.IntN(len(special))]
			default:
				x[i] = math.Float32frombits(r.Uint32() & 0xbfffffff)
			}
		}
		for rows := 1; rows <= maxTile; rows++ {
			want := make([]byte, cols/32*actBlockBytes*rows)
			for v := range rows {
				quantizeTwin(x, want, rows, v)
			}
			for _, ks := range kernelSets() {
				got := make([]byte, len(want))
				for v := range rows {
					ks.quantize(x, got, rows, v)
				}
				for i := range want {
					if got[i] != want[i] {
						t.Fatalf("%s, %d rows, block %d, byte %d: %d, the twin has %d; values %v", ks.name, rows,
							i/(actBlockBytes*rows), i%(actBlockBytes*rows), got[i], want[i], x[i/(actBlockBytes*rows)*32:][:32])
					}
				}
			}
		}
	}
}

// A row that is not finite shows in its own outputs and in no other's.
func TestNotFiniteStaysVisible(t *testing.T) {
	p := pool.New(1)
	for _, typ := range allTypes() {
		ts := randomTensor(typ, 16, 256, 5)
		for _, ks := range kernelSets() {
			m, err := packFused(ks, p, ts)
			if err != nil {
				t.Fatal(err)
			}
			x := randomActs(3, 256, 6)
			x[256+40] = float32(math.NaN())
			out := make([]float32, 3*16)
			m.Mul(p, x, 3, out, new(Scratch))
			for i, v := range out {
				if bad := v != v; bad != (i/16 == 1) {
					t.Errorf("%s %s: output %d of row %d is %g", ks.name, typ, i%16, i/16, v)
				}
			}
			m.Close()
		}
	}
}

func TestFusedEqualsSeparate(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	for _, typ := range []gguf.Type{gguf.F32, gguf.Q8_0, gguf.Q4_K} {
		a, b, c := randomTensor(typ, 48, 256, 1), randomTensor(typ, 9, 256, 2), randomTensor(typ, 30, 256, 3)
		fused, err := PackFused(p, a, b, c)
		if err != nil {
			t.Fatal(err)
		}
		x := randomActs(2, 256, 9)
		got := make([]float32, 2*87)
		s := new(Scratch)
		fused.Mul(p, x, 2, got, s)
		off := 0
		for _, ts := range []*gguf.Tensor{a, b, c} {
			m, err := Pack(ts, p)
			if err != nil {
				t.Fatal(err)
			}
			want := make([]float32, 2*m.Rows())
			m.MulQ(p, s, want)
			for i := range 2 {
				bitsEqual(t, typ.String(), got[i*87+off:][:m.Rows()], want[i*m.Rows():][:m.Rows()])
			}
			off += m.Rows()
			m.Close()
		}
		fused.Close()
	}
}

func TestPackErrors(t *testing.T) {
	p := pool.New(1)
	inf := randomTensor(gguf.Q8_0, 20, 64, 1)
	inf.Data[3*68+34+1] = 0x7c
	exponent := randomTensor(gguf.MXFP4, 20, 64, 1)
	exponent.Data[7*34+17] = 255
	huge := randomTensor(gguf.MXFP4, 20, 64, 1)
	huge.Data[9*34] = 253 // 12 * 2^125
	nan := randomTensor(gguf.Q5_1, 20, 64, 1)
	nan.Data[3*48+24+3] = 0xff
	big := randomTensor(gguf.F32, 1, 4, 1)
	big.Data[7], big.Data[6] = 0x7f, 0x80
	cut := randomTensor(gguf.Q4_0, 2, 64, 1)
	cut.Data = cut.Data[1:]
	three := randomTensor(gguf.F16, 4, 8, 1)
	three.Dims = []uint64{8, 2, 2}
	for _, c := range []struct {
		ts   []*gguf.Tensor
		want string
	}{
		{nil, "no tensor"},
		{[]*gguf.Tensor{{Name: "x", Type: gguf.IQ1_S, Dims: []uint64{256, 1}}}, "type IQ1_S has no kernels here; known are F32, F16"},
		{[]*gguf.Tensor{{Name: "x", Type: gguf.TQ2_0, Dims: []uint64{256, 1}}}, "Q6_K, Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4"},
		{[]*gguf.Tensor{{Name: "x", Type: 99, Dims: []uint64{256, 1}}}, "type 99 has no kernels here; known are F32"},
		{[]*gguf.Tensor{{Name: "x", Type: gguf.Q4_K, Dims: []uint64{128, 1}}}, "not whole blocks of 256"},
		{[]*gguf.Tensor{{Name: "x", Type: gguf.F32, Dims: []uint64{1 << 21, 1}}}, "at most"},
		{[]*gguf.Tensor{three}, "3 dims"},
		{[]*gguf.Tensor{cut}, "need 72"},
		{[]*gguf.Tensor{inf}, "row 3 has a scale or value that is not finite, near column 32"},
		{[]*gguf.Tensor{nan}, "row 3 has a scale"},
		{[]*gguf.Tensor{exponent}, "row 7 has a scale or value that is not finite, near column 32"},
		{[]*gguf.Tensor{huge}, "row 9 has a scale or value that is not finite, near column 0"},
		{[]*gguf.Tensor{{Name: "x", Type: gguf.MXFP4, Dims: []uint64{48, 1}}}, "not whole blocks of 32 (MXFP4)"},
		{[]*gguf.Tensor{{Name: "x", Type: gguf.Q3_K, Dims: []uint64{320, 1}}}, "not whole blocks of 256 (Q3_K)"},
		{[]*gguf.Tensor{big}, "near column 1"},
		{[]*gguf.Tensor{randomTensor(gguf.Q8_0, 4, 64, 1), randomTensor(gguf.Q8_0, 4, 32, 1)}, "cannot be stacked"},
		{[]*gguf.Tensor{randomTensor(gguf.Q8_0, 4, 64, 1), randomTensor(gguf.Q4_0, 4, 64, 1)}, "cannot be stacked"},
	} {
		if _, err := PackFused(p, c.ts...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

// Every scale and minimum of every type is checked, wherever it lies in its block.
func TestScalesThatAreNotFinite(t *testing.T) {
	p := pool.New(1)
	for _, typ := range allTypes() {
		for _, at := range scalesAt(typ) {
			for _, bits := range []uint16{0x7c00, 0xfc00, 0x7e01, 0xffff} { // infinities and NaNs
				ts := randomTensor(typ, 70, 512, 1)
				block := 66*(512/typ.BlockSize()) + 512/typ.BlockSize() - 1 // the last of row 66
				binary.LittleEndian.PutUint16(ts.Data[block*typ.BlockBytes()+at:], bits)
				want := fmt.Sprintf("row 66 has a scale or value that is not finite, near column %d", 512-typ.BlockSize())
				if _, err := Pack(ts, p); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s, %#04x at byte %d of a block: error %v, want %q", typ, bits, at, err, want)
				}
			}
		}
	}
}

func TestChoose(t *testing.T) {
	if ks, err := choose("generic"); err != nil || ks.name != "generic" {
		t.Errorf("generic: %v", err)
	}
	if _, err := choose("neon512"); err == nil || !strings.Contains(err.Error(), `MESHNET_CPU="neon512"`) {
		t.Errorf("unknown set: %v", err)
	}
	if ks, err := choose(""); err != nil || ks != nil && ks.name != kernelSets()[0].name {
		t.Errorf("default: %v", err)
	}
}

// fma32 against a product and a sum in exact arithmetic.
func TestFMA32(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	value := func() float32 {
		switch r.IntN(4) {
		case 0:
			return math.Float32frombits(r.Uint32())
		case 1: // few bits: ties are likely
			return float32(r.IntN(1<<12)) * float32(math.Exp2(float64(r.IntN(60)-30)))
		case 2:
			return float32(r.NormFloat64())
		}
		return math.Float32frombits(r.Uint32() & 0x80ffffff) // tiny
	}
	for range 300000 {
		a, b, c := value(), value(), value()
		got, want := fma32(a, b, c), exactFMA(a, b, c)
		if math.Float32bits(got) != math.Float32bits(want) && !(got != got && want != want) {
			t.Fatalf("fma(%g, %g, %g) = %g, want %g", a, b, c, got, want)
		}
	}
}
