package tensor

import "golang.org/x/sys/unix"

// adviseHuge asks for large pages. It is advice: an error changes nothing.
func adviseHuge(b []byte) {
	if len(b) >= largePage {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	}
}
