package gguf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

const (
	headerBytes = 24 // magic, version, tensor count, key count
	// Bounds that no real file comes near; each keeps a hostile count from becoming work or memory.
	maxKeys      = 65536
	maxTensors   = 65536
	maxKeyBytes  = 65535 // as the format says
	maxNameBytes = 1024
	maxString    = 1 << 20
	maxElements  = 1 << 48 // of one tensor; keeps every later size inside int64
	maxAlignment = 1 << 20
	alignmentKey = "general.alignment"
)

// kind is the type tag of a value.
type kind uint32

const (
	kindUint8 kind = iota
	kindInt8
	kindUint16
	kindInt16
	kindUint32
	kindInt32
	kindFloat32
	kindBool
	kindString
	kindArray
	kindUint64
	kindInt64
	kindFloat64
)

// kindBytes is the size of a value of a fixed-size kind, 0 for strings and arrays.
var kindBytes = [...]int{kindUint8: 1, kindInt8: 1, kindUint16: 2, kindInt16: 2, kindUint32: 4, kindInt32: 4,
	kindFloat32: 4, kindBool: 1, kindString: 0, kindArray: 0, kindUint64: 8, kindInt64: 8, kindFloat64: 8}

var kindNames = [...]string{"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array",
	"uint64", "int64", "float64"}

func (k kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// value is an undecoded value: a scalar's bytes, a string's bytes, or an array's elements back to back.
type value struct {
	kind kind
	elem kind // of an array
	n    int  // elements of an array
	raw  []byte
}

// cursor reads from data front to back. The first fault sticks; later reads return zeros.
type cursor struct {
	data []byte
	off  int
	err  error
}

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("at byte %d: %w", c.off, fmt.Errorf(format, args...))
	}
}

func (c *cursor) rest() uint64 { return uint64(len(c.data) - c.off) }

// take returns the next n bytes, or nil when fewer remain.
func (c *cursor) take(n uint64, what string) []byte {
	if c.err != nil {
		return nil
	}
	if n > c.rest() {
		c.fail("%s needs %d bytes, the file has %d left", what, n, c.rest())
		return nil
	}
	b := c.data[c.off : c.off+int(n) : c.off+int(n)]
	c.off += int(n)
	return b
}

