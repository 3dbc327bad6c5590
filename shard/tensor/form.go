package tensor

import (
	"strings"

	"github.com/meshnet/meshnet/shard/gguf"
)

// groupRows is how many rows are packed together: a vector lane is a row, so no sum ever crosses lanes.
const groupRows = 16

// blockValues is the activations' block, and the weights' block or sub-block.
const blockValues = 32

// form is how a type lies in memory once it is packed.
//
// Rows come in groups of 16, row r in lane r%16. A group is first its scales, padded to 64 bytes, then its lines of 64 bytes.
//
//	scales: for each unit (a block of the file: 32 values, or 256 with 8 sub-blocks), lane by lane
//	    16 float16 d; if mins: 16 float16 m (of a super-block: dmin)
//	    super-block: 8x16 bytes scale of each sub-block; if mins: 8x16 bytes minimum;
//	    halves: 16x16 signed bytes, a scale for each 16 values instead
//	lines: for each block of 32 values; dword r of a line belongs to row r
//	    8 bits: line k, byte b: value 4k+b, top bit flipped (0..255)
//	    4, 5, 6 bits: line k of 4, byte b: low nibble of value 4k+b, and above it low nibble of value 16+4k+b
//	    5 bits: then a line: byte b, bit k: bit 4 of value 4k+b
//	    6 bits: then two lines: byte b, bits 2k, 2k+1 of line h: bits 4, 5 of value 16h+4k+b
//	    float: for each value a line of 16 float32, or half a line of 16 float16 or bfloat16; no scales
type form struct {
	id         formID
	bits       int   // of a quantized weight; 0 for floats
	zero       int32 // the weight that means 0
	mins       bool  // a minimum beside each scale
	super      bool  // units of 256 with 8 sub-blocks
	halves     bool  // scales for 16 values (Q6_K)
	unit       int   // values of a unit
	scaleBytes int   // of a unit of 16 rows
	lineBytes  int   // of a block of 16 rows
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
	formF32
	formF16
	formBF16
	numForms
)

var forms = [numForms]form{
	formQ8:   {id: formQ8, bits: 8, zero: 128, unit: 32, scaleBytes: 32, lineBytes: 8 * 64},
	formQ4z:  {id: formQ4z, bits: 4, zero: 8, unit: 32, scaleBytes: 32, lineBytes: 4 * 64},
	formQ4m:  {id: formQ4m, bits: 4, mins: true, unit: 32, scaleBytes: 64, lineBytes: 4 * 64},
	formQ5z:  {id: formQ5z, bits: 5, zero: 16, unit: 32, scaleBytes: 32, lineBytes: 5 * 64},
	formQ5m:  {id: formQ5m, bits: 5, mins: true, unit: 32, scaleBytes: 64, lineBytes: 5 * 64},
	formQ4k:  {id: formQ4k, bits: 4, mins: true, super: true, unit: 256, scaleBytes: 64 + 256, lineBytes: 4 * 64},
	formQ5k:  {id: formQ5k, bits: 5, mins: true, super: true, unit: 256, scaleBytes: 64 + 256, lineBytes: 5 * 64},
	formQ6k:  {id: formQ6k, bits: 6, zero: 32, super: true, halves: true, unit: 256, scaleBytes: 32 + 256, lineBytes: 6 * 64},
	formF32:  {id: formF32, unit: 1, lineBytes: 32 * 64},
	formF16:  {id: formF16, unit: 1, lineBytes: 32 * 32},
	formBF16: {id: formBF16, unit: 1, lineBytes: 32 * 32},
}

// formTypes are the types that have a form, in the order in which people are told of them.
var formTypes = []struct {
	typ  gguf.Type
	form formID
}{
	{gguf.F32, formF32}, {gguf.F16, formF16}, {gguf.BF16, formBF16}, {gguf.Q8_0, formQ8}, {gguf.Q4_0, formQ4z}, {gguf.Q4_1, formQ4m},
	{gguf.Q5_0, formQ5z}, {gguf.Q5_1, formQ5m}, {gguf.Q4_K, formQ4k}, {gguf.Q5_K, formQ5k}, {gguf.Q6_K, formQ6k},
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

// layout is the size of a group of rows of cols values, and where in it the lines begin.
func (f *form) layout(cols int) (group, lines int) {
	if f.float() {
		return (cols*f.lineBytes/blockValues + 63) &^ 63, 0
	}
	lines = (cols/f.unit*f.scaleBytes + 63) &^ 63
	return lines + cols/blockValues*f.lineBytes, lines
}

// steps is how many iterations a kernel makes over a row: units, or single values of a float matrix.
func (f *form) steps(cols int) int { return cols / f.unit }
