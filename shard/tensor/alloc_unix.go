//go:build unix

package tensor

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// alloc returns n zeroed bytes outside the Go heap, whose collector would let garbage grow with them, page aligned.
func alloc(n int) (b []byte, free func(), err error) {
	b, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, fmt.Errorf("get %d bytes of memory: %w", n, err)
	}
	adviseHuge(b)
	return b, func() { _ = unix.Munmap(b) }, nil
}
