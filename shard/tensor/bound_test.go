package tensor

import (
	"fmt"
	"testing"
	"time"

	"github.com/meshnet/meshnet/shard/pool"
)

// What one call of assembly is given, for every set, form and tile, stays within what the sets of a machine a third as fast as
// ours do in 100 us, and rows as long as models have them are not cut for nothing.
func TestCallsAreBounded(t *testing.T) {
	sets := kernelSets()
	for _, ks := range sets {
		for id := range numForms {
			f := &forms[id]
			for rows := 1; rows <= maxTile; rows++ {
				groups := ks.kernels[id][rows].groups
				if groups == 0 {
					continue
				}
				name := fmt.Sprintf("%s form %d, %d groups, %d rows", ks.name, id, groups, rows)
				steps := f.callSteps(groups, rows)
				bytes := steps * f.unitBytes()
				weights := steps * f.unit * groups * groupRows
				if bytes > 512<<10 || weights*(rows+2) > 2<<20 {
					t.Errorf("%s: %d bytes, %d weights", name, bytes, weights)
				}
				if more := steps + 1; more*f.unitBytes() <= maxCallBytes && more*f.stepWork(groups, rows) <= maxCallWork {
					t.Errorf("%s: a call could take more than %d units", name, steps)
				}
				if steps*f.unit < 2000 {
					t.Errorf("%s: rows are cut after %d values", name, steps*f.unit)
				}
			}
		}
	}
	for blocks := 1; blocks <= maxWideBlocks; blocks++ {
		groups := wideGroupsOfCall(blocks)
		tiles := wideTilesOfCall(blocks, groups)
		if products := blocks * groups * tiles; groups < 1 || groups > panelGroups || tiles < 1 || products > 512 || products <= 128 {
			t.Errorf("tiles, %d blocks: %d groups, %d tiles", blocks, groups, tiles)
		}
	}
}

// The kernels are called with no more than callSteps says, and the parts make up the row.
func TestCallsAsComputed(t *testing.T) {
	p := pool.New(1)
	for id := range numForms {
		f := &forms[id]
		for rows := 1; rows <= maxTile; rows++ {
			ks := generic()
			k := &ks.kernels[id][rows]
			most, total := f.callSteps(k.groups, rows), 0
			k.fn = func(c *call) {
				if c.steps > most || c.steps < 1 {
					t.Errorf("form %d, %d rows: a call of %d units, at most %d", id, rows, c.steps, most)
				}
				total += c.steps
			}
			cols := (2*most + 1) * f.unit
			m := &Matrix{rows: groupRows, cols: cols, form: f, panel: f.panelBytes(cols), data: make([]byte, f.panelBytes(cols)), ks: ks}
			m.Mul(p, make([]float32, rows*cols), rows, make([]float32, rows*groupRows), new(Scratch))
			if total != 2*most+1 {
				t.Errorf("form %d, %d rows: calls of %d units together, the row has %d", id, rows, total, 2*most+1)
			}
		}
	}
}

// The longest call of each set, weights from memory: the house's bound is 100 us.
func BenchmarkLongestCall(b *testing.B) {
	data := aligned(64 << 20)
	for i := range data { // untouched memory would be one page of zeros
		data[i] = byte(i)
	}
	for _, ks := range kernelSets() {
		if ks.name == "generic" { // which can be stopped
			continue
		}
		b.Run(ks.name, func(b *testing.B) {
			var worst time.Duration
			which := ""
			for b.Loop() {
				for id := range numForms {
					f := &forms[id]
					for rows := 1; rows <= maxTile; rows++ {
						k := &ks.kernels[id][rows]
						if k.groups == 0 {
							continue
						}
						c := &call{steps: f.callSteps(k.groups, rows), outRow: panelRows * 4}
						size := c.steps * f.unitBytes()
						out := make([]float32, rows*panelRows)
						acts := make([]byte, c.steps*rows*max(4, f.unit/blockValues*actBlockBytes))
						c.a, c.out = &acts[0], &out[0]
						sum := time.Duration(0)
						const calls = 40
						for i := range calls {
							w := data[i*((len(data)-size)/calls/64)*64:][:size]
							c.scales, c.lines = &w[f.scales(0, 0)], &w[f.lines(0, 0)]
							start := time.Now()
							invoke(k, c)
							sum += time.Since(start)
						}
						if mean := sum / calls; mean > worst {
							worst, which = mean, fmt.Sprintf("form %d, %d rows", id, rows)
						}
					}
				}
			}
			b.ReportMetric(float64(worst.Nanoseconds())/1e3, "us/call")
			b.Log(which)
		})
	}
	for _, ks := range kernelSets() {
		b.Run(ks.name+"/quantize", func(b *testing.B) {
			x, dst := randomActs(1, 512*blockValues, 1), make([]byte, 512*actBlockBytes*maxTile)
			for b.Loop() {
				ks.quantize(x, dst, maxTile, 0)
			}
		})
	}
}
