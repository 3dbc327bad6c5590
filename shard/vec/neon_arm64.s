#include "textflag.h"
#include "neon_arm64.h"

// TREE adds the sixteen lanes of V0 .. V3 as the fixed tree into F0.
#define TREE \
	FADD4(2, 0, 0)                   \
	FADD4(3, 1, 1)                   \
	FADD4(1, 0, 0)                   \
	VEXT $8, V0.B16, V0.B16, V1.B16  \
	FADD4(1, 0, 0)                   \
	FADDP2(0, 0)

// func sumSquaresNEON(x *float32, n int) float32
TEXT ·sumSquaresNEON(SB), NOSPLIT, $0-20
	MOVD x+0(FP), R0
	MOVD n+8(FP), R1
	VEOR V0.B16, V0.B16, V0.B16
	VEOR V1.B16, V1.B16, V1.B16
	VEOR V2.B16, V2.B16, V2.B16
	VEOR V3.B16, V3.B16, V3.B16
	SUBS $16, R1
	BLT  done
loop:
	VLD1.P 64(R0), [V4.S4, V5.S4, V6.S4, V7.S4]
	FMLA4(4, 4, 0)
	FMLA4(5, 5, 1)
	FMLA4(6, 6, 2)
	FMLA4(7, 7, 3)
	SUBS $16, R1
	BGE  loop
done:
	TREE
	FMOVS F0, ret+16(FP)
	RET

// func scaleMulNEON(dst, x, w *float32, n int, s float32)
TEXT ·scaleMulNEON(SB), NOSPLIT, $0-36
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD w+16(FP), R2
	MOVD n+24(FP), R3
	FMOVS s+32(FP), F16
	SUBS $16, R3
	BLT  done
loop:
	VLD1.P 64(R1), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1.P 64(R2), [V4.S4, V5.S4, V6.S4, V7.S4]
	FMULI(0, 16, 0, 0)
	FMULI(0, 16, 1, 1)
	FMULI(0, 16, 2, 2)
	FMULI(0, 16, 3, 3)
	FMUL4(4, 0, 0)
	FMUL4(5, 1, 1)
	FMUL4(6, 2, 2)
	FMUL4(7, 3, 3)
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	SUBS $16, R3
	BGE  loop
done:
	RET

// func scaleAddNEON(dst, x, y *float32, n int, s float32)
TEXT ·scaleAddNEON(SB), NOSPLIT, $0-36
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD y+16(FP), R2
	MOVD n+24(FP), R3
	FMOVS s+32(FP), F16
	SUBS $16, R3
	BLT  done
loop:
	VLD1.P 64(R1), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1.P 64(R2), [V4.S4, V5.S4, V6.S4, V7.S4]
	FMLAI(0, 16, 0, 4)
	FMLAI(0, 16, 1, 5)
	FMLAI(0, 16, 2, 6)
	FMLAI(0, 16, 3, 7)
	VST1.P [V4.S4, V5.S4, V6.S4, V7.S4], 64(R0)
	SUBS $16, R3
	BGE  loop
done:
	RET

