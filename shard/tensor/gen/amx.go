package main

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Kernels for AMX come in two halves (wide.go): one function a form opens the weights of a group, with AVX-512; then one
// function for each of the four kinds of forms multiplies, and knows nothing of types.

// kind is what differs between opened weights: minimums beside the scales, and both for each half of a block.
type kind struct{ mins, halves bool }

var kinds = []kind{{false, false}, {true, false}, {false, true}, {true, true}}

func (k kind) name() string {
	return "multiply" + map[bool]string{false: "", true: "Halves"}[k.halves] + map[bool]string{false: "", true: "Mins"}[k.mins] + "AMX"
}

// scales is how many scales a block has, and how many minimums if any.
func (k kind) scales() int {
	if k.halves {
		return 2
	}
	return 1
}

// values is where in an opened block its 8 lines of values begin.
func (k kind) values() int {
	if k.mins {
		return 2 * 64 * k.scales()
	}
	return 64 * k.scales()
}

func (k kind) blockBytes() int { return k.values() + 8*64 }

// Offsets of tensor.wideCall; a test there checks them.
const (
	wideWeights = 0
	wideGroups  = 8
	wideBlocks  = 16
	wideActs    = 24
	wideTiles   = 32
	wideStride  = 40
	wideOut     = 48
	wideOutRow  = 56
	wideResume  = 64
	wideMask    = 72
	wideSums    = 80
)

// A tile of activations, block by block (tensor.wideActBytes).
const (
	wideRows       = 16
	wideSum        = 64
	wideHalfSum    = 128
	wideValues     = 256
	wideBlockBytes = 768
)

// amx writes the file of kernels; the stubs and the table go to a Go file of their own.
func amx(stubs, table *strings.Builder) string {
	s := newSource()
	table.WriteString("\nfunc fillAMX(w *wide) {\n")
	for i := range forms {
		f := &forms[i]
		if f.float() {
			continue
		}
		if f.table != nil {
			s.lookup(f, 0)
		}
		o := &opener{zmm{source: s, f: f, sh: shape{1, 1}}, kind{f.mins, f.halves}}
		name := f.name + "OpenAMX"
		o.write(name)
		fmt.Fprintf(stubs, "\n//go:noescape\nfunc %s(c *call)\n", name)
		fmt.Fprintf(table, "\tw.open[%s] = %s\n", f.id, name)
	}
	for _, halves := range []bool{false, true} {
		tiles(s, halves)
	}
	for i, k := range kinds {
		m := &tileKernel{s, k}
		m.write()
		fmt.Fprintf(stubs, "\n//go:noescape\nfunc %s(c *wideCall)\n", k.name())
		fmt.Fprintf(table, "\tw.multiply[%d] = %s\n", i, k.name())
	}
	lay(s)
	table.WriteString("\tw.lay = layAMX\n}\n")
	fmt.Fprintf(stubs, "\n//go:noescape\nfunc layAMX(tile *byte, blocks int)\n")
	return s.String()
}

// opener writes the function that opens the units of one group.
type opener struct {
	zmm
	kind kind
}

func (o *opener) write(name string) {
	f := o.f
	r := &registers{prefix: "Z", max: 32, name: name}
	o.text(name)
	o.prologue() // DI is where the opened blocks go
	o.masks(r)
	w, zero, sign := r.one(), "", ""
	o.tmp = r.one()
	if f.zeroShift > 0 && f.table == nil {
		zero = r.one()
		o.p("MOVL $%#08x, AX", 0x01010101<<f.zeroShift)
		o.p("VPBROADCASTD AX, %s", zero)
	}
	if f.mins && f.super && !f.halves {
		sign = r.one()
		o.p("MOVL $0x80000000, AX")
		o.p("VPBROADCASTD AX, %s", sign)
	}
	o.label("loop")
	if f.super {
		o.p("MOVQ SI, R13")
		o.p("MOVL $8, BX")
		o.label("sub")
	}
	o.block(w, zero, sign)
	o.p("ADDQ $%d, DI", o.kind.blockBytes())
	if f.super {
		o.p("ADDQ $%d, R8", panelGroups*f.lineBytes)
		o.p("ADDQ $%d, R13", map[bool]int{false: 16, true: 32}[f.halves])
		o.p("DECQ BX")
		o.p("JNZ sub")
		o.p("ADDQ $%d, R8", panelGroups*f.scaleBytes)
	} else {
		o.p("ADDQ $%d, R8", f.unitBytes())
	}
	o.p("ADDQ $%d, SI", f.unitBytes())
	o.p("DECQ CX")
	o.p("JNZ loop")
	o.p("VZEROUPPER")
	o.p("RET")
}

