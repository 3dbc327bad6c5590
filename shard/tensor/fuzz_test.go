package tensor

import (
	"math"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
)

// FuzzPack: blocks of any bits, of any type, are refused or become a matrix that every
// kernel set multiplies to the same bits.
func FuzzPack(f *testing.F) {
	var types []gguf.Type
	for typ := range gguf.Type(64) {
		if Supported(typ) {
			types = append(types, typ)
		}
	}
	for i, typ := range types {
		f.Add(uint8(i), randomTensor(typ, 2, 256, 1).Data)
		f.Add(uint8(i), make([]byte, 10))
	}
	p := pool.New(1)
	f.Cleanup(p.Close)
	sets := kernelSets()
	f.Fuzz(func(t *testing.T, which uint8, bits []byte) {
		const rows, cols = 2, 256
		ts := &gguf.Tensor{Name: "fuzz", Type: types[int(which)%len(types)], Dims: []uint64{cols, rows}}
		ts.Data = make([]byte, rows*ts.RowBytes())
		copy(ts.Data, bits)
		row := make([]float32, cols)
		if err := DequantRow(ts, 1, row); err != nil {
			t.Fatalf("a tensor of the right size: %v", err)
		}
		x := randomActs(2, cols, 5)
		var first []float32
		for i, ks := range sets {
			m, err := packFused(ks, p, ts)
			if err != nil {
				if i > 0 && first != nil {
					t.Fatalf("%s refuses what %s takes: %v", ks.name, sets[0].name, err)
				}
				continue
			}
			if i > 0 && first == nil {
				t.Fatalf("%s takes what %s refuses", ks.name, sets[0].name)
			}
			out := make([]float32, 2*rows)
			m.Mul(p, x, 2, out, new(Scratch))
			m.Close()
			if first == nil {
				first = out
			}
			for j := range out {
				if math.Float32bits(out[j]) != math.Float32bits(first[j]) && !(out[j] != out[j] && first[j] != first[j]) {
					t.Fatalf("%s: value %d is %g, %s has %g", ks.name, j, out[j], sets[0].name, first[j])
				}
			}
		}
	})
}
