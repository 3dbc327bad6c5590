package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const avx2Tile = 2 // the most rows of AVX2's tiles

var (
	avx2Shapes      = []shape{{4, 1}, {1, 2}}
	avxVNNIShapes   = []shape{{4, 1}, {2, 2}, {1, 3}}
	avx2FloatShapes = []shape{{4, 1}, {2, 2}}
)

func avx2(stubs, table *strings.Builder) string { return ymms(stubs, table, "AVX2", false) }

// avxVNNI differs in the dot products. Its kernels for floats are those of AVX2, and one for three rows.
func avxVNNI(stubs, table *strings.Builder) string { return ymms(stubs, table, "AVXVNNI", true) }

func ymms(stubs, table *strings.Builder, set string, vnni bool) string {
	s := newSource()
	for mask := range 1 << 6 { // what any form's parts need
		if slices.ContainsFunc(forms, func(f form) bool { return f.needs(mask) }) {
			s.constant(fmt.Sprintf("mask%02x", mask), uint64(mask)*0x0101010101010101)
		}
	}
	if !vnni {
		s.constant("flip", 0x8080808080808080)
		s.constant("ones", 0x0001000100010001)
	}
	fmt.Fprintf(table, "\nfunc fill%s(ks *kernelSet) {\n", set)
	for i := range forms {
		f := &forms[i]
		shapes := avx2Shapes
		switch {
		case f.float():
			shapes = avx2FloatShapes
			if vnni {
				shapes = append(slices.Clip(shapes), shape{2, 3})
			}
		case vnni:
			shapes = avxVNNIShapes
		}
		if f.table != nil {
			zero := 1 << f.zeroShift
			if !vnni && f.bytes() {
				zero = 0
			}
			s.lookup(f, zero)
		}
		for _, sh := range shapes {
			k := &ymm{source: s, f: f, sh: sh, vnni: vnni}
			if vnni && f.float() && sh.tile <= avx2Tile {
				fmt.Fprintf(table, "\tks.kernels[%s][%d] = kernel{%d, %s}\n", f.id, sh.tile, sh.groups, kernelName(f, "AVX2", sh))
				continue
			}
			k.write(kernelName(f, set, sh))
			declare(stubs, table, f, set, sh)
		}
	}
	table.WriteString("}\n")
	return s.String()
}

// ymm writes one kernel for AVX2 with FMA and F16C, or with AVX-VNNI as well. A line is two halves of 8 rows; piece h is the one
// at 32h.
type ymm struct {
	*source
	vnni    bool
	f       *form
	sh      shape
	g       int      // the group in work
	sum     []string // float sums, by index(g, t, h)
	acc     []string // integer sums of the block, of one group
	short   []string // 16-bit sums, before they overflow
	w, aw   []string // weights of each half, and their magnitudes
	bc, tmp string
}

// index is where the register of a group, row and half is in sum, acc and short.
func (k *ymm) index(g, t, h int) int { return (g*k.sh.tile+t)*2 + h }

func (k *ymm) write(name string) {
	r := &registers{prefix: "Y", max: 16, name: name}
	k.text(name)
	k.prologue()
	n := 2 * k.sh.groups * k.sh.tile
	k.sum = r.some(n)
	x := sums{k.sh, 2, 32, func(g, t, h int) string { return k.sum[k.index(g, t, h)] }}
	k.begin(x, "VPXOR")
	if k.f.float() {
		k.floats(r)
	} else {
		// The groups take turns in the registers for a block's sums.
		k.acc, k.w = r.some(2*k.sh.tile), r.some(2)
		switch {
		case k.vnni:
		case k.signed():
			k.aw = r.some(2)
		default:
			k.short = r.some(2 * k.sh.tile)
		}
		k.bc, k.tmp = r.one(), r.one()
		k.blocks(k.f, k.sh.tile, func() {}, func() {
			for k.g = range k.sh.groups {
				k.block()
			}
		})
	}
	k.end(x)
}

// bytes says whether the weights need all of a byte.
func (f *form) bytes() bool { return f.zeroShift == 7 }

// signed says whether they are multiplied with their sign: the sums of pairs would not fit 16 bits without.
func (k *ymm) signed() bool { return k.f.bytes() && !k.vnni }

