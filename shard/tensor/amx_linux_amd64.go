package tensor

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// requestTiles asks the kernel to let this process use a component of the extended state: once, for all threads, those started
// later too.
func requestTiles(component uintptr) error {
	const requestPermission = 0x1023 // ARCH_REQ_XCOMP_PERM, since Linux 5.16
	if _, _, e := unix.RawSyscall(unix.SYS_ARCH_PRCTL, requestPermission, component, 0); e != 0 {
		return fmt.Errorf("the kernel does not let this process use tiles: %w", e)
	}
	return nil
}