func (c *cursor) u32(what string) uint32 {
	if b := c.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64(what string) uint64 {
	if b := c.take(8, what); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) str(limit uint64, what string) []byte {
	n := c.u64(what)
	if c.err == nil && n > limit {
		c.fail("%s is %d bytes long, at most %d are allowed", what, n, limit)
		return nil
	}
	return c.take(n, what)
}

func (c *cursor) value() value {
	v := value{kind: kind(c.u32("value type"))}
	switch {
	case c.err != nil:
	case v.kind == kindString:
		v.raw = c.str(maxString, "string value")
	case v.kind == kindArray:
		c.array(&v)
	case int(v.kind) >= len(kindBytes):
		c.fail("unknown value type %d", uint32(v.kind))
	default:
		v.raw = c.take(uint64(kindBytes[v.kind]), "value")
		c.checkBools(v.kind, v.raw)
	}
	return v
}

func (c *cursor) array(v *value) {
	v.elem = kind(c.u32("array element type"))
	n := c.u64("array length")
	switch {
	case c.err != nil:
	case v.elem == kindArray:
		c.fail("an array of arrays is not supported")
	case int(v.elem) >= len(kindBytes):
		c.fail("unknown array element type %d", uint32(v.elem))
	case v.elem == kindString:
		if n > c.rest()/8 {
			c.fail("array of %d strings does not fit into the %d bytes left", n, c.rest())
			return
		}
		start := c.off
		for i := uint64(0); i < n && c.err == nil; i++ {
			c.str(maxString, "string in array")
		}
		v.n, v.raw = int(n), c.data[start:c.off:c.off]
	default:
		size := uint64(kindBytes[v.elem])
		if n > c.rest()/size {
			c.fail("array of %d %s does not fit into the %d bytes left", n, v.elem, c.rest())
			return
		}
		v.n, v.raw = int(n), c.take(n*size, "array")
		c.checkBools(v.elem, v.raw)
	}
}

func (c *cursor) checkBools(k kind, raw []byte) {
	if k != kindBool {
		return
	}
	for _, b := range raw {
		if b > 1 {
			c.fail("a bool is %d, only 0 and 1 are allowed", b)
			return
		}
	}
}

// Parse reads a file from memory. The result aliases data, which must not change.
func Parse(data []byte) (*File, error) {
	f := &File{data: data, values: map[string]value{}, byName: map[string]*Tensor{}}
	c := &cursor{data: data}
	tensors, keys := f.header(c)
	for i := uint64(0); i < keys && c.err == nil; i++ {
		f.key(c)
	}
	var offsets []uint64
	for i := uint64(0); i < tensors && c.err == nil; i++ {
		offsets = append(offsets, f.tensor(c))
	}
	if c.err != nil {
		return nil, c.err
	}
	align, err := f.alignment()
	if err != nil {
		return nil, err
	}
	start := (uint64(c.off) + align - 1) / align * align
	if err := f.place(offsets, start, align); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) header(c *cursor) (tensors, keys uint64) {
	if string(c.take(4, "magic")) != "GGUF" {
		c.err = nil
		c.fail("this is not a GGUF file (it does not begin with \"GGUF\")")
		return
	}
	f.Version = c.u32("version")
	if c.err == nil && f.Version != 2 && f.Version != 3 {
		if f.Version == bits.ReverseBytes32(2) || f.Version == bits.ReverseBytes32(3) {
			c.fail("the file is big endian, which is not supported: convert it again for little endian")
		}
		c.fail("GGUF version %d is not supported, only 2 and 3 are", f.Version)
	}
	tensors, keys = c.u64("tensor count"), c.u64("key count")
	// The least that a tensor (name length, dims, one dim, type, offset) and a key (length, type, value) take.
	if c.err == nil && (tensors > maxTensors || tensors > c.rest()/32) {
		c.fail("%d tensors do not fit into %d bytes, or are more than %d", tensors, c.rest(), maxTensors)
	}
	if c.err == nil && (keys > maxKeys || keys > c.rest()/13) {
		c.fail("%d keys do not fit into %d bytes, or are more than %d", keys, c.rest(), maxKeys)
	}
	return tensors, keys
}

func (f *File) key(c *cursor) {
	key := string(c.str(maxKeyBytes, "key"))
	if c.err == nil && key == "" {
		c.fail("a key is empty")
	}
	if _, twice := f.values[key]; twice {
		c.fail("key %q comes twice", key)
	}
	v := c.value()
	if c.err != nil {
		c.err = fmt.Errorf("key %q: %w", key, c.err)
		return
	}
	f.keys = append(f.keys, key)
	f.values[key] = v
}

// tensor reads one entry of the tensor table and returns the offset it gives.
func (f *File) tensor(c *cursor) uint64 {
	t := &Tensor{Name: string(c.str(maxNameBytes, "tensor name"))}
	if c.err == nil && t.Name == "" {
		c.fail("a tensor has no name")
	}
	if _, twice := f.byName[t.Name]; twice {
		c.fail("tensor %q comes twice", t.Name)
	}
	dims := c.u32("number of dims")
	if c.err == nil && (dims < 1 || dims > 4) {
		c.fail("tensor %q has %d dims, 1 to 4 are allowed", t.Name, dims)
	}
	elements := uint64(1)
	for i := uint32(0); i < dims && c.err == nil; i++ {
		d := c.u64("dim")
		hi, lo := bits.Mul64(elements, d)
		if c.err == nil && (d == 0 || hi != 0 || lo > maxElements) {
			c.fail("tensor %q: dim %d is %d; dims must be at least 1 and their product at most %d", t.Name, i, d, uint64(maxElements))
		}
		elements = lo
		t.Dims = append(t.Dims, d)
	}
	t.Type = Type(c.u32("tensor type"))
	if c.err == nil && t.Type.Known() && t.Dims[0]%uint64(t.Type.BlockSize()) != 0 {
		c.fail("tensor %q: rows of %d values are not whole blocks of %d (%s)", t.Name, t.Dims[0], t.Type.BlockSize(), t.Type)
	}
	off := c.u64("tensor offset")
	if c.err != nil {
		return 0
	}
	f.tensors = append(f.tensors, t)
	f.byName[t.Name] = t
	return off
}

func (f *File) alignment() (uint64, error) {
	v, ok := f.values[alignmentKey]
	if !ok {
		return 32, nil
	}
	a, ok := f.Uint(alignmentKey)
	if !ok {
		return 0, fmt.Errorf("key %q: %s is not a positive whole number", alignmentKey, v.kind)
	}
	if a == 0 || a&(a-1) != 0 || a > maxAlignment {
		return 0, fmt.Errorf("key %q: %d is not a power of two up to %d", alignmentKey, a, maxAlignment)
	}
	return a, nil
}

// place gives each tensor its bytes, start being where offset 0 is, and refuses any that overlap or leave the file.
func (f *File) place(offsets []uint64, start, align uint64) error {
	if len(f.tensors) == 0 {
		return nil
	}
	if start > uint64(len(f.data)) {
		return fmt.Errorf("the file ends at byte %d, before its tensor data at %d: it is incomplete, fetch it again", len(f.data), start)
	}
	space := uint64(len(f.data)) - start
	order := make([]int, len(f.tensors))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(offsets[a], offsets[b]) })
	var errs []error
	end, before := uint64(0), ""
	for _, i := range order {
		t, off := f.tensors[i], offsets[i]
		size := uint64(0)
		if t.Type.Known() {
			size = uint64(1)
			for _, d := range t.Dims {
				size *= d
			}
			size = size / uint64(t.Type.BlockSize()) * uint64(t.Type.BlockBytes())
		}
		switch {
		case off%align != 0:
			errs = append(errs, fmt.Errorf("tensor %q: offset %d is not a multiple of %d", t.Name, off, align))
		case off > space || size > space-off:
			errs = append(errs, fmt.Errorf("tensor %q: %d bytes at offset %d end outside the %d bytes of data: "+
				"the file is incomplete or damaged, fetch it again", t.Name, size, off, space))
		case off < end:
			errs = append(errs, fmt.Errorf("tensor %q: offset %d lies inside tensor %q, which ends at %d", t.Name, off, before, end))
		}
		if len(errs) > 0 {
			return errors.Join(errs...)
		}
		end, before = off+size, t.Name
		if t.Type.Known() {
			t.Data = f.data[start+off : start+end : start+end]
		}
	}
	return nil
}
