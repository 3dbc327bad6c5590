package gguf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
)

// KV is a key and its value: string, bool, any sized integer, float32, float64, or a slice of one of them; or what
// File.KVs gave.
type KV struct {
	Key   string
	Value any
}

// TensorInfo is a tensor to be written: Data holds whole blocks of Type, rows back to back, Dims[0] values a row.
type TensorInfo struct {
	Name string
	Type Type
	Dims []uint64
	Data []byte
}

const writeAlignment = 32

// KVs are all keys of a file with their values, to be written to another file. general.alignment is left out: Write has its
// own. The values live as long as the file is open.
func (f *File) KVs() []KV {
	var out []KV
	for _, key := range f.keys {
		if key != alignmentKey {
			out = append(out, KV{key, f.values[key]})
		}
	}
	return out
}

// Write writes a version 3 file with the keys and tensors in the given order. The same input gives the same bytes.
func Write(w io.Writer, kv []KV, tensors []TensorInfo) error {
	for _, t := range tensors {
		if want, err := t.bytes(); err == nil && uint64(len(t.Data)) != want {
			return fmt.Errorf("write model: tensor %q: %d bytes of data, dims %d of %s need %d", t.Name, len(t.Data), t.Dims, t.Type, want)
		}
	}
	return WriteFrom(w, kv, tensors, func(i int, w io.Writer) error {
		_, err := w.Write(tensors[i].Data)
		return err
	})
}

// WriteFrom is Write for tensors that are made while they are written: fill writes the data of tensor i, and is called for
// each in order. Their Data is not looked at.
func WriteFrom(w io.Writer, kv []KV, tensors []TensorInfo, fill func(i int, w io.Writer) error) error {
	var head []byte
	head = append(head, "GGUF"...)
	head = binary.LittleEndian.AppendUint32(head, 3)
	head = binary.LittleEndian.AppendUint64(head, uint64(len(tensors)))
	head = binary.LittleEndian.AppendUint64(head, uint64(len(kv)))
	for _, p := range kv {
		k, err := kindOf(p.Value)
		if err != nil {
			return fmt.Errorf("write model: key %q: %w", p.Key, err)
		}
		head = appendString(head, p.Key)
		head = binary.LittleEndian.AppendUint32(head, uint32(k))
		head = appendValue(head, p.Value)
	}
	offset := uint64(0)
	sizes := make([]uint64, len(tensors))
	for i, t := range tensors {
		size, err := t.bytes()
		if err != nil {
			return fmt.Errorf("write model: tensor %q: %w", t.Name, err)
		}
		sizes[i] = size
		head = appendString(head, t.Name)
		head = binary.LittleEndian.AppendUint32(head, uint32(len(t.Dims)))
		for _, d := range t.Dims {
			head = binary.LittleEndian.AppendUint64(head, d)
		}
		head = binary.LittleEndian.AppendUint32(head, uint32(t.Type))
		head = binary.LittleEndian.AppendUint64(head, offset)
		offset += size + padding(size)
	}
	c := &counter{w: bufio.NewWriterSize(w, 1<<16)}
	c.Write(head)
	c.Write(make([]byte, padding(uint64(len(head)))))
	for i, t := range tensors {
		c.n = 0
		if err := fill(i, c); err != nil {
			return fmt.Errorf("write model: tensor %q: %w", t.Name, err)
		}
		if c.n != sizes[i] {
			return fmt.Errorf("write model: tensor %q: %d bytes of data were given, dims %d of %s need %d", t.Name, c.n, t.Dims, t.Type, sizes[i])
		}
		c.Write(make([]byte, padding(c.n)))
	}
	if err := c.w.Flush(); err != nil {
		return fmt.Errorf("write model: %w", err)
	}
	return nil
}

// counter counts what goes through it.
type counter struct {
	w *bufio.Writer
	n uint64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += uint64(n)
	return n, err
}

func padding(n uint64) uint64 { return -n & (writeAlignment - 1) }

