package main

import (
	"fmt"
	"testing"
)

// The bytes are what GNU as 2.40 writes for the instruction beside them, told to write displacements of 32 bits ({disp32}).
func TestAMXEncodings(t *testing.T) {
	const cx, r9, r10, r11 = 1, 9, 10, 11
	for _, c := range []struct {
		instruction string
		got         []byte
		want        string
	}{
		{"ldtilecfg (%rax)", ldtilecfg(ax), "c4 e2 78 49 00"},
		{"ldtilecfg (%r9)", ldtilecfg(r9), "c4 c2 78 49 01"},
		{"tilerelease", tilerelease(), "c4 e2 78 49 c0"},
		{"tilezero %tmm0", tilezero(0), "c4 e2 7b 49 c0"},
		{"tilezero %tmm7", tilezero(7), "c4 e2 7b 49 f8"},
		{"tileloadd 0x100(%rdi,%r8,1),%tmm2", tileloadd(2, di, r8, 0x100), "c4 a2 7b 4b 94 07 00 01 00 00"},
		{"tileloadd 0x410(%rdi,%r8,1),%tmm3", tileloadd(3, di, r8, 0x410), "c4 a2 7b 4b 9c 07 10 04 00 00"},
		{"tileloadd 0x40(%rsi,%rax,1),%tmm4", tileloadd(4, si, ax, 0x40), "c4 e2 7b 4b a4 06 40 00 00 00"},
		{"tileloadd -0x4(%r10,%r9,1),%tmm5", tileloadd(5, r10, r9, -4), "c4 82 7b 4b ac 0a fc ff ff ff"},
		{"tilestored %tmm0,0x0(%rbx,%rax,1)", tilestored(0, bx, ax, 0), "c4 e2 7a 4b 84 03 00 00 00 00"},
		{"tilestored %tmm1,0x400(%rbx,%rax,1)", tilestored(1, bx, ax, 0x400), "c4 e2 7a 4b 8c 03 00 04 00 00"},
		{"tilestored %tmm6,0x10000(%r11,%rcx,1)", tilestored(6, r11, cx, 0x10000), "c4 c2 7a 4b b4 0b 00 00 01 00"},
		{"tdpbssd %tmm4,%tmm2,%tmm0", tdpbssd(0, 2, 4), "c4 e2 5b 5e c2"},
		{"tdpbssd %tmm5,%tmm3,%tmm1", tdpbssd(1, 3, 5), "c4 e2 53 5e cb"},
		{"tdpbssd %tmm0,%tmm7,%tmm6", tdpbssd(6, 7, 0), "c4 e2 7b 5e f7"},
	} {
		if got := fmt.Sprintf("% x", c.got); got != c.want {
			t.Errorf("%s: % x, as writes %s", c.instruction, c.got, c.want)
		}
	}
}
