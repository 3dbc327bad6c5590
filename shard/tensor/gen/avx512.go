package main

import (
	"fmt"
	"strings"
)

// A whole panel for few activation rows, read from front to back. Half of it for many: the sums fill the registers, and each
// broadcast feeds both groups. A quarter of it for a small batch, where taking weights apart costs more than broadcasts.
var avx512Shapes = []shape{{4, 1}, {4, 2}, {4, 3}, {2, 4}, {2, 5}, {2, 6}, {1, 7}, {1, 8}}

// ahead is how far before their use a kernel of one group fetches weights, in bytes at least.
const ahead = 4096

func avx512(stubs, table *strings.Builder) string {
	s := newSource()
	table.WriteString("\nfunc fillAVX512(ks *kernelSet) {\n")
	for i := range forms {
		if forms[i].table != nil {
			s.lookup(&forms[i], 1<<forms[i].zeroShift)
		}
		for _, sh := range avx512Shapes {
			k := &zmm{source: s, f: &forms[i], sh: sh}
			k.write()
			declare(stubs, table, k.f, "AVX512", sh)
		}
	}
	table.WriteString("}\n")
	return s.String()
}

// zmm writes one kernel for AVX-512 VNNI.
type zmm struct {
	*source
	f                *form
	sh               shape
	sum              [][]string // float sums by group and row
	acc              [][]string // integer sums of the block, likewise; one group's at a time when the tile is one row
	w                []string   // weights or scales of each group
	bc, tmp          string
	mask             [9]string // of the lowest bits of each byte, by their number
	table            string    // what weights are looked up in
	corr, corr1, sc2 string    // one row only
	top              string    // likewise: the mask of weights that lie in the upper bits of a byte
	d, m             []string  // scales and minimums of super-blocks, by group, where there is room
}

func (k *zmm) write() {
	name := kernelName(k.f, "AVX512", k.sh)
	r := &registers{prefix: "Z", max: 32, name: name}
	k.text(name)
	k.prologue()
	for range k.sh.groups {
		k.sum = append(k.sum, r.some(k.sh.tile))
	}
	x := sums{k.sh, 1, 64, func(g, t, _ int) string { return k.sum[g][t] }}
	k.begin(x, "VPXORD")
	switch {
	case k.f.float():
		k.floats(r)
	default:
		k.masks(r)
		if k.sh.tile == 1 {
			k.oneRow(r)
		} else {
			k.rows(r)
		}
	}
	k.end(x)
}

func (k *zmm) masks(r *registers) {
	set := func(v int) string {
		m := r.one()
		k.p("MOVL $%#08x, AX", v)
		k.p("VPBROADCASTD AX, %s", m)
		return m
	}
	for _, bits := range k.f.masks() {
		k.mask[bits] = set(byteMask(bits))
	}
	if k.sh.tile == 1 && k.f.inPlace() {
		k.top = set(byteMask(8) &^ byteMask(8-k.f.bits))
	}
	if k.f.table != nil {
		k.table = r.one()
		k.p("VBROADCASTI32X4 %s<>(SB), %s", k.f.name, k.table)
	}
}

// inPlace says whether the weights in the upper bits of their byte are multiplied there, as a multiple of what they are: a mask
// is enough to take them out. Their sums are shifted, once a block. For nibbles it gains nothing.
func (f *form) inPlace() bool { return f.bits == 5 || f.bits == 6 }