// bytes is how much data the tensor has.
func (t *TensorInfo) bytes() (uint64, error) {
	if !t.Type.Known() {
		return 0, fmt.Errorf("unknown %s", t.Type)
	}
	if len(t.Dims) < 1 || len(t.Dims) > 4 {
		return 0, fmt.Errorf("%d dims, 1 to 4 are allowed", len(t.Dims))
	}
	n := uint64(1)
	for _, d := range t.Dims {
		hi, lo := bits.Mul64(n, d)
		if d == 0 || hi != 0 || lo > maxElements {
			return 0, fmt.Errorf("dims %d are empty or too large", t.Dims)
		}
		n = lo
	}
	if t.Dims[0]%uint64(t.Type.BlockSize()) != 0 {
		return 0, fmt.Errorf("rows of %d values are not whole blocks of %d (%s)", t.Dims[0], t.Type.BlockSize(), t.Type)
	}
	return n / uint64(t.Type.BlockSize()) * uint64(t.Type.BlockBytes()), nil
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

func kindOf(v any) (kind, error) {
	switch v := v.(type) {
	case value:
		return v.kind, nil
	case uint8:
		return kindUint8, nil
	case int8:
		return kindInt8, nil
	case uint16:
		return kindUint16, nil
	case int16:
		return kindInt16, nil
	case uint32:
		return kindUint32, nil
	case int32:
		return kindInt32, nil
	case uint64:
		return kindUint64, nil
	case int64:
		return kindInt64, nil
	case float32:
		return kindFloat32, nil
	case float64:
		return kindFloat64, nil
	case bool:
		return kindBool, nil
	case string:
		return kindString, nil
	case []uint8, []int8, []uint16, []int16, []uint32, []int32, []uint64, []int64, []float32, []float64, []bool, []string:
		return kindArray, nil
	}
	return 0, fmt.Errorf("a %T is no GGUF value (an int needs a size: uint32, int64, ...)", v)
}

func appendValue(b []byte, v any) []byte {
	le := binary.LittleEndian
	switch v := v.(type) {
	case value:
		if v.kind == kindArray {
			b = le.AppendUint32(b, uint32(v.elem))
			b = le.AppendUint64(b, uint64(v.n))
		} else if v.kind == kindString {
			b = le.AppendUint64(b, uint64(len(v.raw)))
		}
		return append(b, v.raw...)
	case uint8:
		return append(b, v)
	case int8:
		return append(b, byte(v))
	case uint16:
		return le.AppendUint16(b, v)
	case int16:
		return le.AppendUint16(b, uint16(v))
	case uint32:
		return le.AppendUint32(b, v)
	case int32:
		return le.AppendUint32(b, uint32(v))
	case uint64:
		return le.AppendUint64(b, v)
	case int64:
		return le.AppendUint64(b, uint64(v))
	case float32:
		return le.AppendUint32(b, math.Float32bits(v))
	case float64:
		return le.AppendUint64(b, math.Float64bits(v))
	case bool:
		if v {
			return append(b, 1)
		}
		return append(b, 0)
	case string:
		return appendString(b, v)
	case []uint8:
		return appendArray(b, v)
	case []int8:
		return appendArray(b, v)
	case []uint16:
		return appendArray(b, v)
	case []int16:
		return appendArray(b, v)
	case []uint32:
		return appendArray(b, v)
	case []int32:
		return appendArray(b, v)
	case []uint64:
		return appendArray(b, v)
	case []int64:
		return appendArray(b, v)
	case []float32:
		return appendArray(b, v)
	case []float64:
		return appendArray(b, v)
	case []bool:
		return appendArray(b, v)
	case []string:
		return appendArray(b, v)
	}
	panic(fmt.Sprintf("gguf: kindOf let a %T pass", v))
}

func appendArray[T any](b []byte, v []T) []byte {
	var zero T
	elem, _ := kindOf(zero)
	b = binary.LittleEndian.AppendUint32(b, uint32(elem))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(v)))
	for _, e := range v {
		b = appendValue(b, e)
	}
	return b
}
