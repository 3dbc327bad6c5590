package tensor

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// kernel is a multiplication of groups x 16 rows with a tile of activations.
type kernel struct {
	groups int
	fn     func(*call)
}

// kernelSet is what one instruction set can do. All sets give the same bits.
type kernelSet struct {
	name     string
	tile     int // most activation rows a tile, when there are many
	few      int // likewise when there are at most twice as many; 0: as tile
	quantize func(x []float32, dst []byte, rows, r int)
	kernels  [numForms][maxTile + 1]kernel // by form and rows of the tile
	wide     *wide                         // for many rows; nil: there is no other way
}

// width is the rows of a tile for n rows: as few tiles as there can be, and those alike.
func (ks *kernelSet) width(n int) int {
	most := ks.tile
	if n <= 2*ks.few {
		most = ks.few
	}
	tiles := max(1, (n+most-1)/most)
	return max(1, (n+tiles-1)/tiles)
}

// CPUVariable is the environment variable that forces a kernel set.
const CPUVariable = "MESHNET_CPU"

// chosen picks the kernel set of this process, once: the one named in the environment, else the best that the CPU has.
var chosen = sync.OnceValues(func() (*kernelSet, error) { return choose(os.Getenv(CPUVariable)) })

// CPU names the kernel set in use: "amx", "avx512", "avxvnni", "avx2", "neon" or "generic". When the environment asks for one that this
// CPU lacks, it returns that error, as will Pack.
func CPU() (string, error) {
	ks, err := chosen()
	if err != nil {
		return "", err
	}
	return ks.name, nil
}

// CPUNote says which better kernel set than the chosen one the CPU has, and why it is not used: "not amx: ..."; or nothing.
func CPUNote() string {
	if why, tell := whyNot("amx"); tell {
		return "not amx: " + why.Error()
	}
	return ""
}

// CPUs names the kernel sets that this machine has, the best first.
func CPUs() (names []string) {
	for _, ks := range kernelSets() {
		names = append(names, ks.name)
	}
	return names
}

func choose(name string) (*kernelSet, error) {
	for _, ks := range kernelSets() {
		if ks.name == name || name == "" {
			return ks, nil
		}
	}
	err := fmt.Errorf("%s=%q: this machine has the kernel sets %s", CPUVariable, name, strings.Join(CPUs(), ", "))
	if why, _ := whyNot(name); why != nil {
		err = fmt.Errorf("%w; not %s: %w", err, name, why)
	}
	return nil, err
}

// generic is the set in plain Go.
func generic() *kernelSet {
	ks := &kernelSet{name: "generic", tile: maxTile, quantize: quantizeTwin}
	for id := range numForms {
		for t := 1; t <= maxTile; t++ {
			ks.kernels[id][t] = kernel{1, twin(&forms[id], t)}
		}
	}
	return ks
}
