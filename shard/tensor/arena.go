package tensor

import "unsafe"

// Arena is memory for many matrices: one piece, outside the Go heap, on large pages where the system has them.
type Arena struct {
	mem  []byte
	free func()
}

// NewArena gets n zeroed bytes. They take memory as they are written to.
func NewArena(n int64) (*Arena, error) {
	mem, free, err := alloc(int(n))
	if err != nil {
		return nil, err
	}
	return &Arena{mem, free}, nil
}

// Take cuts the next n bytes off, a multiple of 64.
func (a *Arena) Take(n int64) []byte {
	b := a.mem[:n:n]
	a.mem = a.mem[n:]
	return b
}

// Close frees the memory, and all that was taken from it.
func (a *Arena) Close() {
	if a.free != nil {
		a.free()
		a.free, a.mem = nil, nil
	}
}

func misaligned(b []byte) bool {
	return len(b)%64 != 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%64 != 0
}
