package main

import (
	"fmt"
	"strings"
)

// Go's assembler knows no instruction of AMX, so they are written as bytes: VEX.128.pp.0F38.W0, opcode, ModRM. A register of the
// general ones is its number here.
const (
	ax = 0
	bx = 3
	si = 6
	di = 7
	r8 = 8
)

// The prefix pp of VEX.
const (
	none = 0
	pF3  = 2
	pF2  = 3
)

// vex is an instruction with a tile (or an extension of the opcode) in reg, another in vvvv, and rest, which begins with the
// ModRM but for reg. Of base and index only the upper bit is used.
func vex(pp, opcode, vvvv, reg, base, index int, rest ...byte) []byte {
	xb := byte(0xe2) &^ byte(index>>3<<6|base>>3<<5)
	return append([]byte{0xc4, xb, byte((15-vvvv)<<3 | pp), byte(opcode), rest[0] | byte(reg<<3)}, rest[1:]...)
}

// tileMove is a load or store of tile t: its row r is at base + r*index + disp.
func tileMove(pp, t, base, index, disp int) []byte {
	return vex(pp, 0x4b, 0, t, base, index, 0x84, byte(index&7<<3|base&7), byte(disp), byte(disp>>8), byte(disp>>16), byte(disp>>24))
}

func ldtilecfg(base int) []byte                  { return vex(none, 0x49, 0, 0, base, 0, byte(base&7)) }
func tilerelease() []byte                        { return vex(none, 0x49, 0, 0, 0, 0, 0xc0) }
func tilezero(t int) []byte                      { return vex(pF2, 0x49, 0, t, 0, 0, 0xc0) }
func tileloadd(t, base, index, disp int) []byte  { return tileMove(pF2, t, base, index, disp) }
func tilestored(t, base, index, disp int) []byte { return tileMove(pF3, t, base, index, disp) }
func tdpbssd(sum, left, right int) []byte        { return vex(pF2, 0x5e, right, sum, 0, 0, 0xc0|byte(left)) }

// bytes writes an instruction as bytes.
func (s *source) bytes(code []byte, comment string, args ...any) {
	parts := make([]string, len(code))
	for i, b := range code {
		parts[i] = fmt.Sprintf("BYTE $%#02x", b)
	}
	s.p("%s // %s", strings.Join(parts, "; "), fmt.Sprintf(comment, args...))
}
