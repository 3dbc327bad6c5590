package tensor

import (
	"strings"

	"github.com/meshnet/meshnet/shard/gguf"
)

// Rows are packed in groups of 16, a vector lane each, so that no sum ever crosses lanes; four groups are a panel.
const (
	groupRows   = 16
	panelGroups = 4
	panelRows   = groupRows * panelGroups
)

// blockValues is the activations' block, and the weights' block or sub-block.
const blockValues = 32

// form is how a type lies in memory once it is packed.
//
// A panel of 64 rows, row r in lane r%16 of group r/16%4, is its units one after another: a unit is a block of the file (32
// values, or 256 with 8 sub-blocks, or one float). A unit is the scales of its four groups, then for each block of 32 the lines
// of its four groups. So a decode step reads a matrix from front to back.
//
//	scales of a group, lane by lane
//	    16 float16 (MXFP4: bfloat16) d; if mins: 16 float16 m (of a super-block: dmin)
//	    super-block: 8x16 signed bytes scale of each sub-block; if mins: 8x16 bytes minimum;
//	    halves: 16x16 signed bytes, a scale for each 16 values instead; if mins: its low nibble the scale, its high one the minimum
//	lines of a group: for each block of 32 values; dword r of a line of 64 bytes belongs to row r
//	    8 bits: line k, byte b: value 4k+b, top bit flipped (0..255)
//	    4 bits: line k of 4, byte b: value 4k+b, and above it value 16+4k+b
//	    2, 3 bits: line h of 2, byte b, bits 2k, 2k+1: low two bits of value 16h+4k+b
//	    3 bits: then a line: byte b, bit k: bit 2 of value 4k+b
//	    5 bits: line k of 5, byte b: value 4k+b in the upper five bits, to be multiplied where it is. The lower three bits of the five
//	    lines hold the values of quarters 5 to 7 (parts says how): fewest operations take them out
//	    6 bits: line k of 6 likewise: value 4k+b in the upper six bits, quarters 6 and 7 in pairs of bits below
//	    float: for each value a line of 16 float32, or half a line of 16 float16 or bfloat16; no scales
type form struct {
	id         formID
	bits       int       // of a quantized weight; 0 for floats
	zero       int32     // the weight that means 0
	mins       bool      // a minimum beside each scale
	super      bool      // units of 256 with 8 sub-blocks
	halves     bool      // scales for 16 values
	bfloat     bool      // d is a bfloat16
	table      *[16]int8 // of 4 bits: the values that they stand for
	unit       int       // values of a unit
	scaleBytes int       // of a unit, one group
	lineBytes  int       // of a block (or one float), one group
}

type formID int

const (
	formQ8 formID = iota
	formQ4z
	formQ4m
	formQ5z
	formQ5m
	formQ4k
	formQ5k
	formQ6k
	formQ2k
	formQ3k
	formIQ4nl
	formIQ4xs
	formMXFP4
	formF32
	formF16
	formBF16
	numForms
)

var forms = [numForms]form{
	formQ8:    {id: formQ8, bits: 8, zero: 128, unit: 32, scaleBytes: 32, lineBytes: 8 * 64},
	formQ4z:   {id: formQ4z, bits: 4, zero: 8, unit: 32, scaleBytes: 32, lineBytes: 4 * 64},
	formQ4m:   {id: formQ4m, bits: 4, mins: true, unit: 32, scaleBytes: 64, lineBytes: 4 * 64},
	formQ5z:   {id: formQ5z, bits: 5, zero: 16, unit: 32, scaleBytes: 32, lineBytes: 5 * 64},
	formQ5m:   {id: formQ5m, bits: 5, mins: true, unit: 32, scaleBytes: 64, lineBytes: 5 * 64},
	formQ4k:   {id: formQ4k, bits: 4, mins: true, super: true, unit: 256, scaleBytes: 64 + 256, lineBytes: 4 * 64},
	formQ5k:   {id: formQ5k, bits: 5, mins: true, super: true, unit: 256, scaleBytes: 64 + 256, lineBytes: 5 * 64},
	formQ6k:   {id: formQ6k, bits: 6, zero: 32, super: true, halves: true, unit: 256, scaleBytes: 32 + 256, lineBytes: 6 * 64},
	formQ2k:   {id: formQ2k, bits: 2, mins: true, super: true, halves: true, unit: 256, scaleBytes: 64 + 256, lineBytes: 2 * 64},
	formQ3k:   {id: formQ3k, bits: 3, zero: 4, super: true, halves: true, unit: 256, scaleBytes: 32 + 256, lineBytes: 3 * 64},
	formIQ4nl: {id: formIQ4nl, bits: 4, table: &tableIQ4, unit: 32, scaleBytes: 32, lineBytes: 4 * 64},
	formIQ4xs: {id: formIQ4xs, bits: 4, table: &tableIQ4, super: true, unit: 256, scaleBytes: 32 + 128, lineBytes: 4 * 64},
	formMXFP4: {id: formMXFP4, bits: 4, table: &tableMXFP4, bfloat: true, unit: 32, scaleBytes: 32, lineBytes: 4 * 64},
	formF32:   {id: formF32, unit: 1, lineBytes: 64},
	formF16:   {id: formF16, unit: 1, lineBytes: 32},
	formBF16:  {id: formBF16, unit: 1, lineBytes: 32},
}

