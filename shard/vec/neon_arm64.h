// Instructions that Go's assembler lacks, as words. Operands are numbers of vector registers, the destination last as
// elsewhere; i is a lane. The same file is in shard/tensor and shard/vec.

// d = n op m, four float32.
#define FADD4(m, n, d) WORD $(0x4e20d400 | (m)<<16 | (n)<<5 | (d))
#define FSUB4(m, n, d) WORD $(0x4ea0d400 | (m)<<16 | (n)<<5 | (d))
#define FMUL4(m, n, d) WORD $(0x6e20dc00 | (m)<<16 | (n)<<5 | (d))
#define FDIV4(m, n, d) WORD $(0x6e20fc00 | (m)<<16 | (n)<<5 | (d))
#define FMAX4(m, n, d) WORD $(0x4e20f400 | (m)<<16 | (n)<<5 | (d))
#define FMIN4(m, n, d) WORD $(0x4ea0f400 | (m)<<16 | (n)<<5 | (d))
#define FCMGT4(m, n, d) WORD $(0x6ea0e400 | (m)<<16 | (n)<<5 | (d)) // all ones where n > m

// d += n * m, rounded once.
#define FMLA4(m, n, d) WORD $(0x4e20cc00 | (m)<<16 | (n)<<5 | (d))

// d = n * m[i]; d += n * m[i] and d -= n * m[i], rounded once.
#define LANE(i) (((i)&1)<<21 | ((i)>>1)<<11)
#define FMULI(i, m, n, d) WORD $(0x4f809000 | LANE(i) | (m)<<16 | (n)<<5 | (d))
#define FMLAI(i, m, n, d) WORD $(0x4f801000 | LANE(i) | (m)<<16 | (n)<<5 | (d))
#define FMLSI(i, m, n, d) WORD $(0x4f805000 | LANE(i) | (m)<<16 | (n)<<5 | (d))

// d += the four signed bytes of each dword of n times those of m, or of m's dword i.
#define SDOT(m, n, d) WORD $(0x4e809400 | (m)<<16 | (n)<<5 | (d))
#define SDOTI(i, m, n, d) WORD $(0x4f80e000 | LANE(i) | (m)<<16 | (n)<<5 | (d))

// Conversions: int32 and uint32 to float32, float32 to the nearest int32 (ties to even), the lower four float16 to float32.
#define SCVTF4(n, d) WORD $(0x4e21d800 | (n)<<5 | (d))
#define UCVTF4(n, d) WORD $(0x6e21d800 | (n)<<5 | (d))
#define FCVTNS4(n, d) WORD $(0x4e21a800 | (n)<<5 | (d))
#define FCVTL4(n, d) WORD $(0x0e217800 | (n)<<5 | (d))
#define FCVTL4H(n, d) WORD $(0x4e217800 | (n)<<5 | (d)) // the upper four

// The lower eight int8 as int16, the lower four int16 as int32, the lower four bfloat16 as float32.
#define SXTL8(n, d) WORD $(0x0f08a400 | (n)<<5 | (d))
#define SXTL4(n, d) WORD $(0x0f10a400 | (n)<<5 | (d))
#define SXTL8H(n, d) WORD $(0x4f08a400 | (n)<<5 | (d)) // the upper eight
#define SXTL4H(n, d) WORD $(0x4f10a400 | (n)<<5 | (d)) // the upper four
#define SHLL4(n, d) WORD $(0x2e613800 | (n)<<5 | (d))

// n without the bits of m.
#define BIC16(m, n, d) WORD $(0x4e601c00 | (m)<<16 | (n)<<5 | (d))

// -n; over lanes: the largest uint32, the largest float32, the sum of the lower two float32.
#define FNEG4(n, d) WORD $(0x6ea0f800 | (n)<<5 | (d))
#define UMAXV4(n, d) WORD $(0x6eb0a800 | (n)<<5 | (d))
#define FMAXV4(n, d) WORD $(0x6e30f800 | (n)<<5 | (d))
#define FADDP2(n, d) WORD $(0x7e30d800 | (n)<<5 | (d))