// oneRow is the decode kernel: group after group, broadcasts from memory.
func (k *zmm) oneRow(r *registers) {
	f := k.f
	halves := 1
	if f.halves {
		halves = 2
	}
	accs := [2][2]string{} // sums of weights as they are and of those in place, for each half with scales of its own
	for h := range halves {
		accs[h][0] = r.one()
		if f.inPlace() {
			accs[h][1] = r.one()
		}
	}
	w, lines := r.one(), r.some(min(6, f.lineBytes/64))
	k.tmp, k.corr, k.corr1, k.sc2 = r.one(), r.one(), r.one(), r.one()
	k.keepScales(r)
	k.blocks(f, 1, k.unit, func() {
		switch {
		case f.halves && f.mins:
			k.halfSums(0, 0, k.corr)
			k.halfSums(1, 0, k.corr1)
		case f.halves:
			k.p("VPBROADCASTD 4(DI), %s", k.corr1)
			k.p("VPSUBD.BCST 8(DI), %s, %s", k.corr1, k.corr1)
			k.p("VPSLLD $%d, %s, %s", f.zeroShift, k.corr1, k.corr1)
			k.p("VPSLLD.BCST $%d, 8(DI), %s", f.zeroShift, k.corr)
		case f.zeroShift > 0:
			k.p("VPSLLD.BCST $%d, 4(DI), %s", f.zeroShift, k.corr)
		}
		for g := range k.sh.groups {
			held := map[int]bool{} // lines that are in registers
			line := func(n int) string {
				reg := lines[n%len(lines)]
				if !held[n] {
					held[n] = true
					k.p("VMOVDQU64 %d(R8), %s", g*f.lineBytes+64*n, reg)
				}
				return reg
			}
			for h := range halves {
				k.start(accs[h][0], []string{k.corr, k.corr1}[h])
				if f.inPlace() {
					k.p("VPXORD %s, %s, %s", accs[h][1], accs[h][1], accs[h][1])
				}
			}
			for _, k4 := range k.order() {
				acc, q := &accs[k4/4*(halves-1)], w
				if f.inPlace() && len(f.parts(k4)) == 1 {
					k.p("VPANDD %s, %s, %s", line(k4), k.top, w)
					k.p("VPDPBUSD.BCST %d(DI), %s, %s", 16+4*k4, w, acc[1])
					continue
				}
				if f.bits == 8 {
					q = line(k4)
				} else {
					k.take(k4, line, w)
				}
				k.p("VPDPBUSD.BCST %d(DI), %s, %s", 16+4*k4, q, acc[0])
			}
			for h := range halves {
				if f.inPlace() {
					k.p("VPSRAD $%d, %s, %s", 8-f.bits, accs[h][1], accs[h][1])
					k.p("VPADDD %s, %s, %s", accs[h][1], accs[h][0], accs[h][0])
				}
			}
			k.foldOne(g, accs[0][0], accs[1][0], w)
		}
	})
}

// order is the order of a block's quarters that takes lines one after another.
func (k *zmm) order() []int {
	if k.f.bits == 4 {
		return []int{0, 4, 1, 5, 2, 6, 3, 7}
	}
	return []int{0, 1, 2, 3, 4, 5, 6, 7}
}

// take leaves the weights of quarter k4 in w; line says where a line is, in memory or a register. Some need tmp.
func (k *zmm) take(k4 int, line func(n int) string, w string) {
	parts := k.f.parts(k4)
	pos := k.f.bits // of the part in the weights
	for i := len(parts) - 1; i >= 0; i-- {
		p := parts[i]
		below := pos // the bits of the parts from here on down
		pos -= p.bits
		src, dst := line(p.line), w
		if i < len(parts)-1 {
			dst = k.tmp
		}
		switch {
		case p.from > pos:
			k.p("VPSRLD $%d, %s, %s", p.from-pos, src, dst)
			src = dst
		case p.from < pos:
			k.p("VPSLLD $%d, %s, %s", pos-p.from, src, dst)
			src = dst
		}
		switch {
		case i < len(parts)-1: // these bits over those above
			k.p("VPTERNLOGD $0xb8, %s, %s, %s", src, k.mask[below], w)
		case src != w && len(parts) > 1:
			k.p("VMOVDQU64 %s, %s", src, w)
		case src != w:
			k.p("VPANDD %s, %s, %s", src, k.mask[below], w)
			k.lookup(w)
			return
		}
	}
	k.p("VPANDD %s, %s, %s", w, k.mask[k.f.bits], w)
	k.lookup(w)
}

