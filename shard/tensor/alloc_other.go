//go:build !unix

package tensor

import "unsafe"

// arenaBytes of 0 means that each matrix has memory of its own: here what is not used would count as well.
const arenaBytes = 0

// alloc returns n zeroed bytes, aligned to a line.
func alloc(n int) (b []byte, free func(), err error) {
	b = make([]byte, n+64)
	off := -int(uintptr(unsafe.Pointer(&b[0]))) & 63
	return b[off : off+n : off+n], func() {}, nil
}
