package tensor

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// Assembly reads wideCall by these offsets (gen/amx.go).
func TestWideCallOffsets(t *testing.T) {
	var c wideCall
	got := []uintptr{unsafe.Offsetof(c.weights), unsafe.Offsetof(c.groups), unsafe.Offsetof(c.blocks), unsafe.Offsetof(c.acts),
		unsafe.Offsetof(c.tiles), unsafe.Offsetof(c.stride), unsafe.Offsetof(c.out), unsafe.Offsetof(c.outRow),
		unsafe.Offsetof(c.resume), unsafe.Offsetof(c.mask), unsafe.Offsetof(c.sums)}
	if want := []uintptr{0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80}; !slices.Equal(got, want) {
		t.Errorf("offsets %v, assembly uses %v", got, want)
	}
}

// What opens weights and lays activations for the tiles needs AVX-512 only, and equals plain Go byte for byte.
func TestWidePreparation(t *testing.T) {
	if !hasAVX512() {
		return // nothing can run it
	}
	w := amxSet().wide
	r := rand.New(rand.NewPCG(1, 2))
	for id := range numForms {
		f := &forms[id]
		if f.float() {
			continue
		}
		for _, units := range []int{1, 2, 7} {
			panel := make([]byte, units*f.unitBytes())
			for i := range panel {
				panel[i] = byte(r.Uint32())
			}
			for u := range units {
				for g := range panelGroups {
					f.plainScales(panel[f.scales(u, g):], r.Uint32)
				}
			}
			for g := range panelGroups {
				size := units * f.blocks() * f.wideBlockBytes()
				got, want := aligned(size+64), aligned(size+64)
				c := call{scales: &panel[f.scales(0, g)], lines: &panel[f.lines(0, g)], steps: units, a: &got[0]}
				w.open[id](&c)
				c.a = &want[0]
				openPlain(f, &c)
				for i, v := range want {
					if got[i] != v {
						t.Fatalf("form %d, %d units, group %d: block %d, byte %d is %#x, plain Go has %#x", id, units, g,
							i/f.wideBlockBytes(), i%f.wideBlockBytes(), got[i], v)
					}
				}
			}
		}
	}
	for _, blocks := range []int{1, 3, 8} {
		got := randomTile(blocks, uint64(blocks))
		want := append([]byte{}, got...)
		w.lay(&got[0], blocks)
		layPlain(&want[0], blocks)
		if !bytes.Equal(got, want) {
			t.Errorf("%d blocks are laid otherwise than plain Go lays them", blocks)
		}
	}
}

func TestTilesFit(t *testing.T) {
	for _, c := range []struct {
		palette, rows, multiply uint32
		fit                     bool
	}{
		{8<<16 | 64, 16, 64<<8 | 16, true}, // Sapphire Rapids
		{0, 0, 0, false},
		{5<<16 | 64, 16, 64<<8 | 16, false},
		{8<<16 | 32, 16, 64<<8 | 16, false},
		{8<<16 | 64, 8, 64<<8 | 16, false},
		{8<<16 | 64, 16, 64<<8 | 8, false},
		{8<<16 | 64, 16, 32<<8 | 16, false},
	} {
		if got := tilesFit(c.palette, c.rows, c.multiply); got != c.fit {
			t.Errorf("%#x %#x %#x: fit %v", c.palette, c.rows, c.multiply, got)
		}
	}
}

// Who asks for tiles where there are none is told why, and what there is.
func TestForcedWithoutAMX(t *testing.T) {
	a := amxOfThisProcess()
	ks, err := choose("amx")
	if a.set != nil {
		if err != nil || ks.name != "amx" || CPUNote() != "" {
			t.Errorf("this CPU has AMX: %v, %q", err, CPUNote())
		}
		return
	}
	for _, want := range []string{`MESHNET_CPU="amx"`, strings.Join(CPUs(), ", "), "generic", "not amx: " + a.why.Error()} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	if (CPUNote() != "") != a.some {
		t.Errorf("note %q; the CPU has AMX: %v", CPUNote(), a.some)
	}
}
