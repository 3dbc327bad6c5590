package main

import (
	"fmt"
	"strings"
)

// A whole panel for one activation row, read from front to back; a group at a time for more.
var (
	neonShapes      = []shape{{4, 1}, {1, 2}, {1, 3}, {1, 4}}
	neonFloatShapes = []shape{{4, 1}, {2, 2}, {1, 3}, {1, 4}}
)

func neonKernels(stubs, table *strings.Builder) string {
	s := newSource()
	s.WriteString("#include \"neon_arm64.h\"\n")
	for i := range forms {
		if forms[i].table != nil {
			s.lookup(&forms[i], 0)
		}
	}
	table.WriteString("\nfunc fillNEON(ks *kernelSet) {\n")
	for i := range forms {
		f := &forms[i]
		shapes := neonShapes
		if f.float() {
			shapes = neonFloatShapes
		}
		for _, sh := range shapes {
			k := &neon{source: s, f: f, sh: sh}
			k.write()
			declare(stubs, table, f, "NEON", sh)
		}
	}
	table.WriteString("}\n")
	return s.String()
}

// neon writes one kernel for NEON with the dot products of ARMv8.2. A line is four pieces of four rows.
//
// R0 is the call, R1 the unit's scales, R7 the sub-block's (less their offset), R2 the lines, R4 the activations, R3 counts
// the steps and R6 the sub-blocks. Vector registers are numbers here, as the macros of neon_arm64.h want them.
type neon struct {
	*source
	f     *form
	sh    shape
	next  int     // the next free vector register
	sum   [][]int // float sums by group and row, four pieces each
	acc   [][]int // integer sums by row, one for each piece of a pass
	w, lo int     // weights, and what they become
	high  int     // the part of another line
	mask  int     // of a weight's bits; of 8 bits the sign
	table int
	acts  cache
	corr  [2]int // tiles of one row: what the sums of each half begin with
	neg   [2]int // scales times negative sums of each half, row by row, where halves have minimums
}

// cache is which vectors of the block's activations are in registers; they are 16 bytes each, from (R4).
type cache struct{ regs, held []int }

func (k *neon) one() int {
	if k.next == 32 {
		panic(kernelName(k.f, "NEON", k.sh) + ": out of registers")
	}
	k.next++
	return k.next - 1
}

func (k *neon) some(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = k.one()
	}
	return out
}

// hold makes n registers the cache, empty.
func (k *neon) hold(n int) {
	k.acts = cache{regs: k.some(n)}
	k.forget()
}

func (k *neon) forget() {
	k.acts.held = make([]int, len(k.acts.regs))
	for i := range k.acts.held {
		k.acts.held[i] = -1
	}
}

// act is the register and the lane of the block's activation dword i, loaded if need be over the vector used longest ago.
func (k *neon) act(i int) (reg, lane int) {
	c, v := &k.acts, i/4
	at := 0
	for at < len(c.held)-1 && c.held[at] != v {
		at++
	}
	reg = c.regs[at]
	if c.held[at] != v {
		k.p("FMOVQ %d(R4), F%d", 16*v, reg)
	}
	copy(c.regs[1:at+1], c.regs[:at])
	copy(c.held[1:at+1], c.held[:at])
	c.regs[0], c.held[0] = reg, v
	return reg, i % 4
}

func (k *neon) write() {
	name := kernelName(k.f, "NEON", k.sh)
	fmt.Fprintf(k, "\n// func %s(c *call)\nTEXT ·%s(SB), NOSPLIT, $0-8\n", name, name)
	k.p("MOVD c+0(FP), R0")
	k.p("MOVD %d(R0), R1", callScales)
	k.p("MOVD %d(R0), R2", callLines)
	k.p("MOVD %d(R0), R3", callSteps)
	k.p("MOVD %d(R0), R4", callA)
	for range k.sh.groups {
		k.sum = append(k.sum, k.some(4*k.sh.tile))
	}
	k.begin()
	if k.f.float() {
		k.floats()
	} else {
		k.quantized()
	}
	k.eachSum(func(reg int, at string) { k.p("FMOVQ F%d, %s", reg, at) })
	k.p("RET")
}

// begin sets the sums to zero, or to what the output holds.
func (k *neon) begin() {
	k.eachSum(func(reg int, _ string) { k.p("VEOR V%d.B16, V%d.B16, V%d.B16", reg, reg, reg) })
	k.p("MOVD %d(R0), R5", callResume)
	k.p("CBZ  R5, start")
	k.eachSum(func(reg int, at string) { k.p("FMOVQ %s, F%d", at, reg) })
	k.label("start")
}

