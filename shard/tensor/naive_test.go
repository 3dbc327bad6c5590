package tensor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
)

// naive is one output by the words of twin's comment, value after value from the file's layout, with an exact fma.
func naive(t *gguf.Tensor, row int, x []float32) float32 {
	f := formOf(t.Type)
	raw := t.Data[row*t.RowBytes():][:t.RowBytes()]
	acc := float32(0)
	if f.float() {
		for i, v := range x {
			acc = exactFMA(f.floatAt(raw, i), v, acc)
		}
		return acc
	}
	for u := 0; u < len(x); u += 32 {
		top := float32(0)
		for _, v := range x[u : u+32] {
			top = max(top, float32(math.Abs(float64(v))))
		}
		da := top / 127
		var b block
		f.readBlock(raw, u/32, &b)
		var half [2]int32
		var sums [2]int32
		for i, v := range x[u : u+32] {
			if da != 0 {
				a := int32(math.RoundToEven(float64(v * (1 / da))))
				half[i/16] += f.weight(b.q[i]) * a
				sums[i/16] += a
			}
		}
		sum := sums[0] + sums[1]
		d := halfAt(b.d[:])
		switch {
		case f.bfloat:
			acc = exactFMA(float32(half[0]+half[1]), bfloat(le.Uint16(b.d[:]))*da, acc)
		case f.halves && f.mins:
			for h := range 2 {
				acc = exactFMA(float32(half[h]), d*float32(b.sc16[h]&15)*da, acc)
			}
			for h := range 2 {
				acc = exactFMA(-(halfAt(b.m[:]) * float32(b.sc16[h]>>4)), da*float32(sums[h]), acc)
			}
		case f.halves:
			for h := range 2 {
				acc = exactFMA(float32(half[h]), d*float32(int8(b.sc16[h]))*da, acc)
			}
		case f.super:
			acc = exactFMA(float32(half[0]+half[1]), d*float32(int8(b.sc))*da, acc)
			acc = exactFMA(-(halfAt(b.m[:]) * float32(b.mn)), da*float32(sum), acc)
		default:
			acc = exactFMA(float32(half[0]+half[1]), d*da, acc)
			if f.mins {
				acc = exactFMA(halfAt(b.m[:]), da*float32(sum), acc)
			}
		}
	}
	return acc
}

// All sets, the twin too, against the naive sum, with random weights and with the extremes of weights and activations.
func TestKernelsEqualNaive(t *testing.T) { kernelsEqualNaive(t, kernelSets(), 20, 512) }

func kernelsEqualNaive(t *testing.T, sets []*kernelSet, rows, cols int) {
	t.Helper()
	p := pool.New(1)
	const n = 2
	for _, typ := range allTypes() {
		for _, fill := range []string{"random", "00", "ff", "80", "7f"} {
			ts := randomTensor(typ, rows, cols, 3)
			var b byte
			if _, err := fmt.Sscanf(fill, "%x", &b); err == nil && !formOf(typ).float() {
				size := typ.BlockBytes()
				copy(ts.Data, bytes.Repeat([]byte{b}, len(ts.Data)))
				for i := 0; i < len(ts.Data); i += size { // ordinary scales
					for j, at := range scalesAt(typ) {
						binary.LittleEndian.PutUint16(ts.Data[i+at:], []uint16{0x2c01, 0xa803}[j])
					}
					if typ == gguf.MXFP4 {
						ts.Data[i] = 120
					}
				}
			}
			x := randomActs(n, cols, 8)
			for i := range x[cols:] { // the second row: 127 and -127 in turns of three lengths
				x[cols+i] = float32(1 - 2*(i/(1+i/128)%2))
			}
			for _, ks := range sets {
				m, err := packFused(ks, p, ts)
				if err != nil {
					t.Fatal(err)
				}
				out := make([]float32, n*rows)
				m.Mul(p, x, n, out, new(Scratch))
				for r := range rows {
					for i := range n {
						bitsEqual(t, fmt.Sprintf("%s %s %s row %d", ks.name, typ, fill, r), out[i*rows+r:][:1], []float32{naive(ts, r, x[i*cols:][:cols])})
					}
				}
				m.Close()
			}
		}
	}
}
