package main

import "fmt"

// neon has four registers for 16 keys or columns: V16 .. V19. Sums are V0 .. V15, queries and weights V20 .. V23.
type neon struct{}

// widen loads 16 values from ptr into V16 .. V19, by way of V24 .. V26; move is ".P 64", or "" to stay. The values
// are yet to be scaled.
func (neon) widen(s *source, c cacheType, ptr string, move bool) {
	at := fmt.Sprintf("VLD1 (%s)", ptr)
	if move {
		at = fmt.Sprintf("VLD1.P %d(%s)", 16*c.bytes, ptr)
	}
	switch c.name {
	case "F32":
		s.p("%s, [V16.S4, V17.S4, V18.S4, V19.S4]", at)
	case "F16":
		s.p("%s, [V24.H8, V25.H8]", at)
		s.p("FCVTL4(24, 16)")
		s.p("FCVTL4H(24, 17)")
		s.p("FCVTL4(25, 18)")
		s.p("FCVTL4H(25, 19)")
	case "Q8":
		s.p("%s, [V24.B16]", at)
		s.p("SXTL8(24, 25)")
		s.p("SXTL8H(24, 26)")
		s.p("SXTL4(25, 16)")
		s.p("SXTL4H(25, 17)")
		s.p("SXTL4(26, 18)")
		s.p("SXTL4H(26, 19)")
		for i := range 4 {
			s.p("SCVTF4(%d, %d)", 16+i, 16+i)
		}
	}
}

// overDims is the loop over the dimension in R3; block comes before each block of a scaled type.
func (neon) overDims(s *source, c cacheType, block, body func()) {
	if !c.scaled {
		s.label("loop")
		body()
		s.p("SUBS $1, R3")
		s.p("BNE  loop")
		return
	}
	s.label("block")
	block()
	s.p("MOVD $32, R9")
	s.p("CMP  R9, R3")
	s.p("CSEL LT, R3, R9, R9")
	s.p("SUB  R9, R3")
	s.label("loop")
	body()
	s.p("SUBS $1, R9")
	s.p("BNE  loop")
	s.p("CBNZ R3, block")
}

// scores goes group by group: R2 keys, R1 queries, R0 and R4 .. R6 results, R10 scales.
func (n neon) scores(s *source, c cacheType, rows int) {
	s.p("MOVD out+0(FP), R0")
	s.p("MOVD stride+8(FP), R7")
	s.p("MOVD keys+24(FP), R2")
	if c.scaled {
		s.p("MOVD scales+32(FP), R10")
	}
	s.p("MOVD $4, R8")
	s.label("group")
	s.p("MOVD q+16(FP), R1")
	s.p("MOVD dim+40(FP), R3")
	for i := range 4 * rows {
		s.p("VEOR V%d.B16, V%d.B16, V%d.B16", i, i, i)
	}
	n.overDims(s, c, func() { s.p("VLD1.P 64(R10), [V28.S4, V29.S4, V30.S4, V31.S4]") }, func() {
		n.widen(s, c, "R2", true)
		if c.scaled {
			for i := range 4 {
				s.p("FMUL4(%d, %d, %d)", 28+i, 16+i, 16+i)
			}
		}
		switch rows {
		case 4:
			s.p("VLD1.P 16(R1), [V20.S4]")
			for r := range rows {
				s.fma(r, 20, r)
			}
		default:
			for r := range rows {
				s.p("FMOVS.P 4(R1), F%d", 20+r)
			}
			for r := range rows {
				s.fma(0, 20+r, r)
			}
		}
	})
	s.p("MOVD R0, R4")
	for r := range rows {
		s.p("VST1 [V%d.S4, V%d.S4, V%d.S4, V%d.S4], (R4)", 4*r, 4*r+1, 4*r+2, 4*r+3)
		if r < rows-1 {
			s.p("ADD  R7<<2, R4")
		}
	}
	s.p("ADD  $64, R0")
	s.p("SUBS $1, R8")
	s.p("BNE  group")
	s.p("RET")
}

// fma adds V16 .. V19 times lane of a register to the four sums of a row.
func (s *source) fma(lane, reg, row int) {
	for i := range 4 {
		s.p("FMLAI(%d, %d, %d, %d)", lane, reg, 16+i, 4*row+i)
	}
}

// mix takes 16 columns at a time: R2 values, R1 and R4 .. R6 weights, R0 sums, R14 scales.
func (n neon) mix(s *source, c cacheType, rows int) {
	s.p("MOVD acc+0(FP), R0")
	s.p("MOVD stride+16(FP), R7")
	s.p("MOVD values+24(FP), R8")
	s.p("MOVD dim+40(FP), R9")
	s.p("LSL  $2, R9, R10") // bytes of a sum
	s.p("LSL  $%d, R9, R15", log2(c.bytes))
	if c.scaled {
		s.p("ADD  $31, R9, R13")
		s.p("LSR  $5, R13, R13")
		s.p("LSL  $2, R13, R13")
	}
	s.label("columns")
	if c.scaled { // of which block
		s.p("MOVD dim+40(FP), R14")
		s.p("SUB  R9, R14")
		s.p("LSR  $5, R14, R14")
		s.p("MOVD scales+32(FP), R11")
		s.p("ADD  R14<<2, R11, R14")
	}
	weights := []string{"R1", "R4", "R5", "R6"}
	s.p("MOVD R8, R2")
	s.p("MOVD w+8(FP), R1")
	for r := 1; r < rows; r++ {
		s.p("ADD  R7<<2, %s, %s", weights[r-1], weights[r])
	}
	s.p("MOVD n+48(FP), R3")
	sums := func(op string) {
		s.p("MOVD R0, R12")
		for r := range rows {
			regs := fmt.Sprintf("[V%d.S4, V%d.S4, V%d.S4, V%d.S4]", 4*r, 4*r+1, 4*r+2, 4*r+3)
			if op == "VLD1" {
				s.p("VLD1 (R12), %s", regs)
			} else {
				s.p("VST1 %s, (R12)", regs)
			}
			if r < rows-1 {
				s.p("ADD  R10, R12")
			}
		}
	}
	sums("VLD1")
	s.label("loop")
	n.widen(s, c, "R2", false)
	if c.scaled {
		s.p("FMOVS (R14), F27")
		s.p("ADD  R13, R14")
		for i := range 4 {
			s.p("FMULI(0, 27, %d, %d)", 16+i, 16+i)
		}
	}
	for r := range rows {
		s.p("FMOVS.P 4(%s), F%d", weights[r], 20+r)
	}
	for r := range rows {
		s.fma(0, 20+r, r)
	}
	s.p("ADD  R15, R2")
	s.p("SUBS $1, R3")
	s.p("BNE  loop")
	sums("VST1")
	s.p("ADD  $64, R0")
	s.p("ADD  $%d, R8", 16*c.bytes)
	s.p("SUBS $16, R9")
	s.p("BNE  columns")
	s.p("RET")
}