// eachSum writes instr for every register of the sums, with its place in the output.
func (k *neon) eachSum(instr func(reg int, at string)) {
	k.p("MOVD %d(R0), R5", callOut)
	if k.sh.tile > 1 {
		k.p("MOVD %d(R0), R6", callOutRow)
	}
	for t := range k.sh.tile {
		for g := range k.sh.groups {
			for piece := range 4 {
				instr(k.sum[g][4*t+piece], fmt.Sprintf("%d(R5)", g*64+piece*16))
			}
		}
		if t < k.sh.tile-1 {
			k.p("ADD  R6, R5, R5")
		}
	}
}

// quantized is the loop over a row's blocks.
func (k *neon) quantized() {
	f, T := k.f, k.sh.tile
	pieces := 4 // of a pass
	if T > 2 {
		pieces = 2
	}
	for range T {
		k.acc = append(k.acc, k.some(pieces))
	}
	k.w, k.lo, k.mask = k.one(), k.one(), k.one()
	if f.bits == 8 {
		k.p("VMOVI $128, V%d.B16", k.mask)
	} else {
		k.p("VMOVI $%d, V%d.B16", 1<<f.bits-1, k.mask)
	}
	if f.bits < 8 && f.bits&(f.bits-1) != 0 {
		k.high = k.one()
	}
	if f.table != nil {
		k.table = k.one()
		k.p("MOVD $%s<>(SB), R8", f.name)
		k.p("FMOVQ (R8), F%d", k.table)
	}
	if T == 1 && f.biased() {
		k.corr = [2]int{k.one(), k.one()}
	}
	if f.halves && f.mins {
		k.neg = [2]int{k.one(), k.one()}
	}
	k.hold(min(32-k.next, 3*T))

	k.label("loop")
	if f.super {
		k.p("MOVD R1, R7")
		k.p("MOVD $8, R6")
		k.label("sub")
	}
	k.forget()
	if T == 1 && f.biased() {
		k.correction(0, k.corr[0])
		if f.halves {
			k.correction(4, k.corr[1])
		}
	}
	if f.halves && f.mins {
		k.halfSums()
	}
	for g := range k.sh.groups {
		for from := 0; from < 4; from += pieces {
			k.pass(g, from, from+pieces)
		}
	}
	k.p("ADD  $%d, R4", 48*T)
	if f.super {
		k.p("ADD  $%d, R2", panelGroups*f.lineBytes)
		k.p("ADD  $%d, R7", map[bool]int{false: 16, true: 32}[f.halves])
		k.p("SUBS $1, R6, R6")
		k.p("BNE  sub")
		k.p("ADD  $%d, R2", panelGroups*f.scaleBytes)
	} else {
		k.p("ADD  $%d, R2", f.unitBytes())
	}
	k.p("ADD  $%d, R1", f.unitBytes())
	k.p("SUBS $1, R3, R3")
	k.p("BNE  loop")
}

// biased says whether the integer sums begin with a correction for the weights' zero. The dot product takes signed bytes, so
// weights of 8 bits get their sign back and tables have it; the others are below 128 and need none.
func (f *form) biased() bool { return f.zeroShift > 0 && f.bits != 8 && f.table == nil }

// pass adds the block to the sums of pieces [from, to) of group g.
func (k *neon) pass(g, from, to int) {
	if !k.f.halves {
		k.start(0)
		k.dots(g, from, to, 0, 8)
		k.fold(g, from, to, 0)
		if k.f.mins {
			k.minimum(g, from, to, 0)
		}
		return
	}
	for half := range 2 {
		k.start(4 * half)
		k.dots(g, from, to, 4*half, 4*half+4)
		k.fold(g, from, to, half)
	}
	for half := 0; k.f.mins && half < 2; half++ {
		k.minimum(g, from, to, half)
	}
}

// start sets the integer sums for the quarters that begin with the given one.
func (k *neon) start(quarter int) {
	for t, acc := range k.acc {
		switch {
		case !k.f.biased():
			for _, a := range acc {
				k.p("VEOR V%d.B16, V%d.B16, V%d.B16", a, a, a)
			}
			continue
		case k.sh.tile == 1:
			k.p("VMOV V%d.B16, V%d.B16", k.corr[quarter/4], acc[0])
		default:
			k.correct(quarter, t, acc[0])
		}
		for _, a := range acc[1:] {
			k.p("VMOV V%d.B16, V%d.B16", acc[0], a)
		}
	}
}

