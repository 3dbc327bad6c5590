// Command gen writes the kernels of package tensor: for amd64 kernels_avx512_amd64.s, kernels_avxvnni_amd64.s,
// kernels_avx2_amd64.s, quantize_amd64.s, kernels_amx_amd64.s, kernels_amd64.go, kernels_amx_amd64.go and
// probe/tiles_amd64.s; for arm64 kernels_neon_arm64.s and kernels_arm64.go. Run it in the package's directory (go generate).
//
// It is a plain text generator and knows only what the kernels need. Every kernel equals the twin in twin.go bit by bit;
// the layout of what it reads is in form.go (weights) and acts.go (activations).
package main

import (
	"fmt"
	"go/format"
	"os"
	"strings"
)

// form mirrors tensor.form: what a kernel must know of a packed type.
type form struct {
	name       string // of the kernels
	id         string // tensor's constant
	bits       int
	zeroShift  int // the zero is 1<<zeroShift; 0: none
	mins       bool
	super      bool
	halves     bool
	bfloat     bool
	table      *[16]int8
	scaleBytes int
	lineBytes  int
}

var forms = []form{
	{name: "q8", id: "formQ8", bits: 8, zeroShift: 7, scaleBytes: 32, lineBytes: 512},
	{name: "q4z", id: "formQ4z", bits: 4, zeroShift: 3, scaleBytes: 32, lineBytes: 256},
	{name: "q4m", id: "formQ4m", bits: 4, mins: true, scaleBytes: 64, lineBytes: 256},
	{name: "q5z", id: "formQ5z", bits: 5, zeroShift: 4, scaleBytes: 32, lineBytes: 320},
	{name: "q5m", id: "formQ5m", bits: 5, mins: true, scaleBytes: 64, lineBytes: 320},
	{name: "q4k", id: "formQ4k", bits: 4, mins: true, super: true, scaleBytes: 320, lineBytes: 256},
	{name: "q5k", id: "formQ5k", bits: 5, mins: true, super: true, scaleBytes: 320, lineBytes: 320},
	{name: "q6k", id: "formQ6k", bits: 6, zeroShift: 5, super: true, halves: true, scaleBytes: 288, lineBytes: 384},
	{name: "q2k", id: "formQ2k", bits: 2, mins: true, super: true, halves: true, scaleBytes: 320, lineBytes: 128},
	{name: "q3k", id: "formQ3k", bits: 3, zeroShift: 2, super: true, halves: true, scaleBytes: 288, lineBytes: 192},
	{name: "iq4nl", id: "formIQ4nl", bits: 4, zeroShift: 7, table: &tableIQ4, scaleBytes: 32, lineBytes: 256},
	{name: "iq4xs", id: "formIQ4xs", bits: 4, zeroShift: 7, table: &tableIQ4, super: true, scaleBytes: 160, lineBytes: 256},
	{name: "mxfp4", id: "formMXFP4", bits: 4, zeroShift: 4, table: &tableMXFP4, bfloat: true, scaleBytes: 32, lineBytes: 256},
	{name: "f32", id: "formF32", lineBytes: 64},
	{name: "f16", id: "formF16", lineBytes: 32},
	{name: "bf16", id: "formBF16", lineBytes: 32},
}

// The tables of tensor's forms.
var (
	tableIQ4   = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	tableMXFP4 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
)

func (f *form) float() bool { return f.bits == 0 }

// part is some bits of a quarter's weights: bits of them, from bit from of each byte of a line.
type part struct{ line, from, bits int }

// parts are where the weights of quarter k4 (0..7) of a block are, the lowest bits first; they mirror tensor's form.parts.
func (f *form) parts(k4 int) []part {
	switch f.bits {
	case 2:
		return []part{{k4 / 4, k4 % 4 * 2, 2}}
	case 3:
		return []part{{k4 / 4, k4 % 4 * 2, 2}, {2, k4, 1}}
	case 4:
		return []part{{k4 % 4, k4 / 4 * 4, 4}}
	case 5:
		switch k4 {
		case 5:
			return []part{{0, 0, 3}, {1, 0, 2}}
		case 6:
			return []part{{2, 0, 3}, {3, 0, 2}}
		case 7:
			return []part{{4, 0, 3}, {1, 2, 1}, {3, 2, 1}}
		}
		return []part{{k4, 3, 5}}
	case 6:
		switch k4 {
		case 6:
			return []part{{0, 0, 2}, {1, 0, 2}, {2, 0, 2}}
		case 7:
			return []part{{3, 0, 2}, {4, 0, 2}, {5, 0, 2}}
		}
		return []part{{k4, 2, 6}}
	}
	return []part{{k4, 0, 8}}
}

