//go:build linux && amd64

package emulate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// tileUnit is AMX as Intel's manual describes it (volume 2, LDTILECFG to TILEZERO, TDPBSSD; exceptions AMX-E1 to E6), but for
// restarts (start_row) and STTILECFG, which it refuses. It knows nothing of our kernels or their generator.
type tileUnit struct {
	configured bool
	rows       [8]int
	rowBytes   [8]int // colsb
	data       [8][16][64]byte
}

// fault is what the instruction raises.
type fault struct{ name, why string }

func (f *fault) Error() string { return f.name + ": " + f.why }

func invalid(format string, args ...any) error    { return &fault{"#UD", fmt.Sprintf(format, args...)} }
func protection(format string, args ...any) error { return &fault{"#GP", fmt.Sprintf(format, args...)} }

var errOtherInstruction = errors.New("an instruction of something else than AMX")

// tileMemory is the memory of whoever executes.
type tileMemory interface {
	ReadAt(b []byte, at int64) (int, error)
	WriteAt(b []byte, at int64) (int, error)
}

// vexCode is an instruction of the map 0F38 with a prefix VEX of three bytes.
type vexCode struct {
	r, x, b, w, l     int
	vvvv, pp, opcode  int
	mod, reg, rm      int
	base, index, disp int // base and index -1: none
	scale             int
	size              int
}

func decodeVEX(code []byte) (v vexCode, err error) {
	if len(code) < 5 || code[0] != 0xc4 || code[1]&31 != 2 {
		return v, errOtherInstruction
	}
	v.r, v.x, v.b = int(^code[1]>>7&1), int(^code[1]>>6&1), int(^code[1]>>5&1)
	v.w, v.vvvv, v.l, v.pp = int(code[2]>>7), int(^code[2]>>3&15), int(code[2]>>2&1), int(code[2]&3)
	v.opcode, v.mod, v.reg, v.rm = int(code[3]), int(code[4]>>6), int(code[4]>>3&7), int(code[4]&7)
	v.size, v.base, v.index, v.scale = 5, v.rm|v.b<<3, -1, 1
	if v.mod == 3 {
		return v, nil
	}
	if v.rm == 4 {
		sib := code[v.size]
		v.size++
		v.base, v.scale = int(sib&7)|v.b<<3, 1<<(sib>>6)
		if i := int(sib>>3&7) | v.x<<3; i != 4 {
			v.index = i
		}
	}
	switch {
	case v.mod == 0 && v.base&7 == 5 && v.rm == 4:
		v.base, v.disp = -1, int(int32(binary.LittleEndian.Uint32(code[v.size:])))
		v.size += 4
	case v.mod == 0 && v.rm == 5:
		return v, errors.New("addresses relative to the instruction are not emulated")
	case v.mod == 1:
		v.disp = int(int8(code[v.size]))
		v.size++
	case v.mod == 2:
		v.disp = int(int32(binary.LittleEndian.Uint32(code[v.size:])))
		v.size += 4
	}
	return v, nil
}

// step carries out the instruction in code, of which there may be more bytes than it has, with the general registers by number.
func (u *tileUnit) step(code []byte, registers *[16]uint64, m tileMemory) (size int, err error) {
	v, err := decodeVEX(code)
	if err != nil {
		return 0, err
	}
	switch v.opcode {
	case 0x49, 0x4b, 0x5e:
	default:
		return 0, errOtherInstruction
	}
	if v.w != 0 || v.l != 0 {
		return 0, invalid("VEX.W or VEX.L is 1")
	}
	if v.opcode != 0x5e && v.vvvv != 0 {
		return 0, invalid("VEX.vvvv is in use")
	}
	at := v.disp
	if v.base >= 0 {
		at += int(registers[v.base])
	}
	stride := 0
	if v.index >= 0 {
		stride = int(registers[v.index]) * v.scale
	}
	switch {
	case v.opcode == 0x49 && v.pp == 0 && v.mod != 3 && v.reg == 0:
		err = u.configure(m, at+stride)
	case v.opcode == 0x49 && v.pp == 0 && v.mod == 3 && v.reg == 0 && v.rm == 0:
		*u = tileUnit{}
	case v.opcode == 0x49 && v.pp == 3 && v.mod == 3 && v.rm == 0:
		if err = u.valid(v.reg | v.r<<3); err == nil {
			u.data[v.reg] = [16][64]byte{}
		}
	case v.opcode == 0x4b && v.mod != 3 && v.rm == 4 && v.pp != 0:
		if err = u.valid(v.reg | v.r<<3); err == nil {
			err = u.move(m, v.reg, at, stride, v.pp == 2)
		}
	case v.opcode == 0x5e && v.mod == 3:
		err = u.dot(v.reg|v.r<<3, v.rm|v.b<<3, v.vvvv, v.pp)
	default:
		err = invalid("no instruction: opcode %#x, prefix %d, mod %d, reg %d, rm %d", v.opcode, v.pp, v.mod, v.reg, v.rm)
	}
	return v.size, err
}

