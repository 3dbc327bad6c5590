//go:build !amd64 && !arm64

package pool

import "runtime"

// pause lets others run, n times.
func pause(n int) {
	for range n {
		runtime.Gosched()
	}
}