// block opens a block: scales and minimums multiplied out, the values as signed bytes.
func (o *opener) block(w, zero, sign string) {
	for h := range o.kind.scales() {
		o.scale(0, w, o.tmp, h)
		o.p("VMOVUPS %s, %d(DI)", w, 64*h)
	}
	for h := range o.kind.scales() {
		if !o.kind.mins {
			break
		}
		o.minimum(0, w, o.tmp, h)
		if sign != "" { // the minimum of a super-block is to be subtracted
			o.p("VPXORD %s, %s, %s", sign, w, w)
		}
		o.p("VMOVUPS %s, %d(DI)", w, 64*(o.kind.scales()+h))
	}
	for k4 := range 8 {
		line := func(n int) string { return fmt.Sprintf("%d(R8)", 64*n) }
		if o.f.bits == 8 {
			o.p("VMOVDQU64 %s, %s", line(k4), w)
		} else {
			o.take(k4, line, w)
		}
		if zero != "" {
			o.p("VPSUBB %s, %s, %s", zero, w, w)
		}
		o.p("VMOVDQU64 %s, %d(DI)", w, o.kind.values()+64*k4)
	}
}

// tiles writes the configuration of the kernels: 0 and 1 are sums of 16 x 16 int32, 2 and 3 activations of 16 rows, 4 and 5 weights;
// for 32 values or, of a half, 16.
func tiles(s *source, halves bool) {
	k := 32
	if halves {
		k = 16
	}
	s.tileConfig(configName(halves), [][2]int{{16, 64}, {16, 64}, {16, k}, {16, k}, {k / 4, 64}, {k / 4, 64}})
}

// tileConfig writes what LDTILECFG reads: each tile's rows, and bytes of a row.
func (s *source) tileConfig(name string, shapes [][2]int) {
	var cfg [64]byte
	cfg[0] = 1 // the palette
	for t, shape := range shapes {
		cfg[48+t], cfg[16+2*t] = byte(shape[0]), byte(shape[1])
	}
	for i := 0; i < len(cfg); i += 8 {
		fmt.Fprintf(s, "DATA %s<>+%d(SB)/8, $%#016x\n", name, i, binary.LittleEndian.Uint64(cfg[i:]))
	}
	fmt.Fprintf(s, "GLOBL %s<>(SB), RODATA|NOPTR, $64\n", name)
}

func configName(halves bool) string {
	if halves {
		return "tilesHalves"
	}
	return "tiles"
}

// tileKernel writes the function that multiplies the opened weights of some groups with some tiles of activations.
//
// SI is the block of weights, DI that of activations, BX two buffers of 1 KB for sums, AX 64 and R8 32 (strides); CX counts blocks,
// R9 groups, R10 tiles; R11 is the output, R12 its stride, R13 the tile. While one product is stored, the one before is folded.
type tileKernel struct {
	*source
	kind
}

func (k *tileKernel) write() {
	name := k.name()
	fmt.Fprintf(k, "\n// func %s(c *wideCall)\nTEXT ·%s(SB), NOSPLIT, $0-8\n\tMOVQ c+0(FP), DX\n", name, name)
	k.p("LEAQ %s<>(SB), AX", configName(k.halves))
	k.bytes(ldtilecfg(ax), "LDTILECFG (AX)")
	k.p("MOVL %d(DX), AX", wideMask)
	k.p("KMOVW AX, K1")
	k.p("MOVL $64, AX")
	k.p("MOVL $32, R8")
	k.p("MOVQ %d(DX), BX", wideSums)
	k.p("MOVQ %d(DX), R10", wideTiles)
	k.p("MOVQ %d(DX), R11", wideOut)
	k.p("MOVQ %d(DX), R12", wideOutRow)
	k.p("MOVQ %d(DX), R13", wideActs)
	k.label("tile")
	k.p("MOVQ %d(DX), SI", wideWeights)
	k.p("MOVQ %d(DX), R9", wideGroups)
	k.label("group")
	k.begin()
	k.p("MOVQ R13, DI")
	k.p("MOVQ %d(DX), CX", wideBlocks)
	if k.halves {
		k.loopHalves()
	} else {
		k.loop()
	}
	k.p("ADDQ $%d, SI", k.blockBytes())
	k.each(func(t int) { k.p("VMOVUPS Z%d, K1, (CX)", t) })
	k.p("ADDQ $64, R11")
	k.p("DECQ R9")
	k.p("JNZ group")
	k.p("MOVQ %d(DX), CX", wideGroups)
	k.p("SHLQ $6, CX")
	k.p("SUBQ CX, R11")
	k.p("MOVQ R12, CX")
	k.p("SHLQ $4, CX")
	k.p("ADDQ CX, R11")
	k.p("ADDQ %d(DX), R13", wideStride)
	k.p("DECQ R10")
	k.p("JNZ tile")
	k.bytes(tilerelease(), "TILERELEASE")
	k.p("VZEROUPPER")
	k.p("RET")
}

