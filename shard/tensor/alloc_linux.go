package tensor

import "golang.org/x/sys/unix"

// adviseHuge asks for large pages, whole ones only so that none is held for a part of it. It is advice: an error changes nothing.
func adviseHuge(b []byte) { _ = unix.Madvise(b[:len(b)/hugePage*hugePage], unix.MADV_HUGEPAGE) }