// correction leaves in dst what the sums of the only row begin with.
func (k *neon) correction(quarter, dst int) { k.correct(quarter, 0, dst) }

// correct leaves in dst -zero times the sum of row t's values: of the half from the given quarter on, or of the block.
func (k *neon) correct(quarter, t, dst int) {
	T := k.sh.tile
	switch {
	case quarter == 4:
		k.p("MOVW %d(R4), R8", 4*T+4*t)
		k.p("MOVW %d(R4), R9", 8*T+4*t)
		k.p("SUBW R9, R8, R8")
	case k.f.halves:
		k.p("MOVW %d(R4), R8", 8*T+4*t)
	default:
		k.p("MOVW %d(R4), R8", 4*T+4*t)
	}
	k.p("LSLW $%d, R8, R8", k.f.zeroShift)
	k.p("VDUP R8, V%d.S4", dst)
}

// dot adds quarter q of the weights in reg to the sums of a piece of the pass.
func (k *neon) dot(q, reg, piece int) {
	for t := range k.sh.tile {
		a, lane := k.act((4+q)*k.sh.tile + t)
		k.p("SDOTI(%d, %d, %d, %d)", lane, a, reg, k.acc[t][piece])
	}
}

// dots adds quarters [first, last) of the block, line by line.
func (k *neon) dots(g, from, to, first, last int) {
	for line := 0; line < k.f.lineBytes; line += 64 {
		var quarters []int // whose lowest bits are there
		for q := first; q < last; q++ {
			if k.f.parts(q)[0].line*64 == line {
				quarters = append(quarters, q)
			}
		}
		if quarters == nil {
			continue
		}
		for p := from; p < to; p++ {
			k.p("FMOVQ %d(R2), F%d", g*k.f.lineBytes+line+p*16, k.w)
			for i, q := range quarters {
				reg := k.take(q, g, p, i == len(quarters)-1)
				if k.f.table != nil {
					k.p("VTBL V%d.B16, [V%d.B16], V%d.B16", reg, k.table, reg)
				}
				k.dot(q, reg, p-from)
			}
		}
	}
}

// take takes a quarter out of the line in w and, if it has more parts, of other lines. It says where it is: in lo, or in w if
// that is not needed any more.
func (k *neon) take(q, g, piece int, last bool) int {
	if k.f.bits == 8 {
		k.p("VEOR V%d.B16, V%d.B16, V%d.B16", k.mask, k.w, k.w)
		return k.w
	}
	parts := k.f.parts(q)
	from, dst := k.w, k.lo
	if last {
		dst = k.w
	}
	if p := parts[0]; p.from > 0 {
		k.p("VUSHR $%d, V%d.B16, V%d.B16", p.from, from, dst)
		from = dst
		if p.from+p.bits == 8 && len(parts) == 1 {
			return dst // the shift left nothing else
		}
	}
	pos := parts[0].bits
	if len(parts) > 1 && from != dst {
		k.p("VMOV V%d.B16, V%d.B16", from, dst)
		from = dst
	}
	for _, p := range parts[1:] {
		k.p("FMOVQ %d(R2), F%d", g*k.f.lineBytes+64*p.line+piece*16, k.high)
		if p.from > 0 {
			k.p("VUSHR $%d, V%d.B16, V%d.B16", p.from, k.high, k.high)
		}
		k.p("VSLI $%d, V%d.B16, V%d.B16", pos, k.high, dst)
		pos += p.bits
	}
	k.p("VAND V%d.B16, V%d.B16, V%d.B16", k.mask, from, dst)
	return dst
}

// widen loads four bytes of the scales at (R7) as float32: signed or unsigned, or their "low" or "high" nibbles.
func (k *neon) widen(at, dst int, kind string) {
	k.p("FMOVS %d(R7), F%d", at, dst)
	switch kind {
	case "signed":
		k.p("SXTL8(%d, %d)", dst, dst)
		k.p("SXTL4(%d, %d)", dst, dst)
		k.p("SCVTF4(%d, %d)", dst, dst)
		return
	case "low":
		k.p("VSHL $4, V%d.B16, V%d.B16", dst, dst)
		fallthrough
	case "high":
		k.p("VUSHR $4, V%d.B16, V%d.B16", dst, dst)
	}
	k.p("VUXTL V%d.B8, V%d.H8", dst, dst)
	k.p("VUXTL V%d.H4, V%d.S4", dst, dst)
	k.p("UCVTF4(%d, %d)", dst, dst)
}

