//go:build unix

package tensor

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// alloc returns n zeroed bytes outside the Go heap, whose collector would let garbage grow with them. They begin at a page, and at
// a large one if they fill some of those.
func alloc(n int) (b []byte, free func(), err error) {
	spare := 0
	if n >= 2*hugePage {
		spare = hugePage // only reserved: pages that nobody touches take no memory
	}
	all, err := unix.Mmap(-1, 0, n+spare, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, fmt.Errorf("get %d bytes of memory: %w", n, err)
	}
	b = all
	if spare > 0 {
		off := int(-uintptr(unsafe.Pointer(&all[0])) & (hugePage - 1))
		b = all[off:][:n:n]
		adviseHuge(b)
	}
	return b, func() { _ = unix.Munmap(all) }, nil
}
