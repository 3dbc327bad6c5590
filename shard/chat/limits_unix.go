//go:build unix

package chat

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// setLimits bounds this process. The Go runtime reserves address space that it
// never touches, so the memory limit counts from what is mapped already.
func setLimits() error {
	if mapped, ok := mappedBytes(); ok {
		most := mapped + childMemory
		if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("memory: %w", err)
		}
	}
	// The runtime ignores SIGXCPU unless asked; one second later the kernel kills.
	spent := make(chan os.Signal, 1)
	signal.Notify(spent, syscall.SIGXCPU)
	go func() { // ends with the process
		<-spent
		os.Exit(exitCPU)
	}()
	if err := unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: childCPU, Max: childCPU + 1}); err != nil {
		return fmt.Errorf("CPU time: %w", err)
	}
	return nil
}

// mappedBytes is the size of this process's address space, where the system tells.
func mappedBytes() (uint64, bool) {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, false
	}
	var pages uint64
	if _, err := fmt.Sscan(string(data), &pages); err != nil {
		return 0, false
	}
	return pages * uint64(os.Getpagesize()), true
}

func killedForCPU(exit *exec.ExitError) bool {
	s, ok := exit.Sys().(syscall.WaitStatus)
	return ok && s.Signaled() && (s.Signal() == syscall.SIGXCPU || s.Signal() == syscall.SIGKILL)
}
