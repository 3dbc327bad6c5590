package main

import (
	"fmt"
	"strings"
)

var (
	avx2Shapes      = []shape{{4, 1}, {1, 2}}
	avx2FloatShapes = []shape{{4, 1}, {2, 2}}
)

func avx2(stubs, table *strings.Builder) string {
	s := newSource()
	s.constant("nib", 0x0f0f0f0f0f0f0f0f)
	s.constant("top5", 0x1010101010101010)
	s.constant("top6", 0x3030303030303030)
	s.constant("flip", 0x8080808080808080)
	s.constant("ones", 0x0001000100010001)
	table.WriteString("\nfunc fillAVX2(ks *kernelSet) {\n")
	for i := range forms {
		shapes := avx2Shapes
		if forms[i].float() {
			shapes = avx2FloatShapes
		}
		for _, sh := range shapes {
			k := &ymm{source: s, f: &forms[i], sh: sh}
			k.write()
			declare(stubs, table, k.f, "AVX2", sh)
		}
	}
	table.WriteString("}\n")
	return s.String()
}

// ymm writes one kernel for AVX2 with FMA and F16C. A line is two halves of 8 rows; piece h is the one at 32h.
type ymm struct {
	*source
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

func (k *ymm) write() {
	name := kernelName(k.f, "AVX2", k.sh)
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
		if k.f.bits == 8 {
			k.aw = r.some(2)
		} else {
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

func (k *ymm) block() {
	switch {
	case k.f.bits == 8:
		k.start(0, 8)
		k.bytes()
		k.fold(0)
	case k.f.halves:
		k.start(0, 4)
		k.nibbles(0, 4, 2)
		k.fold(0)
		k.start(4, 8)
		k.nibbles(4, 8, 2)
		k.fold(1)
	default:
		// 8 products of a pair: 8 * 2 * 15 * 127 fit 16 bits; with a fifth bit only 4 do.
		k.start(0, 8)
		k.nibbles(0, 8, map[int]int{4: 8, 5: 4}[k.f.bits])
		k.fold(0)
	}
	if k.f.mins {
		k.minimum()
	}
}

// start sets the integer sums for quarters from..to to the correction for the weights' zero. Bytes need none: they are
// multiplied with their sign.
func (k *ymm) start(from, to int) {
	T := k.sh.tile
	for t := range T {
		a, b := k.acc[k.index(0, t, 0)], k.acc[k.index(0, t, 1)]
		switch {
		case k.f.zeroShift == 0 || k.f.bits == 8:
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

// bytes adds |w| times the activation with w's sign, which is exact even for w = -128.
func (k *ymm) bytes() {
	T := k.sh.tile
	for k4 := range 8 {
		for h := range 2 {
			k.p("VMOVDQU %d(R8), %s", k.g*k.f.lineBytes+k4*64+h*32, k.w[h])
			k.p("VPXOR flip<>(SB), %s, %s", k.w[h], k.w[h])
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

// nibbles adds quarters from..to of the block, emptying the 16-bit sums after every few.
func (k *ymm) nibbles(from, to, few int) {
	T := k.sh.tile
	for k4 := from; k4 < to; k4++ {
		for h := range 2 {
			k.p("VMOVDQU %d(R8), %s", k.g*k.f.lineBytes+k4%4*64+h*32, k.w[h])
			if k4 >= 4 {
				k.p("VPSRLD $4, %s, %s", k.w[h], k.w[h])
			}
			k.p("VPAND nib<>(SB), %s, %s", k.w[h], k.w[h])
			k.addHigh(k4, h)
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

// addHigh puts the upper bits of quarter k4 above the nibbles of half h.
func (k *ymm) addHigh(k4, h int) {
	if k.f.bits == 4 {
		return
	}
	line, op, by := highShift(k.f.bits, k4)
	k.p("VMOVDQU %d(R8), %s", k.g*k.f.lineBytes+(4+line)*64+h*32, k.tmp)
	if op != "" {
		k.p("%s $%d, %s, %s", op, by, k.tmp, k.tmp)
	}
	k.p("VPAND top%d<>(SB), %s, %s", k.f.bits, k.tmp, k.tmp)
	k.p("VPOR %s, %s, %s", k.tmp, k.w[h], k.w[h])
}

// fold adds the block's (or its half's) integer sums to the float sums.
func (k *ymm) fold(half int) {
	at := k.g * k.f.scaleBytes
	for h := range 2 {
		switch {
		case k.f.halves:
			k.p("VPMOVSXBD %d(R13), %s", at+halfScales+16*half+8*h, k.w[h])
		case k.f.super:
			k.p("VPMOVZXBD %d(R13), %s", at+superScales+8*h, k.w[h])
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

func (k *ymm) minimum() {
	at := k.g * k.f.scaleBytes
	op := "VFMADD231PS"
	for h := range 2 {
		if !k.f.super {
			k.p("VCVTPH2PS %d(SI), %s", at+32+16*h, k.w[h])
			continue
		}
		op = "VFNMADD231PS"
		k.p("VPMOVZXBD %d(R13), %s", at+superMins+8*h, k.w[h])
		k.p("VCVTDQ2PS %s, %s", k.w[h], k.w[h])
		k.p("VCVTPH2PS %d(SI), %s", at+32+16*h, k.tmp)
		k.p("VMULPS %s, %s, %s", k.tmp, k.w[h], k.w[h])
	}
	T := k.sh.tile
	for t := range T {
		k.p("VBROADCASTSS %d(DI), %s", 12*T+4*t, k.bc)
		for h := range 2 {
			k.p("%s %s, %s, %s", op, k.bc, k.w[h], k.sum[k.index(k.g, t, h)])
		}
	}
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
