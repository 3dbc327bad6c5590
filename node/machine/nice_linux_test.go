package machine

import (
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// All threads have it, those too that are made later; a lower level changes nothing.
func TestNice(t *testing.T) {
	had, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	level := min(19, 20-had+1)
	if err := Nice(level); err != nil {
		t.Fatal(err)
	}
	if err := Nice(0); err != nil {
		t.Error(err)
	}
	var threads sync.WaitGroup
	for range 20 {
		threads.Go(func() {
			runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
			if got, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0); err != nil || 20-got != level {
				t.Errorf("a thread has nice level %d, %v; want %d", 20-got, err, level)
			}
		})
	}
	threads.Wait()
}