// each writes instr for the sums of each row of activations, whose outputs are at (CX).
func (k *tileKernel) each(instr func(t int)) {
	k.p("MOVQ R11, CX")
	for t := range wideRows {
		instr(t)
		if t < wideRows-1 {
			k.p("ADDQ R12, CX")
		}
	}
}

// begin sets the sums to zero, or to what the output holds.
func (k *tileKernel) begin() {
	k.p("CMPQ %d(DX), $0", wideResume)
	k.p("JNE  resume")
	for t := range wideRows {
		k.p("VPXORD Z%d, Z%d, Z%d", t, t, t)
	}
	k.p("JMP  begun")
	k.label("resume")
	k.each(func(t int) { k.p("VMOVUPS.Z (CX), K1, Z%d", t) })
	k.label("begun")
}

// product multiplies the block, or its half h, ahead bytes of blocks further on, and stores the sums in buffer i.
func (k *tileKernel) product(i, h, ahead int) {
	acts, weights := ahead*wideBlockBytes+wideValues+16*h, ahead*k.blockBytes()+k.values()+256*h
	k.bytes(tileloadd(4+i, si, ax, weights), "TILELOADD %d(SI)(AX*1), T%d", weights, 4+i)
	k.bytes(tileloadd(2+i, di, r8, acts), "TILELOADD %d(DI)(R8*1), T%d", acts, 2+i)
	k.bytes(tilezero(i), "TILEZERO T%d", i)
	k.bytes(tdpbssd(i, 2+i, 4+i), "TDPBSSD T%d, T%d, T%d", 4+i, 2+i, i)
	k.bytes(tilestored(i, bx, ax, 1024*i), "TILESTORED T%d, %d(BX)(AX*1)", i, 1024*i)
}

// loop takes the blocks in turns of two.
func (k *tileKernel) loop() {
	k.product(0, 0, 0)
	k.label("loop")
	for i := range 2 {
		k.p("CMPQ CX, $1")
		k.p("JEQ  last%d", i)
		k.product(1-i, 0, 1)
		k.fold(i, 0)
		k.minimums()
		k.next()
	}
	k.p("JMP  loop")
	for i := range 2 {
		k.label(fmt.Sprintf("last%d", i))
		k.fold(i, 0)
		k.minimums()
		if i == 0 {
			k.p("JMP  folded")
		}
	}
	k.label("folded")
}

// loopHalves takes the halves of a block in turns.
func (k *tileKernel) loopHalves() {
	k.product(0, 0, 0)
	k.label("loop")
	k.product(1, 1, 0)
	k.fold(0, 0)
	k.p("CMPQ CX, $1")
	k.p("JEQ  last")
	k.product(0, 0, 1)
	k.fold(1, 1)
	k.minimums()
	k.next()
	k.p("JMP  loop")
	k.label("last")
	k.fold(1, 1)
	k.minimums()
}

func (k *tileKernel) next() {
	k.p("ADDQ $%d, SI", k.blockBytes())
	k.p("ADDQ $%d, DI", wideBlockBytes)
	k.p("DECQ CX")
}

// fold adds the integer sums of buffer i to the float sums, with scale h of the block.
func (k *tileKernel) fold(i, h int) {
	k.p("VMOVUPS %d(SI), Z16", 64*h)
	for t := range wideRows {
		s, f := 18+t%7, 25+t%7
		k.p("VMULPS.BCST %d(DI), Z16, Z%d", 4*t, s)
		k.p("VCVTDQ2PS %d(BX), Z%d", 1024*i+64*t, f)
		k.p("VFMADD231PS Z%d, Z%d, Z%d", f, s, t)
	}
}

