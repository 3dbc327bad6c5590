package main

import (
	"fmt"
	"strings"
)

// quantizers writes the activation quantizers, which equal tensor.quantizeTwin.
func quantizers(stubs *strings.Builder) string {
	s := newSource()
	s.constant("magnitude", 0x7fffffff7fffffff)
	s.constant("bytes1", 0x0101010101010101)
	s.constant("words1", 0x0001000100010001)
	for i, v := range []uint64{0x0000000400000000, 0x0000000500000001, 0x0000000600000002, 0x0000000700000003} {
		fmt.Fprintf(s, "DATA unlace<>+%d(SB)/8, $%#016x\n", 8*i, v)
	}
	fmt.Fprintf(s, "GLOBL unlace<>(SB), RODATA|NOPTR, $32\n")
	for _, set := range []string{"AVX512", "AVX2"} {
		q := &quantizer{s, set == "AVX512"}
		q.write("quantize" + set)
		fmt.Fprintf(stubs, "\n//go:noescape\nfunc quantize%s(x *float32, blocks int, dst *byte, stride int)\n", set)
	}
	return s.String()
}

type quantizer struct {
	*source
	wide bool
}

// write writes the function: blocks of 32 values at x, fields stride bytes apart at dst.
func (q *quantizer) write(name string) {
	fmt.Fprintf(q, "\n// func %s(x *float32, blocks int, dst *byte, stride int)\nTEXT ·%s(SB), NOSPLIT, $0-32\n", name, name)
	q.p("MOVQ x+0(FP), SI")
	q.p("MOVQ blocks+8(FP), CX")
	q.p("MOVQ dst+16(FP), DI")
	q.p("MOVQ stride+24(FP), R8")
	q.p("LEAQ (R8)(R8*2), R9")
	q.p("LEAQ (R9)(R9*2), R12")
	q.p("ADDQ R9, R12") // 12 strides: a block
	q.p("MOVL $0x42fe0000, AX // 127")
	q.p("VMOVD AX, X14")
	q.p("MOVL $0x3f800000, AX // 1")
	q.p("VMOVD AX, X15")
	q.label("loop")
	if q.wide {
		q.topWide()
	} else {
		q.top()
	}
	for _, by := range []string{"$0x4e", "$0xb1"} {
		q.p("VPSHUFD %s, X4, X5", by)
		q.p("VPMAXUD X5, X4, X4")
	}
	q.p("VMOVD X4, AX")
	q.p("CMPL AX, $0x7f800000")
	q.p("JCC notfinite")
	q.p("VDIVSS X14, X4, X6") // d
	q.p("VMOVD X6, BX")
	q.p("CMPL BX, $0x00800000")
	q.p("JCS zero")
	q.p("VDIVSS X6, X15, X5")
	if q.wide {
		q.packWide()
	} else {
		q.pack()
	}
	q.p("VPHADDD Y8, Y8, Y8")
	q.p("VPHADDD Y8, Y8, Y8")
	q.p("VMOVD X8, AX") // sum of the first 16
	q.p("VEXTRACTI128 $1, Y8, X8")
	q.p("VMOVD X8, R10")
	q.p("ADDL AX, R10")
	q.p("VXORPS X9, X9, X9")
	q.p("VCVTSI2SSL R10, X9, X9")
	q.p("VMULSS X6, X9, X9")
	q.p("NEGL AX")
	q.p("NEGL R10")
	q.p("VMOVSS X6, (DI)")
	q.p("MOVL R10, (DI)(R8*1)")
	q.p("MOVL AX, (DI)(R8*2)")
	q.p("VMOVSS X9, (DI)(R9*1)")
	q.p("VEXTRACTI128 $1, Y7, X8")
	q.label("values")
	q.p("LEAQ (DI)(R8*4), R11")
	for i, x := range []string{"X7", "X8"} {
		q.p("VMOVD %s, (R11)", x)
		q.p("VPEXTRD $1, %s, (R11)(R8*1)", x)
		q.p("VPEXTRD $2, %s, (R11)(R8*2)", x)
		q.p("VPEXTRD $3, %s, (R11)(R9*1)", x)
		if i == 0 {
			q.p("LEAQ (R11)(R8*4), R11")
		}
	}
	q.p("ADDQ $128, SI")
	q.p("ADDQ R12, DI")
	q.p("DECQ CX")
	q.p("JNZ loop")
	q.p("VZEROUPPER")
	q.p("RET")
	// The rare blocks: no values at all.
	q.label("notfinite")
	q.p("MOVL $0x7fc00000, AX")
	q.p("JMP empty")
	q.label("zero")
	q.p("XORL AX, AX")
	q.label("empty")
	q.p("MOVL AX, (DI)")
	q.p("MOVL $0, (DI)(R8*1)")
	q.p("MOVL $0, (DI)(R8*2)")
	q.p("MOVL AX, (DI)(R9*1)") // NaN * 0, or 0 * 0
	q.p("VPXOR X7, X7, X7")
	q.p("VPXOR X8, X8, X8")
	q.p("JMP values")
}

