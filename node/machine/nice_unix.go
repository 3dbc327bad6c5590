//go:build unix && !linux

package machine

import (
	"fmt"
	"syscall"
)

// Nice raises this process's nice level to at least level.
func Nice(level int) error {
	if had, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0); err == nil && had >= level {
		return nil
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, level); err != nil {
		return fmt.Errorf("set nice level %d: %w", level, err)
	}
	return nil
}