// minimums adds the minimums of the block.
func (k *tileKernel) minimums() {
	if !k.mins {
		return
	}
	for h := range k.scales() {
		field := wideSum
		if k.halves {
			field = wideHalfSum + 64*h
		}
		k.p("VMOVUPS %d(SI), Z17", 64*(k.scales()+h))
		for t := range wideRows {
			k.p("VFMADD231PS.BCST %d(DI), Z17, Z%d", field+4*t, t)
		}
	}
}

// peak writes the loop of package probe: four independent products of full tiles a round.
func peak() string {
	s := newSource()
	var shapes [8][2]int
	for t := range shapes {
		shapes[t] = [2]int{16, 64}
	}
	s.tileConfig("tiles", shapes[:])
	fmt.Fprintf(s, "\n// func dotTiles(n int)\nTEXT ·dotTiles(SB), NOSPLIT, $0-8\n\tMOVQ n+0(FP), CX\n")
	s.p("LEAQ tiles<>(SB), AX")
	s.bytes(ldtilecfg(ax), "LDTILECFG (AX)") // which sets all tiles to zero
	s.label("loop")
	for i := range 4 {
		s.bytes(tdpbssd(i, 4+i/2, 6+i%2), "TDPBSSD T%d, T%d, T%d", 6+i%2, 4+i/2, i)
	}
	s.p("DECQ CX")
	s.p("JNZ loop")
	s.bytes(tilerelease(), "TILERELEASE")
	s.p("RET")
	return s.String()
}

// lay writes the function that turns tiles of 16 rows, as quantizers write them, into those of the tile kernels, where they lie.
func lay(s *source) {
	fmt.Fprintf(s, "\n// func layAMX(tile *byte, blocks int)\nTEXT ·layAMX(SB), NOSPLIT, $0-16\n")
	s.p("MOVQ tile+0(FP), DI")
	s.p("MOVQ blocks+8(FP), CX")
	s.label("loop")
	for k4 := range 8 {
		s.p("VMOVDQU64 %d(DI), Z%d", wideValues+64*k4, k4) // four values of each of 16 rows
	}
	// Fields: d, -sum, -sum of the first half, d*sum become d, d*sum, and d times the second and the third less the third.
	s.p("VMOVUPS (DI), Z24")
	s.p("VMOVDQU64 64(DI), Z25")
	s.p("VMOVDQU64 128(DI), Z26")
	s.p("VMOVUPS 192(DI), Z27")
	s.p("VPSUBD Z26, Z25, Z25")
	for i, r := range []string{"Z26", "Z25"} {
		s.p("VCVTDQ2PS %s, %s", r, r)
		s.p("VMULPS Z24, %s, %s", r, r)
		s.p("VMOVUPS %s, %d(DI)", r, wideHalfSum+64*i)
	}
	s.p("VMOVUPS Z27, %d(DI)", wideSum)
	// Transpose: quarter q of Z8+j holds the first 16 values of row 4q+j, that of Z12+j the last.
	for h := range 2 {
		a := 4 * h
		for i := range 2 {
			s.p("VPUNPCKLDQ Z%d, Z%d, Z%d", a+2*i+1, a+2*i, 28+2*i)
			s.p("VPUNPCKHDQ Z%d, Z%d, Z%d", a+2*i+1, a+2*i, 29+2*i)
		}
		for i := range 2 {
			s.p("VPUNPCKLQDQ Z%d, Z%d, Z%d", 30+i, 28+i, 8+4*h+2*i)
			s.p("VPUNPCKHQDQ Z%d, Z%d, Z%d", 30+i, 28+i, 9+4*h+2*i)
		}
	}
	for row := range wideRows {
		for h := range 2 {
			from, at := 8+4*h+row%4, wideValues+32*row+16*h
			if row < 4 {
				s.p("VMOVDQU X%d, %d(DI)", from, at)
			} else {
				s.p("VEXTRACTI32X4 $%d, Z%d, %d(DI)", row/4, from, at)
			}
		}
	}
	s.p("ADDQ $%d, DI", wideBlockBytes)
	s.p("DECQ CX")
	s.p("JNZ loop")
	s.p("VZEROUPPER")
	s.p("RET")
}
