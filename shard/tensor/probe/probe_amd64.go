package probe

import (
	"slices"

	"github.com/meshnet/meshnet/shard/tensor"
	"golang.org/x/sys/cpu"
)

func int8Loop() loop {
	x := cpu.X86
	switch {
	case slices.Contains(tensor.CPUs(), "amx"): // so this process may use them
		return loop{"TDPBSSD, tiles of 16 x 64", 4 * 2 * 16 * 16 * 64, dotTiles}
	case x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VNNI:
		return loop{"VPDPBUSD, 512 bits", 24 * 128, dotAVX512}
	case x.HasAVX2 && x.HasAVXVNNI:
		return loop{"VPDPBUSD, 256 bits", 12 * 64, dotVNNI}
	case x.HasAVX2:
		return loop{"VPMADDUBSW, 256 bits", 8 * 64, dotAVX2}
	}
	return loop{"plain Go", 8 * 2, dotGo}
}

func floatLoop() loop {
	x := cpu.X86
	switch {
	case x.HasAVX512F:
		return loop{"VFMADD231PS, 512 bits", 24 * 32, floatAVX512}
	case x.HasAVX2 && x.HasFMA:
		return loop{"VFMADD231PS, 256 bits", 12 * 16, floatAVX2}
	}
	return loop{"plain Go", 8 * 2, floatGo}
}

func read(p *byte, n, stride int) {
	if cpu.X86.HasAVX2 {
		readAVX2(p, n, stride)
	} else {
		readGo(p, n, stride)
	}
}

// readAVX2 reads n bytes, a multiple of 256, of each of four streams.
//
//go:noescape
func readAVX2(p *byte, n, stride int)

//go:noescape
func dotTiles(n int)

//go:noescape
func dotAVX512(n int)

//go:noescape
func dotVNNI(n int)

//go:noescape
func dotAVX2(n int)

//go:noescape
func floatAVX512(n int)

//go:noescape
func floatAVX2(n int)