// bytes of a mask of bits in each byte of a dword.
func byteMask(bits int) int { return (1<<bits - 1) * 0x01010101 }

// masks are the numbers of low bits of each byte that taking weights apart needs masks of.
func (f *form) masks() (bits []int) {
	need := map[int]bool{}
	for k4 := range 8 {
		n := 0
		for _, p := range f.parts(k4) {
			n += p.bits
			need[n] = true
		}
	}
	for n := range 8 { // of 8 bits there is nothing to mask
		if need[n] {
			bits = append(bits, n)
		}
	}
	return bits
}

// subScales is where in a unit's scales those of its sub-blocks begin.
func (f *form) subScales() int {
	if f.mins {
		return 64
	}
	return 32
}

// panelGroups is how many groups of 16 rows lie beside each other in memory.
const panelGroups = 4

func (f *form) blocks() int {
	if f.super {
		return 8
	}
	return 1
}

// unitBytes is the size of a unit of a panel.
func (f *form) unitBytes() int { return panelGroups * (f.scaleBytes + f.blocks()*f.lineBytes) }

// Offsets of tensor.call; a test there checks them.
const (
	callScales = 0
	callLines  = 8
	callSteps  = 16
	callA      = 24
	callOut    = 32
	callOutRow = 40
	callResume = 48
)

// superMins is where in a unit's scales the minimums of sub-blocks begin, unless they share bytes with the scales.
const superMins = 192

// source is an assembly file in the making.
type source struct{ strings.Builder }

func newSource() *source {
	s := &source{}
	s.WriteString("// Code generated by gen; DO NOT EDIT.\n\n#include \"textflag.h\"\n")
	return s
}

// p writes one instruction.
func (s *source) p(format string, args ...any) { fmt.Fprintf(s, "\t"+format+"\n", args...) }

func (s *source) label(name string) { fmt.Fprintf(s, "%s:\n", name) }

// text begins a kernel func name(c *call).
func (s *source) text(name string) {
	fmt.Fprintf(s, "\n// func %s(c *call)\nTEXT ·%s(SB), NOSPLIT, $0-8\n\tMOVQ c+0(FP), DX\n", name, name)
}

// constant writes a read-only constant of 32 bytes.
func (s *source) constant(name string, v uint64) {
	for i := range 4 {
		fmt.Fprintf(s, "DATA %s<>+%d(SB)/8, $%#016x\n", name, i*8, v)
	}
	fmt.Fprintf(s, "GLOBL %s<>(SB), RODATA|NOPTR, $32\n", name)
}

// lookup writes a read-only constant of a form's table, twice, with zero added to each value.
func (s *source) lookup(f *form, zero int) {
	var w [2]uint64
	for i, v := range f.table {
		w[i/8] |= uint64(uint8(int(v)+zero)) << (i % 8 * 8)
	}
	for i := range 4 {
		fmt.Fprintf(s, "DATA %s<>+%d(SB)/8, $%#016x\n", f.name, i*8, w[i%2])
	}
	fmt.Fprintf(s, "GLOBL %s<>(SB), RODATA|NOPTR, $32\n", f.name)
}

// shape is one kernel: groups of 16 rows times a tile of activation rows.
type shape struct{ groups, tile int }

// kernelName is what the stub and the table call a kernel.
func kernelName(f *form, set string, sh shape) string {
	return fmt.Sprintf("%s%sG%dT%d", f.name, set, sh.groups, sh.tile)
}

// prologue loads the scales' pointer into SI, the lines' into R8, the activations' into DI and the step count into CX.
func (s *source) prologue() {
	s.p("MOVQ %d(DX), SI", callScales)
	s.p("MOVQ %d(DX), R8", callLines)
	s.p("MOVQ %d(DX), CX", callSteps)
	s.p("MOVQ %d(DX), DI", callA)
}

