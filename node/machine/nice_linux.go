package machine

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// Nice raises the nice level of all threads of this process to at least level. Linux keeps one for each thread and a new thread has that of its maker, so
// threads are listed until a whole list has it: what is made after that inherits it, whichever thread of the runtime makes it.
// It never lowers one, which would take a privilege.
func Nice(level int) error {
	const rounds = 100 // far more than the runtime has threads to make meanwhile
	for range rounds {
		entries, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("set nice level %d: %w", level, err)
		}
		settled := true
		for _, e := range entries {
			tid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			had, err := syscall.Getpriority(syscall.PRIO_PROCESS, tid)
			if err == nil && 20-had >= level { // the system call counts from 40 down to 1
				continue
			}
			settled = false
			if err := syscall.Setpriority(syscall.PRIO_PROCESS, tid, level); err != nil && err != syscall.ESRCH {
				return fmt.Errorf("set nice level %d: %w", level, err)
			}
		}
		if settled {
			return nil
		}
	}
	return fmt.Errorf("set nice level %d: threads without it kept appearing", level)
}
