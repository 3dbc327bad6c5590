package vec

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// CacheType says how keys and values are kept from one step to the next. What is
// read back is float32 again: the value that was nearest to what was put.
type CacheType uint8

// Numbers are those of the wire.
const (
	CacheF32 CacheType = 1 + iota // as they are
	CacheF16                      // IEEE binary16; what is finite stays finite, at most 65504
	CacheQ8                       // int8 and a float32 scale for each block of a head's dimension
)

const cacheTypes = 3

// CacheBlock is the number of values of a head's dimension that share a scale in
// CacheQ8. If it is no divisor of the dimension, the last block is what remains.
const CacheBlock = 32

// CacheTypes are all, in the order of their numbers.
func CacheTypes() []CacheType { return []CacheType{CacheF32, CacheF16, CacheQ8} }

var cacheNames = [cacheTypes + 1]string{"", "f32", "f16", "q8"}

// Known says that t is one of CacheTypes.
func (t CacheType) Known() bool { return t >= 1 && t <= cacheTypes }

func (t CacheType) String() string {
	if !t.Known() {
		return fmt.Sprintf("cache type %d", uint8(t))
	}
	return cacheNames[t]
}

// ParseCacheType reads what String writes.
func ParseCacheType(name string) (CacheType, error) {
	for _, t := range CacheTypes() {
		if t.String() == name {
			return t, nil
		}
	}
	return 0, fmt.Errorf("cache type %q: there are %s", name, strings.Join(cacheNames[1:], ", "))
}

// PartBytes is the size of a key chunk, and of a value chunk, of vectors of dim values:
//
//	     keys                      values
//	f32  [Chunk/16][dim][16]       [Chunk][dim]        float32
//	f16  the same                  the same            binary16
//	q8   the same                  the same            int8, then
//	     [Chunk/16][blocks][16]    [Chunk][blocks]     float32 scales
//
// Everything is little endian.
func (t CacheType) PartBytes(dim int) int {
	switch t {
	case CacheF32:
		return 4 * Chunk * dim
	case CacheF16:
		return 2 * Chunk * dim
	case CacheQ8:
		return Chunk * (dim + 4*cacheBlocks(dim))
	}
	panic(fmt.Sprintf("vec: %v has no layout", t))
}

// cacheBlocks is the number of scales of a vector.
func cacheBlocks(dim int) int { return (dim + CacheBlock - 1) / CacheBlock }

// PutKey stores key as position slot (0 .. Chunk-1) of a key chunk.
func (t CacheType) PutKey(chunk []byte, slot int, key []float32) {
	dim := len(key)
	need(slot >= 0 && slot < Chunk && len(chunk) >= t.PartBytes(dim))
	group, lane := slot/Lanes, slot%Lanes
	at := group*Lanes*dim + lane
	switch t {
	case CacheF32:
		for d, v := range key {
			binary.LittleEndian.PutUint32(chunk[4*(at+d*Lanes):], math.Float32bits(v))
		}
	case CacheF16:
		for d, v := range key {
			binary.LittleEndian.PutUint16(chunk[2*(at+d*Lanes):], cacheF16(v))
		}
	case CacheQ8:
		scales := chunk[Chunk*dim+4*(group*Lanes*cacheBlocks(dim)+lane):]
		for b := 0; b < dim; b += CacheBlock {
			block := key[b:min(b+CacheBlock, dim)]
			scale, inverse := cacheScale(block)
			binary.LittleEndian.PutUint32(scales[4*Lanes*(b/CacheBlock):], math.Float32bits(scale))
			for d, v := range block {
				chunk[at+(b+d)*Lanes] = cacheCode(v, inverse)
			}
		}
	}
}

// PutValue stores value as position slot of a value chunk.
func (t CacheType) PutValue(chunk []byte, slot int, value []float32) {
	dim := len(value)
	need(slot >= 0 && slot < Chunk && len(chunk) >= t.PartBytes(dim))
	at := slot * dim
	switch t {
	case CacheF32:
		for d, v := range value {
			binary.LittleEndian.PutUint32(chunk[4*(at+d):], math.Float32bits(v))
		}
	case CacheF16:
		for d, v := range value {
			binary.LittleEndian.PutUint16(chunk[2*(at+d):], cacheF16(v))
		}
	case CacheQ8:
		scales := chunk[Chunk*dim+4*slot*cacheBlocks(dim):]
		for b := 0; b < dim; b += CacheBlock {
			block := value[b:min(b+CacheBlock, dim)]
			scale, inverse := cacheScale(block)
			binary.LittleEndian.PutUint32(scales[4*(b/CacheBlock):], math.Float32bits(scale))
			for d, v := range block {
				chunk[at+b+d] = cacheCode(v, inverse)
			}
		}
	}
}

// cacheF16 is ToF16, but what is finite and too large becomes the largest finite
// value. Infinities and NaN stay what they are: they are errors and must show.
func cacheF16(x float32) uint16 {
	h := ToF16(x)
	if h&0x7fff == 0x7c00 && math.Float32bits(x)&0x7fffffff < 0x7f800000 {
		h-- // 65504
	}
	return h
}

// cacheLeast is what a block's largest value must reach; else all of it is 0, which
// keeps the scale's inverse finite.
const cacheLeast = 1.0 / (1 << 100)

// cacheScale is the scale of a block, its largest magnitude over 127, and the
// inverse of that. A NaN or an infinity in the block makes all of it NaN when it is
// read: such values are errors and must show.
func cacheScale(block []float32) (scale, inverse float32) {
	var most uint32 // magnitudes ascend like their bits, NaN above all
	for _, v := range block {
		most = max(most, math.Float32bits(v)&0x7fffffff)
	}
	switch peak := math.Float32frombits(most); {
	case most >= 0x7f800000:
		return float32(math.NaN()), 0
	case peak < cacheLeast:
		return 0, 0
	default:
		return peak / 127, 127 / peak
	}
}

// cacheCode is x * inverse rounded to an integer, ties to even; within ±127.
func cacheCode(x, inverse float32) byte {
	if inverse == 0 {
		return 0
	}
	t := float32(x*inverse) + roundInt
	return byte(math.Float32bits(t) - roundBits)
}

const roundBits = 0x4b400000 // of float32(roundInt)

// loadKeys widens value d of the keys of a group of 16.
func (t CacheType) loadKeys(to *[Lanes]float32, keys []byte, dim, group, d int) {
	at := (group*dim + d) * Lanes
	switch t {
	case CacheF32:
		for i := range to {
			to[i] = float32At(keys, at+i)
		}
	case CacheF16:
		for i := range to {
			to[i] = float16At(keys, at+i)
		}
	case CacheQ8:
		scales := keys[Chunk*dim:]
		for i := range to {
			s := float32At(scales, (group*cacheBlocks(dim)+d/CacheBlock)*Lanes+i)
			to[i] = float32(int8(keys[at+i])) * s
		}
	}
}

// loadValue widens the 16 values from d on of position slot.
func (t CacheType) loadValue(to *[Lanes]float32, values []byte, dim, slot, d int) {
	at := slot*dim + d
	switch t {
	case CacheF32:
		for i := range to {
			to[i] = float32At(values, at+i)
		}
	case CacheF16:
		for i := range to {
			to[i] = float16At(values, at+i)
		}
	case CacheQ8:
		s := float32At(values[Chunk*dim:], slot*cacheBlocks(dim)+d/CacheBlock)
		for i := range to {
			to[i] = float32(int8(values[at+i])) * s
		}
	}
}

func float32At(b []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
}

func float16At(b []byte, i int) float32 { return FromF16(binary.LittleEndian.Uint16(b[2*i:])) }
