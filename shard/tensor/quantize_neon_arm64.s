#include "textflag.h"
#include "neon_arm64.h"

// func quantizeNEON(x *float32, blocks int, dst *byte, stride int)
//
// quantizeTwin for blocks of 32 values at x; the fields of a block are stride bytes apart.
TEXT ·quantizeNEON(SB), NOSPLIT, $0-32
	MOVD  x+0(FP), R0
	MOVD  blocks+8(FP), R1
	MOVD  dst+16(FP), R2
	MOVD  stride+24(FP), R3
	MOVD  $0x42fe0000, R4      // 127
	FMOVS R4, F30
	MOVD  $0x3f800000, R4      // 1
	FMOVS R4, F31
	MOVD  $0x7fffffff, R4
	VDUP  R4, V29.S4
	VMOVI $1, V28.B16

loop:
	VLD1.P 64(R0), [V0.B16, V1.B16, V2.B16, V3.B16]
	VLD1.P 64(R0), [V4.B16, V5.B16, V6.B16, V7.B16]

	// The largest magnitude, as an integer.
	VAND  V29.B16, V0.B16, V16.B16
	VAND  V29.B16, V1.B16, V17.B16
	VAND  V29.B16, V2.B16, V18.B16
	VAND  V29.B16, V3.B16, V19.B16
	VAND  V29.B16, V4.B16, V20.B16
	VAND  V29.B16, V5.B16, V21.B16
	VAND  V29.B16, V6.B16, V22.B16
	VAND  V29.B16, V7.B16, V23.B16
	VUMAX V16.S4, V20.S4, V16.S4
	VUMAX V17.S4, V21.S4, V17.S4
	VUMAX V18.S4, V22.S4, V18.S4
	VUMAX V19.S4, V23.S4, V19.S4
	VUMAX V16.S4, V18.S4, V16.S4
	VUMAX V17.S4, V19.S4, V17.S4
	VUMAX V16.S4, V17.S4, V16.S4
	UMAXV4(16, 16)
	FMOVS F16, R4
	MOVD  $0x7f800000, R5
	CMPW  R5, R4
	BHS   notfinite
	FDIVS F30, F16, F24        // d
	FMOVS F24, R4
	MOVD  $0x00800000, R5
	CMPW  R5, R4
	BLO   zero
	FDIVS F24, F31, F25        // 1 / d

	FMULI(0, 25, 0, 0)
	FMULI(0, 25, 1, 1)
	FMULI(0, 25, 2, 2)
	FMULI(0, 25, 3, 3)
	FMULI(0, 25, 4, 4)
	FMULI(0, 25, 5, 5)
	FMULI(0, 25, 6, 6)
	FMULI(0, 25, 7, 7)
	FCVTNS4(0, 0)
	FCVTNS4(1, 1)
	FCVTNS4(2, 2)
	FCVTNS4(3, 3)
	FCVTNS4(4, 4)
	FCVTNS4(5, 5)
	FCVTNS4(6, 6)
	FCVTNS4(7, 7)

	// The low bytes of the dwords: they are within -127..127.
	VUZP1 V1.H8, V0.H8, V0.H8
	VUZP1 V3.H8, V2.H8, V2.H8
	VUZP1 V5.H8, V4.H8, V4.H8
	VUZP1 V7.H8, V6.H8, V6.H8
	VUZP1 V2.B16, V0.B16, V0.B16
	VUZP1 V6.B16, V4.B16, V1.B16

	VEOR  V16.B16, V16.B16, V16.B16
	VEOR  V17.B16, V17.B16, V17.B16
	SDOT(28, 0, 16)
	SDOT(28, 1, 17)
	VADDV V16.S4, V16
	VADDV V17.S4, V17
	FMOVS F16, R4              // sum of the first 16
	FMOVS F17, R5
	ADDW  R4, R5, R5
	SCVTFWS R5, F26
	FMULS F24, F26, F26        // d * sum
	NEGW  R4, R4
	NEGW  R5, R5

store:
	FMOVS F24, (R2)
	ADD   R3, R2
	MOVW  R5, (R2)
	ADD   R3, R2
	MOVW  R4, (R2)
	ADD   R3, R2
	FMOVS F26, (R2)
	ADD   R3, R2
	VST1.P V0.S[0], (R2)(R3)
	VST1.P V0.S[1], (R2)(R3)
	VST1.P V0.S[2], (R2)(R3)
	VST1.P V0.S[3], (R2)(R3)
	VST1.P V1.S[0], (R2)(R3)
	VST1.P V1.S[1], (R2)(R3)
	VST1.P V1.S[2], (R2)(R3)
	VST1.P V1.S[3], (R2)(R3)
	SUBS  $1, R1, R1
	BNE   loop
	RET

// The rare blocks: no values at all.
notfinite:
	MOVD  $0x7fc00000, R4
	FMOVS R4, F24
	B     empty

zero:
	FMOVS ZR, F24

empty:
	FMOVS F24, F26             // NaN * 0, or 0 * 0
	VEOR  V0.B16, V0.B16, V0.B16
	VEOR  V1.B16, V1.B16, V1.B16
	MOVD  $0, R4
	MOVD  $0, R5
	B     store