func (k *ymm) block() {
	switch {
	case k.f.halves:
		k.start(0, 4)
		k.dots(0, 4)
		k.fold(0)
		k.start(4, 8)
		k.dots(4, 8)
		k.fold(1)
	default:
		k.start(0, 8)
		k.dots(0, 8)
		k.fold(0)
	}
	switch {
	case k.f.halves && k.f.mins:
		k.minimum(0)
		k.minimum(1)
	case k.f.mins:
		k.minimum(0)
	}
}

// start sets the integer sums for quarters from..to to the correction for the weights' zero, which signed weights don't need.
func (k *ymm) start(from, to int) {
	T := k.sh.tile
	for t := range T {
		a, b := k.acc[k.index(0, t, 0)], k.acc[k.index(0, t, 1)]
		switch {
		case k.f.zeroShift == 0 || k.signed():
			k.p("VPXOR %s, %s, %s", a, a, a)
			k.p("VPXOR %s, %s, %s", b, b, b)
			continue
		case from == 4:
			k.p("VPBROADCASTD %d(DI), %s", 4*T+4*t, a)
			k.p("VPBROADCASTD %d(DI), %s", 8*T+4*t, b)
			k.p("VPSUBD %s, %s, %s", b, a, a)
		case to == 4:
			k.p("VPBROADCASTD %d(DI), %s", 8*T+4*t, a)
		default:
			k.p("VPBROADCASTD %d(DI), %s", 4*T+4*t, a)
		}
		k.p("VPSLLD $%d, %s, %s", k.f.zeroShift, a, a)
		k.p("VMOVDQA %s, %s", a, b)
	}
}

// needs says whether taking weights apart part by part needs a mask.
func (f *form) needs(mask int) bool {
	for k4 := range 8 {
		pos := 0
		for _, p := range f.parts(k4) {
			if f.bits > 0 && f.bits < 8 && mask == (1<<p.bits-1)<<pos {
				return true
			}
			pos += p.bits
		}
	}
	return false
}

// load puts half h of quarter k4's weights into w[h].
func (k *ymm) load(k4, h int) {
	w := k.w[h]
	if k.f.bits == 8 {
		k.p("VMOVDQU %d(R8), %s", k.g*k.f.lineBytes+64*k4+h*32, w)
		if k.signed() {
			k.p("VPXOR flip<>(SB), %s, %s", w, w)
		}
		return
	}
	pos := 0 // of the part in the weights
	for i, p := range k.f.parts(k4) {
		reg := w
		if i > 0 {
			reg = k.tmp
		}
		k.p("VMOVDQU %d(R8), %s", k.g*k.f.lineBytes+64*p.line+h*32, reg)
		switch {
		case p.from > pos:
			k.p("VPSRLD $%d, %s, %s", p.from-pos, reg, reg)
		case p.from < pos:
			k.p("VPSLLD $%d, %s, %s", pos-p.from, reg, reg)
		}
		k.p("VPAND mask%02x<>(SB), %s, %s", (1<<p.bits-1)<<pos, reg, reg)
		if i > 0 {
			k.p("VPOR %s, %s, %s", reg, w, w)
		}
		pos += p.bits
	}
	if k.f.table != nil {
		k.p("VMOVDQU %s<>(SB), %s", k.f.name, k.tmp)
		k.p("VPSHUFB %s, %s, %s", w, k.tmp, w)
	}
}

// dots adds quarters from..to of the block to the integer sums.
func (k *ymm) dots(from, to int) {
	switch {
	case k.vnni:
		k.words(from, to)
	case k.signed():
		k.magnitudes(from, to)
	default:
		k.pairs(from, to)
	}
}

// words has an instruction for four products and their sum.
func (k *ymm) words(from, to int) {
	T := k.sh.tile
	for k4 := from; k4 < to; k4++ {
		for h := range 2 {
			k.load(k4, h)
		}
		for t := range T {
			k.p("VPBROADCASTD %d(DI), %s", 16*T+(k4*T+t)*4, k.bc)
			for h := range 2 {
				k.dot(k.bc, k.w[h], k.acc[k.index(0, t, h)])
			}
		}
	}
}

// dot writes VPDPBUSD in its VEX encoding, which Go's assembler lacks: bytes of a, signed, times those of w, unsigned.
func (s *source) dot(a, w, acc string) {
	b := vexDot(number(a), number(w), number(acc))
	s.p("BYTE $%#02x; BYTE $%#02x; BYTE $%#02x; BYTE $%#02x; BYTE $%#02x // VPDPBUSD %s, %s, %s", b[0], b[1], b[2], b[3], b[4], a, w, acc)
}

