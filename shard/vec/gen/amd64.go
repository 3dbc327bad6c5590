package main

import "fmt"

// What both sets of amd64 share. Registers: SI reads keys or values, DX queries or weights, DI is where results go; R8 and
// R9 are once and three times the stride of results or weights, in bytes.

// rowAt is row r of something with strides in one and three.
func rowAt(base, one, three string, r int) string {
	switch r {
	case 0:
		return fmt.Sprintf("(%s)", base)
	case 3:
		return fmt.Sprintf("(%s)(%s*1)", base, three)
	}
	return fmt.Sprintf("(%s)(%s*%d)", base, one, r)
}

// widen loads lanes of at most 16 or 8 values at off(at) into reg, a Z or Y register. A scale, in a register or
// memory, multiplies those of a scaled type.
func widen(s *source, c cacheType, at, reg, scale string) {
	switch c.name {
	case "F32":
		s.p("VMOVUPS %s, %s", at, reg)
	case "F16":
		s.p("VCVTPH2PS %s, %s", at, reg)
	case "Q8":
		s.p("VPMOVSXBD %s, %s", at, reg)
		s.p("VCVTDQ2PS %s, %s", reg, reg)
		s.p("VMULPS %s, %s, %s", scale, reg, reg)
	}
}

// fetch asks for what comes a chunk later: R12 goes ahead of SI.
func fetch(s *source, bytes int) {
	for i := 0; i < bytes; i += 64 {
		s.p("PREFETCHT1 %d(R12)", i)
	}
	s.p("ADDQ $%d, R12", bytes)
}

// overDims writes the loop over a vector's dimension in R9, block by block where they have scales: block then loads those.
func overDims(s *source, c cacheType, block, body func()) {
	if !c.scaled {
		s.label("loop")
		body()
		s.p("DECQ R9")
		s.p("JNZ loop")
		return
	}
	s.label("block")
	block()
	s.p("MOVQ $32, CX")
	s.p("CMPQ R9, CX")
	s.p("CMOVQLT R9, CX")
	s.p("SUBQ CX, R9")
	s.label("loop")
	body()
	s.p("DECQ CX")
	s.p("JNZ loop")
	s.p("TESTQ R9, R9")
	s.p("JNZ block")
}

// strides loads the arguments that the mixes share: DI, R8 and R9 of weights, R10 and R11 of sums, BX the values, R12 the
// columns that are left, R13 the bytes of a value, AX its scales, R15 the bytes of these.
func mixStrides(s *source, c cacheType, rows int) {
	s.p("MOVQ acc+0(FP), DI")
	s.p("MOVQ stride+16(FP), R8")
	s.p("SHLQ $2, R8")
	s.p("LEAQ (R8)(R8*2), R9")
	s.p("MOVQ values+24(FP), BX")
	s.p("MOVQ dim+40(FP), R12")
	s.p("MOVQ R12, R10")
	s.p("SHLQ $2, R10")
	s.p("LEAQ (R10)(R10*2), R11")
	s.p("MOVQ R12, R13")
	if c.bytes > 1 {
		s.p("SHLQ $%d, R13", log2(c.bytes))
	}
	if c.scaled {
		s.p("LEAQ 31(R12), R15")
		s.p("SHRQ $5, R15")
		s.p("SHLQ $2, R15")
	}
}

// columns writes the loop over positions for columns of width values, as long as so many are left. vector is the values
// of a register, acc, value and scale name registers; tmp holds weights.
func columns(s *source, c cacheType, rows, width, vector int, acc func(row, i int) string, value, scale func(i int) string, tmp func(row int) string) {
	vectors, bytes := width/vector, vector*c.bytes
	s.label("columns%d", width)
	if c.scaled { // before R12 changes: it says which block it is
		s.p("MOVQ dim+40(FP), AX")
		s.p("SUBQ R12, AX")
		s.p("SHRQ $5, AX")
		s.p("SHLQ $2, AX")
		s.p("ADDQ scales+32(FP), AX")
	}
	s.p("SUBQ $%d, R12", width)
	s.p("JLT under%d", width)
	s.p("MOVQ BX, SI")
	s.p("MOVQ w+8(FP), DX")
	s.p("MOVQ n+48(FP), CX")
	each := func(instr func(at, reg string)) {
		for r := range rows {
			for i := range vectors {
				instr(fmt.Sprintf("%d", 4*vector*i)+rowAt("DI", "R10", "R11", r), acc(r, i))
			}
		}
	}
	each(func(at, reg string) { s.p("VMOVUPS %s, %s", at, reg) })
	s.label("loop%d", width)
	if c.scaled {
		for b := range (width + 31) / 32 {
			s.p("VBROADCASTSS %d(AX), %s", 4*b, scale(b))
		}
		s.p("ADDQ R15, AX")
	}
	direct := c.name == "F32" && rows == 1
	if direct {
		s.p("VBROADCASTSS (DX), %s", tmp(0))
		for i := range vectors {
			s.p("VFMADD231PS %d(SI), %s, %s", bytes*i, tmp(0), acc(0, i))
		}
	} else {
		for i := range vectors {
			widen(s, c, fmt.Sprintf("%d(SI)", bytes*i), value(i), scale(vector*i/32))
		}
		for r := range rows {
			s.p("VBROADCASTSS %s, %s", rowAt("DX", "R8", "R9", r), tmp(r))
			for i := range vectors {
				s.p("VFMADD231PS %s, %s, %s", value(i), tmp(r), acc(r, i))
			}
		}
	}
	s.p("ADDQ $4, DX")
	s.p("ADDQ R13, SI")
	s.p("DECQ CX")
	s.p("JNZ loop%d", width)
	each(func(at, reg string) { s.p("VMOVUPS %s, %s", reg, at) })
	s.p("ADDQ $%d, DI", 4*width)
	s.p("ADDQ $%d, BX", width*c.bytes)
	s.p("JMP columns%d", width)
	s.label("under%d", width)
	s.p("ADDQ $%d, R12", width)
}