// configure is LDTILECFG.
func (u *tileUnit) configure(m tileMemory, at int) error {
	var c [64]byte
	if _, err := m.ReadAt(c[:], int64(at)); err != nil {
		return err
	}
	next := tileUnit{configured: true}
	switch {
	case c[0] == 0:
		*u = tileUnit{}
		return nil
	case c[0] != 1:
		return protection("palette %d", c[0])
	case c[1] != 0:
		return errors.New("start_row is not emulated")
	}
	for i, b := range c {
		if reserved := i >= 2 && i < 16 || i >= 32 && i < 48 || i >= 56; reserved && b != 0 {
			return protection("reserved byte %d of the configuration is %#x", i, b)
		}
	}
	for t := range 8 {
		rows, rowBytes := int(c[48+t]), int(binary.LittleEndian.Uint16(c[16+2*t:]))
		if rows > 16 || rowBytes > 64 || (rows == 0) != (rowBytes == 0) {
			return protection("tile %d has %d rows of %d bytes", t, rows, rowBytes)
		}
		next.rows[t], next.rowBytes[t] = rows, rowBytes
	}
	*u = next
	return nil
}

// valid says whether a tile may be named.
func (u *tileUnit) valid(t int) error {
	switch {
	case !u.configured:
		return invalid("tiles are not configured")
	case t > 7:
		return invalid("tile %d", t)
	case u.rows[t] == 0 || u.rowBytes[t]%4 != 0:
		return invalid("tile %d is configured as %d rows of %d bytes", t, u.rows[t], u.rowBytes[t])
	}
	return nil
}

// move is TILELOADD or TILESTORED. What a tile has beyond its rows and bytes a load sets to zero.
func (u *tileUnit) move(m tileMemory, t, at, stride int, store bool) error {
	if !store {
		u.data[t] = [16][64]byte{}
	}
	n := u.rowBytes[t]
	if stride == n { // one access is as good as one a row
		all := make([]byte, u.rows[t]*n)
		if !store {
			if _, err := m.ReadAt(all, int64(at)); err != nil {
				return err
			}
		}
		for r := range u.rows[t] {
			if store {
				copy(all[r*n:], u.data[t][r][:n])
			} else {
				copy(u.data[t][r][:n], all[r*n:])
			}
		}
		if store {
			_, err := m.WriteAt(all, int64(at))
			return err
		}
		return nil
	}
	for r := range u.rows[t] {
		access := m.ReadAt
		if store {
			access = m.WriteAt
		}
		if _, err := access(u.data[t][r][:n], int64(at+r*stride)); err != nil {
			return err
		}
	}
	return nil
}

// dot is TDPBSSD (prefix F2), TDPBSUD (F3), TDPBUSD (66) and TDPBUUD (none): sums += a * b.
func (u *tileUnit) dot(sums, a, b, prefix int) error {
	if sums == a || sums == b || a == b {
		return invalid("tiles %d, %d, %d are not three", sums, a, b)
	}
	for _, t := range []int{sums, a, b} {
		if err := u.valid(t); err != nil {
			return err
		}
	}
	switch {
	case u.rows[sums] != u.rows[a], u.rowBytes[a]/4 != u.rows[b], u.rowBytes[sums] != u.rowBytes[b]:
		return invalid("%d rows of %d bytes are not the product of %d of %d and %d of %d", u.rows[sums], u.rowBytes[sums],
			u.rows[a], u.rowBytes[a], u.rows[b], u.rowBytes[b])
	}
	extend := func(v byte, signed bool) int32 {
		if signed {
			return int32(int8(v))
		}
		return int32(v)
	}
	for m := range u.rows[sums] {
		for n := range u.rowBytes[sums] / 4 {
			sum := binary.LittleEndian.Uint32(u.data[sums][m][4*n:])
			for k := range u.rowBytes[a] {
				sum += uint32(extend(u.data[a][m][k], prefix >= 2) * extend(u.data[b][k/4][4*n+k%4], prefix&1 == 1))
			}
			binary.LittleEndian.PutUint32(u.data[sums][m][4*n:], sum)
		}
	}
	return nil
}

// tileEmulator is the emulator of AMX: a unit for each thread.
type tileEmulator struct {
	units  map[int]*tileUnit
	memory *os.File // of the child
}

// AMX emulates tiles. At the end of the test it checks that each thread has released its own.
func AMX(t testing.TB) Emulator {
	e := &tileEmulator{units: map[int]*tileUnit{}}
	t.Cleanup(func() {
		if e.memory != nil {
			e.memory.Close()
		}
		for pid, u := range e.units {
			if u.configured {
				t.Errorf("thread %d ended with tiles configured", pid)
			}
		}
	})
	return e.emulate
}

func (e *tileEmulator) emulate(pid int) error {
	if e.memory == nil {
		f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		e.memory = f
	}
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &regs); err != nil {
		return err
	}
	var code [16]byte
	if n, err := e.memory.ReadAt(code[:], int64(regs.Rip)); n < 11 {
		return err
	}
	general := [16]uint64{regs.Rax, regs.Rcx, regs.Rdx, regs.Rbx, regs.Rsp, regs.Rbp, regs.Rsi, regs.Rdi,
		regs.R8, regs.R9, regs.R10, regs.R11, regs.R12, regs.R13, regs.R14, regs.R15}
	if e.units[pid] == nil {
		e.units[pid] = new(tileUnit)
	}
	size, err := e.units[pid].step(code[:], &general, e.memory)
	if err != nil {
		return fmt.Errorf("at %#x, % x: %w", regs.Rip, code, err)
	}
	regs.Rip += uint64(size)
	return unix.PtraceSetRegs(pid, &regs)
}
