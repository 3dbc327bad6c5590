//go:build !amd64 && !arm64

package probe

func int8Loop() loop { return loop{"plain Go", 8 * 2, dotGo} }

func floatLoop() loop { return loop{"plain Go", 8 * 2, floatGo} }

func read(p *byte, n, stride int) { readGo(p, n, stride) }