// What the 4 bits of IQ4_NL and IQ4_XS stand for, and those of MXFP4 (twice an E2M1 float).
var (
	tableIQ4   = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	tableMXFP4 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
)

// formTypes are the types that have a form, in the order in which people are told of them.
var formTypes = []struct {
	typ  gguf.Type
	form formID
}{
	{gguf.F32, formF32}, {gguf.F16, formF16}, {gguf.BF16, formBF16}, {gguf.Q8_0, formQ8}, {gguf.Q4_0, formQ4z}, {gguf.Q4_1, formQ4m},
	{gguf.Q5_0, formQ5z}, {gguf.Q5_1, formQ5m}, {gguf.Q4_K, formQ4k}, {gguf.Q5_K, formQ5k}, {gguf.Q6_K, formQ6k},
	{gguf.Q2_K, formQ2k}, {gguf.Q3_K, formQ3k}, {gguf.IQ4_NL, formIQ4nl}, {gguf.IQ4_XS, formIQ4xs}, {gguf.MXFP4, formMXFP4},
}

// formOf is the form of a type, nil when it has none.
func formOf(t gguf.Type) *form {
	for _, ft := range formTypes {
		if ft.typ == t {
			return &forms[ft.form]
		}
	}
	return nil
}

// Supported says whether matrices of a type can be packed, and rows of it dequantized.
func Supported(t gguf.Type) bool { return formOf(t) != nil }

func knownTypes() string {
	names := make([]string, len(formTypes))
	for i, ft := range formTypes {
		names[i] = ft.typ.String()
	}
	return strings.Join(names, ", ")
}

func (f *form) float() bool { return f.bits == 0 }

// blocks is how many times a unit has lines.
func (f *form) blocks() int { return max(1, f.unit/blockValues) }

// unitBytes is the size of a unit of a panel.
func (f *form) unitBytes() int { return panelGroups * (f.scaleBytes + f.blocks()*f.lineBytes) }

// panelBytes is the size of a panel of rows of cols values.
func (f *form) panelBytes(cols int) int { return f.steps(cols) * f.unitBytes() }

// steps is how many units a row has.
func (f *form) steps(cols int) int { return cols / f.unit }

// subScales is where in the scales of a unit those of its sub-blocks begin.
func (f *form) subScales() int {
	if f.mins {
		return 64
	}
	return 32
}

// scales is where in a panel the scales of unit u of group g begin; lines where the lines of block b do (floats: of value b).
func (f *form) scales(u, g int) int { return u*f.unitBytes() + g*f.scaleBytes }

func (f *form) lines(b, g int) int {
	return b/f.blocks()*f.unitBytes() + panelGroups*f.scaleBytes + (b%f.blocks()*panelGroups+g)*f.lineBytes
}

// part is some bits of a quarter's values: bits of them, from bit from of each byte of a line.
type part struct{ line, from, bits int }

// mask is as many bits in each byte of a dword.
func (p part) mask() uint32 { return uint32(1<<p.bits-1) * 0x01010101 }

// Quarter k of a block are values 4k to 4k+3: a dword of each row. Its parts, the lowest bits first:
func (f *form) parts(k int) []part { return parts[f.bits][k] }

var parts = [9][8][]part{
	2: {{{0, 0, 2}}, {{0, 2, 2}}, {{0, 4, 2}}, {{0, 6, 2}}, {{1, 0, 2}}, {{1, 2, 2}}, {{1, 4, 2}}, {{1, 6, 2}}},
	3: {{{0, 0, 2}, {2, 0, 1}}, {{0, 2, 2}, {2, 1, 1}}, {{0, 4, 2}, {2, 2, 1}}, {{0, 6, 2}, {2, 3, 1}},
		{{1, 0, 2}, {2, 4, 1}}, {{1, 2, 2}, {2, 5, 1}}, {{1, 4, 2}, {2, 6, 1}}, {{1, 6, 2}, {2, 7, 1}}},
	4: {{{0, 0, 4}}, {{1, 0, 4}}, {{2, 0, 4}}, {{3, 0, 4}}, {{0, 4, 4}}, {{1, 4, 4}}, {{2, 4, 4}}, {{3, 4, 4}}},
	5: {{{0, 3, 5}}, {{1, 3, 5}}, {{2, 3, 5}}, {{3, 3, 5}}, {{4, 3, 5}},
		{{0, 0, 3}, {1, 0, 2}}, {{2, 0, 3}, {3, 0, 2}}, {{4, 0, 3}, {1, 2, 1}, {3, 2, 1}}},
	6: {{{0, 2, 6}}, {{1, 2, 6}}, {{2, 2, 6}}, {{3, 2, 6}}, {{4, 2, 6}}, {{5, 2, 6}},
		{{0, 0, 2}, {1, 0, 2}, {2, 0, 2}}, {{3, 0, 2}, {4, 0, 2}, {5, 0, 2}}},
	8: {{{0, 0, 8}}, {{1, 0, 8}}, {{2, 0, 8}}, {{3, 0, 8}}, {{4, 0, 8}}, {{5, 0, 8}}, {{6, 0, 8}}, {{7, 0, 8}}},
}