// func addNEON(dst, x *float32, n int)
TEXT ·addNEON(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD n+16(FP), R2
	SUBS $16, R2
	BLT  done
loop:
	VLD1 (R0), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1.P 64(R1), [V4.S4, V5.S4, V6.S4, V7.S4]
	FADD4(4, 0, 0)
	FADD4(5, 1, 1)
	FADD4(6, 2, 2)
	FADD4(7, 3, 3)
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	SUBS $16, R2
	BGE  loop
done:
	RET

// func scaleNEON(x *float32, n int, s float32)
TEXT ·scaleNEON(SB), NOSPLIT, $0-20
	MOVD x+0(FP), R0
	MOVD n+8(FP), R1
	FMOVS s+16(FP), F16
	SUBS $16, R1
	BLT  done
loop:
	VLD1 (R0), [V0.S4, V1.S4, V2.S4, V3.S4]
	FMULI(0, 16, 0, 0)
	FMULI(0, 16, 1, 1)
	FMULI(0, 16, 2, 2)
	FMULI(0, 16, 3, 3)
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	SUBS $16, R1
	BGE  loop
done:
	RET

// func maximumNEON(x *float32, n int) float32
TEXT ·maximumNEON(SB), NOSPLIT, $0-20
	MOVD x+0(FP), R0
	MOVD n+8(FP), R1
	MOVD $0xff800000, R2      // -Inf
	VDUP R2, V0.S4
	VDUP R2, V1.S4
	VDUP R2, V2.S4
	VDUP R2, V3.S4
	SUBS $16, R1
	BLT  done
loop:
	VLD1.P 64(R0), [V4.S4, V5.S4, V6.S4, V7.S4]
	FMAX4(4, 0, 0)
	FMAX4(5, 1, 1)
	FMAX4(6, 2, 2)
	FMAX4(7, 3, 3)
	SUBS $16, R1
	BGE  loop
done:
	FMAX4(1, 0, 0)
	FMAX4(3, 2, 2)
	FMAX4(2, 0, 0)
	FMAXV4(0, 0)
	FMOVS F0, ret+16(FP)
	RET

// Constants of Exp, as in twin.go: three vectors.
DATA expc<>+0(SB)/4, $-87.0
DATA expc<>+4(SB)/4, $88.0
DATA expc<>+8(SB)/4, $1.44269504088896341
DATA expc<>+12(SB)/4, $-0.693359375
DATA expc<>+16(SB)/4, $2.12194440e-4
DATA expc<>+20(SB)/4, $12582912.0
DATA expc<>+24(SB)/4, $1.0
DATA expc<>+28(SB)/4, $1.9875691500e-4
DATA expc<>+32(SB)/4, $1.3981999507e-3
DATA expc<>+36(SB)/4, $8.3334519073e-3
DATA expc<>+40(SB)/4, $4.1665795894e-2
DATA expc<>+44(SB)/4, $1.6666665459e-1
DATA expc<>+48(SB)/4, $5.0000001201e-1
GLOBL expc<>(SB), RODATA|NOPTR, $52

// EXPCONST loads what EXP needs: V30, V31 with a constant a lane, V20 .. V29 with one each. R8 is lost.
#define EXPCONST \
	MOVD $expc<>(SB), R8     \
	FMOVQ (R8), F30          \
	FMOVQ 16(R8), F31        \
	VDUP V30.S[0], V20.S4    \
	VDUP V30.S[1], V21.S4    \
	VDUP V31.S[1], V22.S4    \
	VDUP V31.S[2], V23.S4    \
	VDUP V31.S[3], V24.S4    \
	ADD  $32, R8             \
	VLD1R.P 4(R8), [V25.S4]  \
	VLD1R.P 4(R8), [V26.S4]  \
	VLD1R.P 4(R8), [V27.S4]  \
	VLD1R.P 4(R8), [V28.S4]  \
	VLD1R (R8), [V29.S4]

// EXP2 replaces vectors a and b by their exponentials, by way of V4 .. V11: the steps of Exp, each for both. Its first
// comparison finds what is below the range, which a NaN is not. The polynomial goes from V8 to V10 and back.
#define EXP2(a, b) \
	FCMGT4(a, 20, 4) \
	FCMGT4(b, 20, 5)                \
	FMIN4(21, a, a)                 \
	FMIN4(21, b, b)                 \
	VMOV V22.B16, V6.B16            \
	VMOV V22.B16, V7.B16            \
	FMLAI(2, 30, a, 6) \
	FMLAI(2, 30, b, 7)              \
	FSUB4(22, 6, 8) \
	FSUB4(22, 7, 9)                 \
	FMLAI(3, 30, 8, a) \
	FMLAI(3, 30, 9, b)              \
	FMLAI(0, 31, 8, a)              \
	FMLAI(0, 31, 9, b)              \
	VMOV V25.B16, V8.B16 \
	VMOV V25.B16, V9.B16            \
	FMLA4(a, 24, 8)                 \
	FMLA4(b, 24, 9)                 \
	VMOV V26.B16, V10.B16           \
	VMOV V26.B16, V11.B16           \
	FMLA4(a, 8, 10)                 \
	FMLA4(b, 9, 11)                 \
	VMOV V27.B16, V8.B16            \
	VMOV V27.B16, V9.B16            \
	FMLA4(a, 10, 8)                 \
	FMLA4(b, 11, 9)                 \
	VMOV V28.B16, V10.B16           \
	VMOV V28.B16, V11.B16           \
	FMLA4(a, 8, 10)                 \
	FMLA4(b, 9, 11)                 \
	VMOV V29.B16, V8.B16            \
	VMOV V29.B16, V9.B16            \
	FMLA4(a, 10, 8)                 \
	FMLA4(b, 11, 9)                 \
	FMUL4(a, a, 10) \
	FMUL4(b, b, 11)                 \
	FMLA4(10, 8, a)                 \
	FMLA4(11, 9, b)                 \
	FADD4(23, a, a)                 \
	FADD4(23, b, b)                 \
	VSHL $23, V6.S4, V6.S4 \
	VSHL $23, V7.S4, V7.S4          \
	VADD V23.S4, V6.S4, V6.S4       \
	VADD V23.S4, V7.S4, V7.S4       \
	FMUL4(6, a, a)                  \
	FMUL4(7, b, b)                  \
	BIC16(4, a, a)                  \
	BIC16(5, b, b)

// func siluMulNEON(dst, gate, up *float32, n int)
TEXT ·siluMulNEON(SB), NOSPLIT, $0-32
	MOVD dst+0(FP), R0
	MOVD gate+8(FP), R1
	MOVD up+16(FP), R2
	MOVD n+24(FP), R3
	EXPCONST
	SUBS $8, R3
	BLT  done
loop:
	VLD1.P 32(R1), [V12.S4, V13.S4]
	VLD1.P 32(R2), [V14.S4, V15.S4]
	FNEG4(12, 0)
	FNEG4(13, 1)
	EXP2(0, 1)
	FADD4(23, 0, 0)
	FADD4(23, 1, 1)
	FDIV4(0, 12, 0)
	FDIV4(1, 13, 1)
	FMUL4(14, 0, 0)
	FMUL4(15, 1, 1)
	VST1.P [V0.S4, V1.S4], 32(R0)
	SUBS $8, R3
	BGE  loop
done:
	RET

// func expSumNEON(x *float32, n int, shift float32) float32
TEXT ·expSumNEON(SB), NOSPLIT, $0-28
	MOVD x+0(FP), R0
	MOVD n+8(FP), R1
	FMOVS shift+16(FP), F19
	VDUP V19.S[0], V19.S4
	EXPCONST
	VEOR V12.B16, V12.B16, V12.B16
	VEOR V13.B16, V13.B16, V13.B16
	VEOR V14.B16, V14.B16, V14.B16
	VEOR V15.B16, V15.B16, V15.B16
	SUBS $16, R1
	BLT  done
loop:
	VLD1 (R0), [V0.S4, V1.S4, V2.S4, V3.S4]
	FSUB4(19, 0, 0)
	FSUB4(19, 1, 1)
	FSUB4(19, 2, 2)
	FSUB4(19, 3, 3)
	EXP2(0, 1)
	EXP2(2, 3)
	FADD4(0, 12, 12)
	FADD4(1, 13, 13)
	FADD4(2, 14, 14)
	FADD4(3, 15, 15)
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	SUBS $16, R1
	BGE  loop
done:
	VMOV V12.B16, V0.B16
	VMOV V13.B16, V1.B16
	VMOV V14.B16, V2.B16
	VMOV V15.B16, V3.B16
	TREE
	FMOVS F0, ret+24(FP)
	RET

// TURN turns the pairs (V0, V1) by the cosines V2 and the sines V3: each product is rounded, then their sum.
#define TURN \
	FMUL4(2, 0, 4)  \
	FMUL4(3, 1, 5)  \
	FMUL4(2, 1, 6)  \
	FMUL4(3, 0, 7)  \
	FSUB4(5, 4, 0)  \
	FADD4(7, 6, 1)

// func ropePairsNEON(x, cos, sin *float32, pairs int)
TEXT ·ropePairsNEON(SB), NOSPLIT, $0-32
	MOVD x+0(FP), R0
	MOVD cos+8(FP), R1
	MOVD sin+16(FP), R2
	MOVD pairs+24(FP), R3
	SUBS $4, R3
	BLT  done
loop:
	VLD2 (R0), [V0.S4, V1.S4]
	VLD1.P 16(R1), [V2.S4]
	VLD1.P 16(R2), [V3.S4]
	TURN
	VST2.P [V0.S4, V1.S4], 32(R0)
	SUBS $4, R3
	BGE  loop
done:
	RET

// func ropeHalvesNEON(x, cos, sin *float32, pairs int)
TEXT ·ropeHalvesNEON(SB), NOSPLIT, $0-32
	MOVD x+0(FP), R0
	MOVD cos+8(FP), R1
	MOVD sin+16(FP), R2
	MOVD pairs+24(FP), R3
	ADD  R3<<2, R0, R4
	SUBS $4, R3
	BLT  done
loop:
	VLD1 (R0), [V0.S4]
	VLD1 (R4), [V1.S4]
	VLD1.P 16(R1), [V2.S4]
	VLD1.P 16(R2), [V3.S4]
	TURN
	VST1.P [V0.S4], 16(R0)
	VST1.P [V1.S4], 16(R4)
	SUBS $4, R3
	BGE  loop
done:
	RET