// lookup replaces weights by what they stand for.
func (k *zmm) lookup(w string) {
	if k.f.table != nil {
		k.p("VPSHUFB %s, %s, %s", w, k.table, w)
	}
}

// keepScales sets registers aside for the scales and minimums of a super-block, if there are any: they are then converted once.
// With many rows to a weight it gains nothing.
func (k *zmm) keepScales(r *registers) {
	if k.sh.groups < panelGroups {
		return
	}
	if k.f.super && r.max-r.next >= k.sh.groups {
		k.d = r.some(k.sh.groups)
	}
	if k.f.super && k.f.mins && r.max-r.next >= k.sh.groups {
		k.m = r.some(k.sh.groups)
	}
}

func (k *zmm) unit() {
	for g := range k.d {
		k.p("VCVTPH2PS %d(SI), %s", g*k.f.scaleBytes, k.d[g])
	}
	for g := range k.m {
		k.p("VCVTPH2PS %d(SI), %s", g*k.f.scaleBytes+32, k.m[g])
	}
}

// fetch asks for lines ahead in a kernel of one group, which skips the lines of the others: the machine's own prefetching
// does not follow it. Kernels that read from front to back are slower with it.
func (k *zmm) fetch() {
	if k.sh.groups > 1 {
		return
	}
	unit := k.f.unitBytes()
	from := (ahead + unit - 1) / unit * unit
	for at := from; at < from+k.f.lineBytes; at += 64 {
		k.p("PREFETCHT0 %d(R8)", at)
	}
}

func (k *zmm) start(acc, corr string) {
	if k.f.zeroShift > 0 {
		k.p("VMOVDQA64 %s, %s", corr, acc)
	} else {
		k.p("VPXORD %s, %s, %s", acc, acc, acc)
	}
}

// scale loads a group's scale of the block (of its half h) into dst, by way of tmp.
func (k *zmm) scale(g int, dst, tmp string, h int) {
	at := g * k.f.scaleBytes
	switch {
	case k.f.halves && k.f.mins:
		k.p("VPMOVZXBD %d(R13), %s", at+k.f.subScales()+16*h, dst)
		k.p("VPSLLD $28, %s, %s", dst, dst)
		k.p("VPSRLD $28, %s, %s", dst, dst)
	case k.f.halves:
		k.p("VPMOVSXBD %d(R13), %s", at+k.f.subScales()+16*h, dst)
	case k.f.super && k.f.mins:
		k.p("VPMOVZXBD %d(R13), %s", at+k.f.subScales(), dst)
	case k.f.super:
		k.p("VPMOVSXBD %d(R13), %s", at+k.f.subScales(), dst)
	case k.f.bfloat:
		k.p("VPMOVZXWD %d(SI), %s", at, dst)
		k.p("VPSLLD $16, %s, %s", dst, dst)
		return
	default:
		k.p("VCVTPH2PS %d(SI), %s", at, dst)
		return
	}
	k.p("VCVTDQ2PS %s, %s", dst, dst)
	if k.d != nil {
		k.p("VMULPS %s, %s, %s", k.d[g], dst, dst)
		return
	}
	k.p("VCVTPH2PS %d(SI), %s", at, tmp)
	k.p("VMULPS %s, %s, %s", tmp, dst, dst)
}

// minimum loads a group's minimum of the block (of its half h) into dst. It returns the instruction that adds it.
func (k *zmm) minimum(g int, dst, tmp string, h int) string {
	at := g * k.f.scaleBytes
	op := "VFNMADD231PS"
	switch {
	case !k.f.super:
		k.p("VCVTPH2PS %d(SI), %s", at+32, dst)
		return "VFMADD231PS"
	case k.f.halves:
		k.p("VPMOVZXBD %d(R13), %s", at+k.f.subScales()+16*h, dst)
		k.p("VPSRLD $4, %s, %s", dst, dst)
		op = "VFMADD231PS" // of the negative sum
	default:
		k.p("VPMOVZXBD %d(R13), %s", at+superMins, dst)
	}
	k.p("VCVTDQ2PS %s, %s", dst, dst)
	if k.m != nil {
		k.p("VMULPS %s, %s, %s", k.m[g], dst, dst)
		return op
	}
	k.p("VCVTPH2PS %d(SI), %s", at+32, tmp)
	k.p("VMULPS %s, %s, %s", tmp, dst, dst)
	return op
}