// vexDot is VEX.256.66.0F38.W0 50 /r with the registers' numbers.
func vexDot(a, w, acc int) [5]byte {
	return [5]byte{0xc4, byte(^acc>>3&1<<7 | 1<<6 | ^a>>3&1<<5 | 2), byte(^w&15<<3 | 1<<2 | 1), 0x50, byte(3<<6 | acc&7<<3 | a&7)}
}

func number(reg string) int {
	n, err := strconv.Atoi(strings.TrimLeft(reg, "XYZ"))
	if err != nil {
		panic(err)
	}
	return n
}

// magnitudes adds |w| times the activation with w's sign, which is exact even for w = -128.
func (k *ymm) magnitudes(from, to int) {
	T := k.sh.tile
	for k4 := from; k4 < to; k4++ {
		for h := range 2 {
			k.load(k4, h)
			k.p("VPABSB %s, %s", k.w[h], k.aw[h])
		}
		for t := range T {
			k.p("VPBROADCASTD %d(DI), %s", 16*T+(k4*T+t)*4, k.bc)
			for h := range 2 {
				acc := k.acc[k.index(0, t, h)]
				k.p("VPSIGNB %s, %s, %s", k.w[h], k.bc, k.tmp)
				k.p("VPMADDUBSW %s, %s, %s", k.tmp, k.aw[h], k.tmp)
				k.p("VPMADDWD ones<>(SB), %s, %s", k.tmp, k.tmp)
				k.p("VPADDD %s, %s, %s", k.tmp, acc, acc)
			}
		}
	}
}

// few is how many quarters' sums of pairs surely fit 16 bits: few * 2 * largest weight * 127 < 32768.
func (k *ymm) few() int {
	largest := 1<<k.f.bits - 1
	if k.f.table != nil {
		largest = int(slices.Max(k.f.table[:])) + 1<<k.f.zeroShift
	}
	few := 8
	for few*2*largest*127 > 32767 {
		few /= 2
	}
	return few
}

// pairs sums pairs of products in 16 bits and empties those sums after every few quarters.
func (k *ymm) pairs(from, to int) {
	T := k.sh.tile
	few := min(to-from, k.few())
	for k4 := from; k4 < to; k4++ {
		for h := range 2 {
			k.load(k4, h)
		}
		for t := range T {
			k.p("VPBROADCASTD %d(DI), %s", 16*T+(k4*T+t)*4, k.bc)
			for h := range 2 {
				i := k.index(0, t, h)
				if (k4-from)%few == 0 {
					k.p("VPMADDUBSW %s, %s, %s", k.bc, k.w[h], k.short[i])
				} else {
					k.p("VPMADDUBSW %s, %s, %s", k.bc, k.w[h], k.tmp)
					k.p("VPADDW %s, %s, %s", k.tmp, k.short[i], k.short[i])
				}
				if (k4-from)%few == few-1 {
					k.p("VPMADDWD ones<>(SB), %s, %s", k.short[i], k.short[i])
					k.p("VPADDD %s, %s, %s", k.short[i], k.acc[i], k.acc[i])
				}
			}
		}
	}
}

