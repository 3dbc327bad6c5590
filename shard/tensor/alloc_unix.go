//go:build unix

package tensor

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arenaBytes is the size of an arena's mappings; what is never touched takes no memory.
const arenaBytes = 64 << 20

const largePage = 2 << 20

// alloc returns n zeroed bytes outside the Go heap, whose collector would let garbage grow with them, aligned to a page, and
// to a large one if they fill one.
func alloc(n int) (b []byte, free func(), err error) {
	size := n
	if n >= largePage {
		size += largePage
	}
	all, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, fmt.Errorf("get %d bytes of memory: %w", n, err)
	}
	b = all
	if n >= largePage {
		b = all[-int(uintptr(unsafe.Pointer(&all[0])))&(largePage-1):][:n:n]
	}
	adviseHuge(b)
	return b, func() { _ = unix.Munmap(all) }, nil
}
