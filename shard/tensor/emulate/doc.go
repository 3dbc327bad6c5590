// Package emulate lets tests run kernels whose instructions the CPU lacks, on Linux on amd64: AVX-VNNI, and the tiles of AMX.
//
// Invariant: it carries out what Intel's manual says of the bytes that are really there, and knows nothing of who wrote them. Start
// reading at Child.
package emulate