// blocks writes the loop over a row's blocks around body. Inside, (SI) are the unit's scales, (R13) those of the sub-block
// (less their offset), (R8) the block's lines and (DI) its activations. unit comes before the blocks of each unit.
func (s *source) blocks(f *form, tile int, unit, body func()) {
	s.label("loop")
	unit()
	if f.super {
		s.p("MOVQ SI, R13")
		s.p("MOVL $8, BX")
		s.label("sub")
	}
	body()
	s.p("ADDQ $%d, DI", 48*tile)
	if f.super {
		s.p("ADDQ $%d, R8", panelGroups*f.lineBytes)
		s.p("ADDQ $%d, R13", map[bool]int{false: 16, true: 32}[f.halves])
		s.p("DECQ BX")
		s.p("JNZ sub")
		s.p("ADDQ $%d, R8", panelGroups*f.scaleBytes)
	} else {
		s.p("ADDQ $%d, R8", f.unitBytes())
	}
	s.p("ADDQ $%d, SI", f.unitBytes())
	s.p("DECQ CX")
	s.p("JNZ loop")
}

// sums is where a kernel's outputs are while it runs: reg(g, t, piece), pieces of bytes each.
type sums struct {
	sh            shape
	pieces, bytes int
	reg           func(g, t, piece int) string
}

// each writes instr for every register of the sums, with its place in the output (AX).
func (s *source) each(x sums, instr func(reg, at string)) {
	s.p("MOVQ %d(DX), AX", callOut)
	for t := range x.sh.tile {
		for g := range x.sh.groups {
			for piece := range x.pieces {
				instr(x.reg(g, t, piece), fmt.Sprintf("%d(AX)", g*64+piece*x.bytes))
			}
		}
		if t < x.sh.tile-1 {
			s.p("ADDQ %d(DX), AX", callOutRow)
		}
	}
}

// begin sets the sums to zero, or to what the output holds.
func (s *source) begin(x sums, xor string) {
	s.each(x, func(reg, _ string) { s.p("%s %s, %s, %s", xor, reg, reg, reg) })
	s.p("CMPQ %d(DX), $0", callResume)
	s.p("JEQ  start")
	s.each(x, func(reg, at string) { s.p("VMOVUPS %s, %s", at, reg) })
	s.label("start")
}

// end stores the sums and returns.
func (s *source) end(x sums) {
	s.each(x, func(reg, at string) { s.p("VMOVUPS %s, %s", reg, at) })
	s.p("VZEROUPPER")
	s.p("RET")
}

// registers hands out vector registers and panics when there are no more.
type registers struct {
	prefix    string
	next, max int
	name      string
}

func (r *registers) one() string {
	if r.next == r.max {
		panic(r.name + ": out of registers")
	}
	r.next++
	return fmt.Sprintf("%s%d", r.prefix, r.next-1)
}

func (r *registers) some(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = r.one()
	}
	return out
}

func main() {
	for file, text := range outputs() {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "gen:", err)
			os.Exit(1)
		}
	}
}

// outputs is the text of every file, by name.
func outputs() map[string]string {
	table, stubs := &strings.Builder{}, &strings.Builder{}
	out := map[string]string{
		"kernels_avx512_amd64.s":  avx512(stubs, table),
		"kernels_avx2_amd64.s":    avx2(stubs, table),
		"kernels_avxvnni_amd64.s": avxVNNI(stubs, table),
		"quantize_amd64.s":        quantizers(stubs),
	}
	out["kernels_amd64.go"] = declarations(stubs, table)
	table, stubs = &strings.Builder{}, &strings.Builder{}
	out["kernels_amx_amd64.s"] = amx(stubs, table)
	out["kernels_amx_amd64.go"] = declarations(stubs, table)
	out["probe/tiles_amd64.s"] = peak()
	table, stubs = &strings.Builder{}, &strings.Builder{}
	out["kernels_neon_arm64.s"] = neonKernels(stubs, table)
	out["kernels_arm64.go"] = declarations(stubs, table)
	return out
}

// declarations is the Go file of an architecture's kernels.
func declarations(stubs, table *strings.Builder) string {
	text, err := format.Source([]byte("// Code generated by gen; DO NOT EDIT.\n\npackage tensor\n" + stubs.String() + table.String()))
	if err != nil {
		panic(err)
	}
	return string(text)
}

// declare adds a kernel's stub, and its line in the set's table.
func declare(stubs, table *strings.Builder, f *form, set string, sh shape) {
	name := kernelName(f, set, sh)
	fmt.Fprintf(stubs, "\n//go:noescape\nfunc %s(c *call)\n", name)
	fmt.Fprintf(table, "\tks.kernels[%s][%d] = kernel{%d, %s}\n", f.id, sh.tile, sh.groups, name)
}
