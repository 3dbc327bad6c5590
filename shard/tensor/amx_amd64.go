package tensor

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/cpu"
)

// amx is the kernel set with AMX-INT8 tiles beside the kernels of AVX-512, or why there is none.
type amx struct {
	set  *kernelSet
	why  error
	some bool // the CPU has it, so that it is worth telling
}

var amxOfThisProcess = sync.OnceValue(func() amx {
	if !hasAVX512() || !cpu.X86.HasAMXTile || !cpu.X86.HasAMXInt8 {
		return amx{why: errors.New("this CPU has no AMX-INT8")}
	}
	if err := allowAMX(); err != nil {
		return amx{why: err, some: true}
	}
	ks := amxSet()
	if err := ks.checkWide(); err != nil {
		return amx{why: fmt.Errorf("on this CPU it gives other bits: %w", err), some: true}
	}
	return amx{set: ks}
})

// leastAMX is from how many rows on tiles are used: fewer don't pay for opening the weights. It is not measured.
const leastAMX = 32

// amxSet is the set, whatever this CPU can run.
func amxSet() *kernelSet {
	ks := avx512()
	ks.name, ks.wide = "amx", &wide{least: leastAMX}
	fillAMX(ks.wide)
	return ks
}

// whyNot says why this machine lacks a kernel set that it might have, and whether its owner should be told unasked.
func whyNot(name string) (why error, tell bool) {
	if name != "amx" {
		return nil, false
	}
	a := amxOfThisProcess()
	return a.why, a.some
}

// allowAMX makes sure that this process may use tiles of the shapes that the kernels configure.
func allowAMX() error {
	const config, data = 17, 18 // components of the extended state
	if low, _ := xgetbv(); low>>config&3 != 3 {
		return errors.New("the operating system does not save the tiles (XCR0)")
	}
	_, palette, rows, _ := cpuid(0x1d, 1)
	_, multiply, _, _ := cpuid(0x1e, 0)
	if !tilesFit(palette, rows, multiply) {
		return fmt.Errorf("its tiles are too small (CPUID 1DH: %#x, %#x; 1EH: %#x)", palette, rows, multiply)
	}
	return requestTiles(data)
}

// tilesFit reads what CPUID says of palette 1 (leaf 1DH, EBX and ECX) and of multiplication (leaf 1EH, EBX).
func tilesFit(palette, rows, multiply uint32) bool {
	rowBytes, tiles := palette&0xffff, palette>>16
	return rowBytes >= 64 && tiles >= 6 && rows&0xffff >= 16 && multiply&0xff >= 16 && multiply>>8&0xffff >= 64
}

func cpuid(leaf, sub uint32) (eax, ebx, ecx, edx uint32)

func xgetbv() (low, high uint32)
