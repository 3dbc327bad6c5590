package pool

// pause executes n PAUSE instructions, n > 0.
//
//go:noescape
func pause(n int)