// fold adds the block's (or its half's) integer sums to the float sums.
func (k *ymm) fold(half int) {
	at := k.g * k.f.scaleBytes
	for h := range 2 {
		switch {
		case k.f.halves && k.f.mins:
			k.p("VPMOVZXBD %d(R13), %s", at+k.f.subScales()+16*half+8*h, k.w[h])
			k.p("VPSLLD $28, %s, %s", k.w[h], k.w[h])
			k.p("VPSRLD $28, %s, %s", k.w[h], k.w[h])
		case k.f.halves:
			k.p("VPMOVSXBD %d(R13), %s", at+k.f.subScales()+16*half+8*h, k.w[h])
		case k.f.super && k.f.mins:
			k.p("VPMOVZXBD %d(R13), %s", at+k.f.subScales()+8*h, k.w[h])
		case k.f.super:
			k.p("VPMOVSXBD %d(R13), %s", at+k.f.subScales()+8*h, k.w[h])
		case k.f.bfloat:
			k.p("VPMOVZXWD %d(SI), %s", at+16*h, k.w[h])
			k.p("VPSLLD $16, %s, %s", k.w[h], k.w[h])
			continue
		default:
			k.p("VCVTPH2PS %d(SI), %s", at+16*h, k.w[h])
			continue
		}
		k.p("VCVTDQ2PS %s, %s", k.w[h], k.w[h])
		k.p("VCVTPH2PS %d(SI), %s", at+16*h, k.tmp)
		k.p("VMULPS %s, %s, %s", k.tmp, k.w[h], k.w[h])
	}
	for t := range k.sh.tile {
		k.p("VBROADCASTSS %d(DI), %s", 4*t, k.bc)
		for h := range 2 {
			i := k.index(0, t, h)
			k.p("VCVTDQ2PS %s, %s", k.acc[i], k.acc[i])
			k.p("VMULPS %s, %s, %s", k.bc, k.w[h], k.tmp)
			k.p("VFMADD231PS %s, %s, %s", k.acc[i], k.tmp, k.sum[k.index(k.g, t, h)])
		}
	}
}

// minimum adds the minimums of the block, or of its half.
func (k *ymm) minimum(half int) {
	at := k.g * k.f.scaleBytes
	op := "VFMADD231PS"
	for h := range 2 {
		if !k.f.super {
			k.p("VCVTPH2PS %d(SI), %s", at+32+16*h, k.w[h])
			continue
		}
		if k.f.halves {
			k.p("VPMOVZXBD %d(R13), %s", at+k.f.subScales()+16*half+8*h, k.w[h])
			k.p("VPSRLD $4, %s, %s", k.w[h], k.w[h])
		} else {
			op = "VFNMADD231PS"
			k.p("VPMOVZXBD %d(R13), %s", at+superMins+8*h, k.w[h])
		}
		k.p("VCVTDQ2PS %s, %s", k.w[h], k.w[h])
		k.p("VCVTPH2PS %d(SI), %s", at+32+16*h, k.tmp)
		k.p("VMULPS %s, %s, %s", k.tmp, k.w[h], k.w[h])
	}
	T := k.sh.tile
	for t := range T {
		if k.f.halves {
			k.halfSums(half, t)
		} else {
			k.p("VBROADCASTSS %d(DI), %s", 12*T+4*t, k.bc)
		}
		for h := range 2 {
			k.p("%s %s, %s, %s", op, k.bc, k.w[h], k.sum[k.index(k.g, t, h)])
		}
	}
}

// halfSums loads d times the negative sum of a half of row t into bc.
func (k *ymm) halfSums(half, t int) {
	T := k.sh.tile
	k.p("VPBROADCASTD %d(DI), %s", 8*T+4*t, k.bc)
	if half == 1 {
		k.p("VPBROADCASTD %d(DI), %s", 4*T+4*t, k.tmp)
		k.p("VPSUBD %s, %s, %s", k.bc, k.tmp, k.bc)
	}
	k.p("VCVTDQ2PS %s, %s", k.bc, k.bc)
	k.p("VBROADCASTSS %d(DI), %s", 4*t, k.tmp)
	k.p("VMULPS %s, %s, %s", k.tmp, k.bc, k.bc)
}

func (k *ymm) floats(r *registers) {
	k.w = r.some(2)
	k.bc = r.one()
	k.floatLoop(k.f, k.sh.tile, func(n int) {
		for i := range n {
			for g := range k.sh.groups {
				for h := range 2 {
					at := fmt.Sprintf("%d(R8)", i*k.f.unitBytes()+g*k.f.lineBytes+h*k.f.lineBytes/2)
					switch k.f.name {
					case "f32":
						k.p("VMOVUPS %s, %s", at, k.w[h])
					case "f16":
						k.p("VCVTPH2PS %s, %s", at, k.w[h])
					default:
						k.p("VPMOVZXWD %s, %s", at, k.w[h])
						k.p("VPSLLD $16, %s, %s", k.w[h], k.w[h])
					}
				}
				for t := range k.sh.tile {
					k.p("VBROADCASTSS %d(DI), %s", 4*(i*k.sh.tile+t), k.bc)
					for h := range 2 {
						k.p("VFMADD231PS %s, %s, %s", k.bc, k.w[h], k.sum[k.index(g, t, h)])
					}
				}
			}
		}
	})
}
