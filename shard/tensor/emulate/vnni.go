//go:build linux && amd64

package emulate

import (
	"encoding/binary"
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

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

// VNNI emulates VPDPBUSD in the encoding of AVX-VNNI.
func VNNI(pid int) error {
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
