//go:build linux

package tensor

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"
)

// emulatedVariable says to a test that it is the traced child.
const emulatedVariable = "MESHNET_TEST_EMULATED"

// emulator carries out the instruction at which a thread stopped and steps over it, or says why not.
type emulator func(pid int) error

// Where the CPU lacks AVX-VNNI, this test runs its kernels all the same. So every byte of the kernels is what runs elsewhere.
func TestAVXVNNIEmulated(t *testing.T) {
	if cpu.X86.HasAVXVNNI || !cpu.X86.HasAVX2 || !cpu.X86.HasFMA || !cpu.X86.HasF16C {
		return // the other tests run them; or nothing can
	}
	if emulated(t, emulateVNNI) {
		sets := []*kernelSet{avxVNNI()}
		kernelsEqualTwin(t, sets, [][2]int{{64, 256}, {5, 32}, {48, 96}}, []int{1, 2, 3})
		kernelsEqualNaive(t, sets, 16, 256)
	}
}

// emulated runs this test once more in a child process that it traces: each instruction that the CPU refuses there is read from
// the child's memory, decoded by the manual's tables, carried out on the child's registers and memory, and stepped over. It is
// true in the child. In the parent it fails the test when the child fails, or when nothing was emulated.
func emulated(t *testing.T, emulate emulator) bool {
	if os.Getenv(emulatedVariable) != "" {
		return true
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), emulatedVariable+"=1", "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1")
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
func traceChild(child int, emulate emulator) (code, count int, err error) {
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

// xstate is a thread's vector registers as the kernel hands them out: the layout of XSAVE.
type xstate struct {
	legacy   [160]byte
	xmm      [16][16]byte
	unused   [512 - 416]byte
	features uint64
	header   [56]byte
	upper    [16][16]byte // of the YMM registers
	rest     [16384]byte
}

// emulateVNNI is the emulator of VPDPBUSD.
func emulateVNNI(pid int) error {
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &regs); err != nil {
		return err
	}
	var code [5]byte
	if _, err := unix.PtracePeekText(pid, uintptr(regs.Rip), code[:]); err != nil {
		return err
	}
	// VEX.256.66.0F38.W0 50 /r, registers only
	if code[0] != 0xc4 || code[1]&0x1f != 2 || code[2]&0x87 != 5 || code[3] != 0x50 || code[4]>>6 != 3 {
		return errors.New("another instruction")
	}
	dst := int(code[4]>>3&7 | ^code[1]>>7&1<<3)
	bytes := int(^code[2] >> 3 & 15)            // unsigned
	signed := int(code[4]&7 | ^code[1]>>5&1<<3) // in the place of r/m
	var x xstate
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(&x)), Len: uint64(unsafe.Sizeof(x))}
	const vectors = 0x202 // NT_X86_XSTATE
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(pid), vectors, uintptr(unsafe.Pointer(&iov)), 0, 0); e != 0 {
		return e
	}
	for _, half := range []*[16][16]byte{&x.xmm, &x.upper} {
		for i := 0; i < 16; i += 4 {
			sum := binary.LittleEndian.Uint32(half[dst][i:])
			for j := i; j < i+4; j++ {
				sum += uint32(int32(half[bytes][j]) * int32(int8(half[signed][j])))
			}
			binary.LittleEndian.PutUint32(half[dst][i:], sum)
		}
	}
	x.features |= 1<<1 | 1<<2 // both halves are in use
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SETREGSET, uintptr(pid), vectors, uintptr(unsafe.Pointer(&iov)), 0, 0); e != 0 {
		return e
	}
	regs.Rip += 5
	return unix.PtraceSetRegs(pid, &regs)
}
