//go:build linux && amd64

package emulate

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// childVariable says to a test that it is the traced child.
const childVariable = "MESHNET_TEST_EMULATED"

// Emulator carries out the instruction at which a thread of a traced process stopped and steps over it, or says why not.
type Emulator func(pid int) error

// Child runs this test once more in a child process that it traces: each instruction that the CPU refuses there is read from
// the child's memory, decoded by the manual's tables, carried out on the child's registers and memory, and stepped over. It is
// true in the child. In the parent it fails the test when the child fails, or when nothing was emulated.
func Child(t *testing.T, emulate Emulator) bool {
	if os.Getenv(childVariable) != "" {
		return true
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), childVariable+"=1", "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Ptrace: true}
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); errors.Is(err, unix.EPERM) {
		t.Logf("not tested: this machine does not let a process trace its child")
		return false
	} else if err != nil {
		t.Fatal(err)
	}
	code, count, err := traceChild(cmd.Process.Pid, emulate)
	switch {
	case err != nil || code != 0:
		t.Fatalf("child: exit code %d, %v", code, err)
	case count == 0:
		t.Fatal("no instruction was emulated")
	}
	t.Logf("%d instructions emulated", count)
	return false
}

// traceChild runs a traced process to its end. The error may be of an instruction that the emulator refused, from which the child
// died.
func traceChild(child int, emulate Emulator) (code, count int, err error) {
	var status unix.WaitStatus
	if _, err := unix.Wait4(child, &status, unix.WALL, nil); err != nil {
		return 0, 0, err
	}
	if err := unix.PtraceSetOptions(child, unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL); err != nil {
		return 0, 0, err
	}
	var refused error
	for pid, signal := child, 0; ; {
		if err := unix.PtraceCont(pid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return 0, count, err
		}
		for {
			if pid, err = unix.Wait4(-1, &status, unix.WALL, nil); err == nil && status.Stopped() {
				break
			}
			switch {
			case err != nil && !errors.Is(err, unix.EINTR):
				return 0, count, err
			case pid == child && status.Signaled():
				return -int(status.Signal()), count, refused
			case pid == child && status.Exited():
				return status.ExitStatus(), count, refused
			}
		}
		signal = int(status.StopSignal())
		switch status.StopSignal() {
		case unix.SIGTRAP, unix.SIGSTOP: // a thread began
			signal = 0
		case unix.SIGILL:
			if refused = emulate(pid); refused == nil {
				count++
				signal = 0
			}
		}
	}
}