func finish(s *source) {
	s.p("VZEROUPPER")
	s.p("RET")
}

// avx512 has a register for the 16 keys of a group, or 16 columns of a value.
type avx512 struct{}

func (avx512) scores(s *source, c cacheType, rows int) {
	acc := func(r, g int) string { return fmt.Sprintf("Z%d", 4*r+g) }
	s.p("MOVQ q+16(FP), DX")
	s.p("MOVQ keys+24(FP), SI")
	s.p("MOVQ dim+40(FP), R9")
	s.p("MOVQ R9, R10")
	s.p("SHLQ $%d, R10", log2(16*c.bytes))
	s.p("LEAQ (R10)(R10*2), R11")
	s.p("LEAQ (SI)(R10*4), R12")
	if c.scaled {
		s.p("MOVQ scales+32(FP), BX")
		s.p("LEAQ 31(R9), AX")
		s.p("SHRQ $5, AX")
		s.p("SHLQ $6, AX")
		s.p("LEAQ (AX)(AX*2), R13")
	}
	for r := range rows {
		for g := range 4 {
			s.p("VPXORD %s, %s, %s", acc(r, g), acc(r, g), acc(r, g))
		}
	}
	overDims(s, c, func() {
		for g := range 4 {
			s.p("VMOVUPS %s, Z%d", rowAt("BX", "AX", "R13", g), 24+g)
		}
		s.p("ADDQ $64, BX")
	}, func() {
		fetch(s, 64*c.bytes)
		for g := range 4 {
			widen(s, c, rowAt("SI", "R10", "R11", g), fmt.Sprintf("Z%d", 16+g), fmt.Sprintf("Z%d", 24+g))
		}
		for r := range rows {
			s.p("VBROADCASTSS %d(DX), Z%d", 4*r, 20+r)
			for g := range 4 {
				s.p("VFMADD231PS Z%d, Z%d, %s", 16+g, 20+r, acc(r, g))
			}
		}
		s.p("ADDQ $%d, DX", 4*rows)
		s.p("ADDQ $%d, SI", 16*c.bytes)
	})
	s.p("MOVQ out+0(FP), DI")
	s.p("MOVQ stride+8(FP), R8")
	s.p("SHLQ $2, R8")
	for r := range rows {
		for g := range 4 {
			s.p("VMOVUPS %s, %d(DI)", acc(r, g), 64*g)
		}
		if r < rows-1 {
			s.p("ADDQ R8, DI")
		}
	}
	finish(s)
}

func (avx512) mix(s *source, c cacheType, rows int) {
	mixStrides(s, c, rows)
	for _, width := range []int{64, 32, 16} {
		columns(s, c, rows, width, 16,
			func(r, i int) string { return fmt.Sprintf("Z%d", 4*r+i) },
			func(i int) string { return fmt.Sprintf("Z%d", 16+i) },
			func(i int) string { return fmt.Sprintf("Z%d", 24+i) },
			func(r int) string { return fmt.Sprintf("Z%d", 20+r) })
	}
	finish(s)
}

// avx2 has two registers for 16 keys or columns, and half as many registers.
type avx2 struct{}