// halfSums loads d times the negative sum of half h of row t of a tile into dst.
func (k *zmm) halfSums(h, t int, dst string) {
	T := k.sh.tile
	if h == 0 {
		k.p("VPBROADCASTD %d(DI), %s", 8*T+4*t, dst)
	} else {
		k.p("VPBROADCASTD %d(DI), %s", 4*T+4*t, dst)
		k.p("VPSUBD.BCST %d(DI), %s, %s", 8*T+4*t, dst, dst)
	}
	k.p("VCVTDQ2PS %s, %s", dst, dst)
	k.p("VMULPS.BCST %d(DI), %s, %s", 4*t, dst, dst)
}

func (k *zmm) foldOne(g int, a, b, w string) {
	sum := k.sum[g][0]
	fold := func(acc string, h int) {
		k.scale(g, k.sc2, k.tmp, h)
		k.p("VCVTDQ2PS %s, %s", acc, acc)
		k.p("VMULPS.BCST (DI), %s, %s", k.sc2, k.sc2)
		k.p("VFMADD231PS %s, %s, %s", acc, k.sc2, sum)
	}
	fold(a, 0)
	if k.f.halves {
		fold(b, 1)
	}
	switch {
	case k.f.halves && k.f.mins:
		for h, x := range []string{k.corr, k.corr1} {
			op := k.minimum(g, w, k.tmp, h)
			k.p("%s %s, %s, %s", op, x, w, sum)
		}
	case k.f.mins:
		op := k.minimum(g, w, k.tmp, 0)
		k.p("%s.BCST 12(DI), %s, %s", op, w, sum)
	}
}

// rows is the kernel for a tile of several rows: all groups and rows at once.
func (k *zmm) rows(r *registers) {
	f, T := k.f, k.sh.tile
	for range k.sh.groups {
		k.acc = append(k.acc, r.some(T))
	}
	k.w = r.some(k.sh.groups)
	k.bc = r.one()
	k.tmp = k.bc
	k.keepScales(r)
	k.blocks(f, T, k.unit, func() {
		k.fetch()
		if !f.halves {
			k.startRows(0, 8)
			k.dots(0, 8)
			k.foldRows(0)
		} else {
			k.startRows(0, 4)
			k.dots(0, 4)
			k.foldRows(0)
			k.startRows(4, 8)
			k.dots(4, 8)
			k.foldRows(1)
		}
		if !f.mins {
			return
		}
		k.minimumRows(0)
		if f.halves {
			k.minimumRows(1)
		}
	})
}

// minimumRows adds the minimums of the block, or of its half h.
func (k *zmm) minimumRows(h int) {
	op := ""
	for g := range k.w {
		op = k.minimum(g, k.w[g], k.tmp, h)
	}
	for t := range k.sh.tile {
		if k.f.halves {
			k.halfSums(h, t, k.bc)
		}
		for g := range k.w {
			if k.f.halves {
				k.p("%s %s, %s, %s", op, k.bc, k.w[g], k.sum[g][t])
			} else {
				k.p("%s.BCST %d(DI), %s, %s", op, 12*k.sh.tile+4*t, k.w[g], k.sum[g][t])
			}
		}
	}
}

