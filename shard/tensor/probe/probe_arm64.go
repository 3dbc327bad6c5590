package probe

import "golang.org/x/sys/cpu"

func int8Loop() loop {
	if cpu.ARM64.HasASIMDDP {
		return loop{"SDOT", 24 * 32, dotNEON}
	}
	return loop{"plain Go", 8 * 2, dotGo}
}

func floatLoop() loop { return loop{"FMLA", 24 * 8, floatNEON} }

func read(p *byte, n, stride int) { readNEON(p, n, stride) }

// readNEON reads n bytes, a multiple of 64, of each of four streams.
//
//go:noescape
func readNEON(p *byte, n, stride int)

//go:noescape
func dotNEON(n int)

//go:noescape
func floatNEON(n int)