func (avx2) scores(s *source, c cacheType, rows int) {
	if rows == 1 {
		oneScore(s, c)
		return
	}
	s.p("MOVQ out+0(FP), DI")
	s.p("MOVQ stride+8(FP), R8")
	s.p("SHLQ $2, R8")
	s.p("LEAQ (R8)(R8*2), R10")
	s.p("MOVQ keys+24(FP), SI")
	s.p("MOVQ $4, R11")
	s.p("MOVQ dim+40(FP), R12")
	s.p("SHLQ $%d, R12", log2(64*c.bytes))
	s.p("ADDQ SI, R12")
	if c.scaled {
		s.p("MOVQ scales+32(FP), BX")
	}
	s.label("group")
	s.p("MOVQ q+16(FP), DX")
	s.p("MOVQ dim+40(FP), R9")
	for i := range 2 * rows {
		s.p("VXORPS Y%d, Y%d, Y%d", i, i, i)
	}
	overDims(s, c, func() {
		s.p("VMOVUPS (BX), Y14")
		s.p("VMOVUPS 32(BX), Y15")
		s.p("ADDQ $64, BX")
	}, func() {
		s.p("PREFETCHT1 (R12)")
		s.p("ADDQ $%d, R12", 16*c.bytes)
		widen(s, c, "(SI)", "Y8", "Y14")
		widen(s, c, fmt.Sprintf("%d(SI)", 8*c.bytes), "Y9", "Y15")
		for r := range rows {
			s.p("VBROADCASTSS %d(DX), Y%d", 4*r, 10+r)
			s.p("VFMADD231PS Y8, Y%d, Y%d", 10+r, 2*r)
			s.p("VFMADD231PS Y9, Y%d, Y%d", 10+r, 2*r+1)
		}
		s.p("ADDQ $%d, DX", 4*rows)
		s.p("ADDQ $%d, SI", 16*c.bytes)
	})
	for r := range rows {
		s.p("VMOVUPS Y%d, %s", 2*r, rowAt("DI", "R8", "R10", r))
		s.p("VMOVUPS Y%d, 32%s", 2*r+1, rowAt("DI", "R8", "R10", r))
	}
	s.p("ADDQ $64, DI")
	s.p("DECQ R11")
	s.p("JNZ group")
	finish(s)
}

// oneScore multiplies all four groups at once: their sums are what hides each other's latency.
func oneScore(s *source, c cacheType) {
	s.p("MOVQ q+16(FP), DX")
	s.p("MOVQ keys+24(FP), SI")
	s.p("MOVQ dim+40(FP), R9")
	s.p("MOVQ R9, R10")
	s.p("SHLQ $%d, R10", log2(16*c.bytes))
	s.p("LEAQ (R10)(R10*2), R11")
	s.p("LEAQ (SI)(R10*4), R12")
	if c.scaled {
		s.p("MOVQ scales+32(FP), BX")
		s.p("LEAQ 31(R9), AX")
		s.p("SHRQ $5, AX")
		s.p("SHLQ $6, AX")
		s.p("LEAQ (AX)(AX*2), R13")
		s.p("SUBQ $64, BX")
	}
	for i := range 8 {
		s.p("VXORPS Y%d, Y%d, Y%d", i, i, i)
	}
	overDims(s, c, func() { s.p("ADDQ $64, BX") }, func() {
		fetch(s, 64*c.bytes)
		s.p("VBROADCASTSS (DX), Y8")
		for i := range 8 {
			at := fmt.Sprintf("%d", 8*c.bytes*(i%2)) + rowAt("SI", "R10", "R11", i/2)
			if c.name == "F32" {
				s.p("VFMADD231PS %s, Y8, Y%d", at, i)
				continue
			}
			w := fmt.Sprintf("Y%d", 9+i%4)
			widen(s, c, at, w, fmt.Sprintf("%d", 32*(i%2))+rowAt("BX", "AX", "R13", i/2))
			s.p("VFMADD231PS %s, Y8, Y%d", w, i)
		}
		s.p("ADDQ $4, DX")
		s.p("ADDQ $%d, SI", 16*c.bytes)
	})
	s.p("MOVQ out+0(FP), DI")
	for i := range 8 {
		s.p("VMOVUPS Y%d, %d(DI)", i, 32*i)
	}
	finish(s)
}

func (avx2) mix(s *source, c cacheType, rows int) {
	mixStrides(s, c, rows)
	widths := []int{16}
	if rows == 1 {
		widths = []int{32, 16}
	}
	for _, width := range widths {
		columns(s, c, rows, width, 8,
			func(r, i int) string { return fmt.Sprintf("Y%d", 2*r+i) },
			func(i int) string { return fmt.Sprintf("Y%d", 8+i) },
			func(int) string { return "Y14" },
			func(r int) string {
				if rows == 1 {
					return "Y15"
				}
				return fmt.Sprintf("Y%d", 10+r)
			})
	}
	finish(s)
}
