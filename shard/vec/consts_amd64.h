// Constants of Exp, GELU and Tanh, as in twin.go, each once; see the offsets below.
DATA expc<>+0(SB)/4, $-87.0
DATA expc<>+4(SB)/4, $88.0
DATA expc<>+8(SB)/4, $1.44269504088896341
DATA expc<>+12(SB)/4, $12582912.0
DATA expc<>+16(SB)/4, $-0.693359375
DATA expc<>+20(SB)/4, $2.12194440e-4
DATA expc<>+24(SB)/4, $1.9875691500e-4
DATA expc<>+28(SB)/4, $1.3981999507e-3
DATA expc<>+32(SB)/4, $8.3334519073e-3
DATA expc<>+36(SB)/4, $4.1665795894e-2
DATA expc<>+40(SB)/4, $1.6666665459e-1
DATA expc<>+44(SB)/4, $5.0000001201e-1
DATA expc<>+48(SB)/4, $1.0
DATA expc<>+52(SB)/4, $0x3f800000
DATA expc<>+56(SB)/4, $0x80000000
DATA expc<>+60(SB)/4, $0xff800000
DATA expc<>+64(SB)/4, $-1.5957691216057308
DATA expc<>+68(SB)/4, $-0.07135481627159146
DATA expc<>+72(SB)/4, $2.0
DATA expc<>+76(SB)/4, $0.625
DATA expc<>+80(SB)/4, $-5.70498872745e-3
DATA expc<>+84(SB)/4, $2.06390887954e-2
DATA expc<>+88(SB)/4, $-5.37397155531e-2
DATA expc<>+92(SB)/4, $1.33314422036e-1
DATA expc<>+96(SB)/4, $-3.33332819422e-1
GLOBL expc<>(SB), RODATA|NOPTR, $100

#define LOW expc<>+0(SB)
#define HIGH expc<>+4(SB)
#define LOG2E expc<>+8(SB)
#define ROUND expc<>+12(SB)
#define NLN2HI expc<>+16(SB)
#define NLN2LO expc<>+20(SB)
#define P0 expc<>+24(SB)
#define P1 expc<>+28(SB)
#define P2 expc<>+32(SB)
#define P3 expc<>+36(SB)
#define P4 expc<>+40(SB)
#define P5 expc<>+44(SB)
#define ONE expc<>+48(SB)
#define BIAS expc<>+52(SB)
#define SIGN expc<>+56(SB)
#define NEGINF expc<>+60(SB)
#define GELU1 expc<>+64(SB)
#define GELU3 expc<>+68(SB)
#define TWO expc<>+72(SB)
#define SMALL expc<>+76(SB)
#define T0 expc<>+80(SB)
#define T1 expc<>+84(SB)
#define T2 expc<>+88(SB)
#define T3 expc<>+92(SB)
#define T4 expc<>+96(SB)

// TREE8 adds the eight lanes of Y0 (the sums of lanes 8 apart) as the fixed
// tree into X0. X1 is lost.
#define TREE8 \
	VEXTRACTF128 $1, Y0, X1 \
	VADDPS X1, X0, X0       \
	VMOVHLPS X0, X0, X1     \
	VADDPS X1, X0, X0       \
	VMOVSHDUP X0, X1        \
	VADDSS X1, X0, X0
