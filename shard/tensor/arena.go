package tensor

import "sync"

// Arena is the memory of matrices that are loaded together. They lie side by side in large mappings, so that the system
// backs small ones with large pages too: with pages of 4 KiB a core reads a third less a second. A mapping is freed when
// the last matrix in it is closed. The zero value is ready; it is safe for concurrent use.
type Arena struct {
	mu   sync.Mutex
	last *mapping
	rest []byte // of it
}

// mapping is one piece of memory that matrices share.
type mapping struct {
	arena    *Arena
	matrices int
	free     func()
}

// alloc returns n zeroed bytes, aligned to a line. Without an arena they are a mapping of their own.
func (a *Arena) alloc(n int) (b []byte, free func(), err error) {
	if a == nil {
		return alloc(n)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if n > len(a.rest) {
		b, free, err := alloc(max(n, arenaBytes))
		if err != nil {
			return nil, nil, err
		}
		a.last, a.rest = &mapping{arena: a, free: free}, b
	}
	m := a.last
	m.matrices++
	b, a.rest = a.rest[:n:n], a.rest[min(len(a.rest), (n+63)&^63):]
	return b, m.release, nil
}

func (m *mapping) release() {
	a := m.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.matrices--; m.matrices > 0 {
		return
	}
	m.free()
	if a.last == m {
		a.last, a.rest = nil, nil
	}
}