// unitScale loads four of the unit's scales, or minimums, at (R1).
func (k *neon) unitScale(at, dst int) {
	k.p("FMOVD %d(R1), F%d", at, dst)
	if k.f.bfloat {
		k.p("SHLL4(%d, %d)", dst, dst)
	} else {
		k.p("FCVTL4(%d, %d)", dst, dst)
	}
}

// fold adds the block's (or its half's) integer sums to the float sums.
func (k *neon) fold(g, from, to, half int) {
	f := k.f
	at := g * f.scaleBytes
	kind := "signed"
	switch {
	case f.mins && f.halves:
		kind = "low"
	case f.mins:
		kind = "unsigned"
	}
	for p := from; p < to; p++ {
		k.unitScale(at+8*p, k.w)
		if f.super {
			k.widen(at+f.subScales()+16*half+4*p, k.lo, kind)
			k.p("FMUL4(%d, %d, %d)", k.w, k.lo, k.w)
		}
		for t := range k.sh.tile {
			da, lane := k.act(t)
			acc := k.acc[t][p-from]
			k.p("SCVTF4(%d, %d)", acc, acc)
			k.p("FMULI(%d, %d, %d, %d)", lane, da, k.w, k.lo)
			k.p("FMLA4(%d, %d, %d)", acc, k.lo, k.sum[g][4*t+p])
		}
	}
}

// halfSums makes neg of the block.
func (k *neon) halfSums() {
	T := k.sh.tile
	k.p("FMOVQ %d(R4), F%d", 8*T, k.neg[0])
	k.p("FMOVQ %d(R4), F%d", 4*T, k.neg[1])
	k.p("FMOVQ (R4), F%d", k.w)
	k.p("VSUB V%d.S4, V%d.S4, V%d.S4", k.neg[0], k.neg[1], k.neg[1])
	for _, x := range k.neg {
		k.p("SCVTF4(%d, %d)", x, x)
		k.p("FMUL4(%d, %d, %d)", k.w, x, x)
	}
}

// minimum adds the minimums of the block, or of its half.
func (k *neon) minimum(g, from, to, half int) {
	f, T := k.f, k.sh.tile
	at := g * f.scaleBytes
	for p := from; p < to; p++ {
		k.unitScale(at+32+8*p, k.w)
		op := "FMLAI"
		switch {
		case f.halves: // of negative sums
			k.widen(at+f.subScales()+16*half+4*p, k.lo, "high")
		case f.super:
			op = "FMLSI"
			k.widen(at+superMins+4*p, k.lo, "unsigned")
		}
		if f.super {
			k.p("FMUL4(%d, %d, %d)", k.w, k.lo, k.w)
		}
		for t := range T {
			sum, lane := k.neg[half], t
			if !f.halves {
				sum, lane = k.act(3*T + t)
			}
			k.p("%s(%d, %d, %d, %d)", op, lane, sum, k.w, k.sum[g][4*t+p])
		}
	}
}

// floats is the loop over a row's values, four at a time as long as there are four.
func (k *neon) floats() {
	f, T := k.f, k.sh.tile
	k.w = k.one()
	k.hold(T)
	values := func(n int, act func(i int) (reg, lane int)) {
		for i := range n {
			for g := range k.sh.groups {
				for p := range 4 {
					at := i*f.unitBytes() + g*f.lineBytes
					switch f.name {
					case "f32":
						k.p("FMOVQ %d(R2), F%d", at+16*p, k.w)
					case "f16":
						k.p("FMOVD %d(R2), F%d", at+8*p, k.w)
						k.p("FCVTL4(%d, %d)", k.w, k.w)
					default:
						k.p("FMOVD %d(R2), F%d", at+8*p, k.w)
						k.p("SHLL4(%d, %d)", k.w, k.w)
					}
					for t := range T {
						x, lane := act(i*T + t)
						k.p("FMLAI(%d, %d, %d, %d)", lane, x, k.w, k.sum[g][4*t+p])
					}
				}
			}
		}
		k.p("ADD  $%d, R2", n*f.unitBytes())
		k.p("ADD  $%d, R4", 4*n*T)
		k.p("SUB  $%d, R3", n)
	}
	k.label("four")
	k.p("CMP  $4, R3")
	k.p("BLT  one")
	k.forget()
	values(4, k.act)
	k.p("JMP  four")
	k.label("one")
	k.p("CBZ  R3, done")
	for t, reg := range k.acts.regs { // the vector of a whole tile may reach past its end
		k.p("FMOVS %d(R4), F%d", 4*t, reg)
	}
	values(1, func(i int) (int, int) { return k.acts.regs[i], 0 })
	k.p("JMP  one")
	k.label("done")
}
