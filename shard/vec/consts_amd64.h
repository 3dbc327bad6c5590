// Constants of Exp, as in twin.go, each once; see the offsets below.
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
GLOBL expc<>(SB), RODATA|NOPTR, $64

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

// TREE8 adds the eight lanes of Y0 (the sums of lanes 8 apart) as the fixed
// tree into X0. X1 is lost.
#define TREE8 \
	VEXTRACTF128 $1, Y0, X1 \
	VADDPS X1, X0, X0       \
	VMOVHLPS X0, X0, X1     \
	VADDPS X1, X0, X0       \
	VMOVSHDUP X0, X1        \
	VADDSS X1, X0, X0
