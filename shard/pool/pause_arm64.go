package pool

// pause executes 16 n YIELD instructions, n > 0.
//
//go:noescape
func pause(n int)