// startRows sets the integer sums for quarters from..to to the correction for the weights' zero.
func (k *zmm) startRows(from, to int) {
	T := k.sh.tile
	for t := range T {
		a := k.acc[0][t]
		switch {
		case k.f.zeroShift == 0:
			k.p("VPXORD %s, %s, %s", a, a, a)
		case from == 4:
			k.p("VPBROADCASTD %d(DI), %s", 4*T+4*t, a)
			k.p("VPSUBD.BCST %d(DI), %s, %s", 8*T+4*t, a, a)
			k.p("VPSLLD $%d, %s, %s", k.f.zeroShift, a, a)
		case to == 4:
			k.p("VPSLLD.BCST $%d, %d(DI), %s", k.f.zeroShift, 8*T+4*t, a)
		default:
			k.p("VPSLLD.BCST $%d, %d(DI), %s", k.f.zeroShift, 4*T+4*t, a)
		}
		for g := 1; g < k.sh.groups; g++ {
			k.p("VMOVDQA64 %s, %s", a, k.acc[g][t])
		}
	}
}

func (k *zmm) dots(from, to int) {
	T := k.sh.tile
	for k4 := from; k4 < to; k4++ {
		for g := range k.w {
			line := func(n int) string { return fmt.Sprintf("%d(R8)", g*k.f.lineBytes+64*n) }
			if k.f.bits == 8 {
				k.p("VMOVDQU64 %s, %s", line(k4), k.w[g])
			} else {
				k.take(k4, line, k.w[g])
			}
		}
		for t := range T {
			at := 16*T + (k4*T+t)*4
			if len(k.w) == 1 {
				k.p("VPDPBUSD.BCST %d(DI), %s, %s", at, k.w[0], k.acc[0][t])
				continue
			}
			k.p("VPBROADCASTD %d(DI), %s", at, k.bc)
			for g := range k.w {
				k.p("VPDPBUSD %s, %s, %s", k.bc, k.w[g], k.acc[g][t])
			}
		}
	}
}

// foldRows adds the block's integer sums to the float sums.
func (k *zmm) foldRows(h int) {
	for g := range k.w {
		k.scale(g, k.w[g], k.tmp, h)
	}
	for t := range k.sh.tile {
		for g := range k.w {
			k.p("VCVTDQ2PS %s, %s", k.acc[g][t], k.acc[g][t])
			k.p("VMULPS.BCST %d(DI), %s, %s", 4*t, k.w[g], k.tmp)
			k.p("VFMADD231PS %s, %s, %s", k.acc[g][t], k.tmp, k.sum[g][t])
		}
	}
}

// floats is the kernel for float weights: four values an iteration, then one.
func (k *zmm) floats(r *registers) {
	k.w = r.some(k.sh.groups)
	k.bc = r.one()
	body := func(n int) {
		for i := range n {
			for g := range k.w {
				at := fmt.Sprintf("%d(R8)", i*k.f.unitBytes()+g*k.f.lineBytes)
				switch k.f.name {
				case "f32":
					k.p("VMOVUPS %s, %s", at, k.w[g])
				case "f16":
					k.p("VCVTPH2PS %s, %s", at, k.w[g])
				default:
					k.p("VPMOVZXWD %s, %s", at, k.w[g])
					k.p("VPSLLD $16, %s, %s", k.w[g], k.w[g])
				}
			}
			for t := range k.sh.tile {
				k.p("VBROADCASTSS %d(DI), %s", 4*(i*k.sh.tile+t), k.bc)
				for g := range k.w {
					k.p("VFMADD231PS %s, %s, %s", k.bc, k.w[g], k.sum[g][t])
				}
			}
		}
	}
	k.floatLoop(k.f, k.sh.tile, body)
}

// floatLoop runs body for four values as long as there are four, then for one.
func (s *source) floatLoop(f *form, tile int, body func(n int)) {
	part := func(n int, next string) {
		body(n)
		s.p("ADDQ $%d, R8", n*f.unitBytes())
		s.p("ADDQ $%d, DI", 4*n*tile)
		s.p("SUBQ $%d, CX", n)
		s.p("JMP  %s", next)
	}
	s.label("four")
	s.p("CMPQ CX, $4")
	s.p("JLT  one")
	part(4, "four")
	s.label("one")
	s.p("TESTQ CX, CX")
	s.p("JZ   done")
	part(1, "one")
	s.label("done")
}