// topWide leaves the largest magnitude of each quarter in X4.
func (q *quantizer) topWide() {
	q.p("VMOVDQU64 (SI), Z0")
	q.p("VMOVDQU64 64(SI), Z1")
	q.p("VPBROADCASTD magnitude<>(SB), Z5")
	q.p("VPANDD Z5, Z0, Z4")
	q.p("VPANDD Z5, Z1, Z5")
	q.p("VPMAXUD Z5, Z4, Z4")
	q.p("VEXTRACTI64X4 $1, Z4, Y5")
	q.p("VPMAXUD Y5, Y4, Y4")
	q.p("VEXTRACTI128 $1, Y4, X5")
	q.p("VPMAXUD X5, X4, X4")
}

func (q *quantizer) top() {
	for i := range 4 {
		q.p("VMOVDQU %d(SI), Y%d", 32*i, i)
	}
	q.p("VMOVDQU magnitude<>(SB), Y5")
	q.p("VPAND Y5, Y0, Y4")
	for i := 1; i < 4; i++ {
		q.p("VPAND Y5, Y%d, Y6", i)
		q.p("VPMAXUD Y6, Y4, Y4")
	}
	q.p("VEXTRACTI128 $1, Y4, X5")
	q.p("VPMAXUD X5, X4, X4")
}

// packWide leaves the 32 int8 in Y7 and the sums of each four in Y8.
func (q *quantizer) packWide() {
	q.p("VBROADCASTSS X5, Z5")
	for i := range 2 {
		q.p("VMULPS Z5, Z%d, Z%d", i, i)
		q.p("VCVTPS2DQ Z%d, Z%d", i, i)
	}
	q.p("VPMOVSDB Z0, X7")
	q.p("VPMOVSDB Z1, X8")
	q.p("VINSERTI128 $1, X8, Y7, Y7")
	q.sums()
}

func (q *quantizer) pack() {
	q.p("VBROADCASTSS X5, Y5")
	for i := range 4 {
		q.p("VMULPS Y5, Y%d, Y%d", i, i)
		q.p("VCVTPS2DQ Y%d, Y%d", i, i)
	}
	q.p("VPACKSSDW Y1, Y0, Y0")
	q.p("VPACKSSDW Y3, Y2, Y2")
	q.p("VPACKSSWB Y2, Y0, Y7")
	q.p("VMOVDQU unlace<>(SB), Y5")
	q.p("VPERMD Y7, Y5, Y7")
	q.sums()
}

func (q *quantizer) sums() {
	q.p("VMOVDQU bytes1<>(SB), Y8")
	q.p("VPMADDUBSW Y7, Y8, Y8")
	q.p("VPMADDWD words1<>(SB), Y8, Y8")
}
