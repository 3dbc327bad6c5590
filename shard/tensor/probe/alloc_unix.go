//go:build unix

package probe

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// alloc gets memory outside the Go heap, in large pages where the system has them, so that it can be given back at once.
func alloc(n int) (b []byte, free func(), err error) {
	b, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, fmt.Errorf("get %d bytes: %w", n, err)
	}
	adviseHuge(b)
	return b, func() { _ = unix.Munmap(b) }, nil
}
