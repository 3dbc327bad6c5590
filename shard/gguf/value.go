package gguf

import (
	"encoding/binary"
	"math"
)

// Keys lists the file's keys in order. The slice is the file's own.
func (f *File) Keys() []string { return f.keys }

// Has says whether the file has the key, whatever its kind.
func (f *File) Has(key string) bool {
	_, ok := f.values[key]
	return ok
}

// Kind names the type of a key's value ("uint32", "array of string"), "" when the key is absent; for error messages.
func (f *File) Kind(key string) string {
	v, ok := f.values[key]
	switch {
	case !ok:
		return ""
	case v.kind == kindArray:
		return "array of " + v.elem.String()
	}
	return v.kind.String()
}

// String is the value of a string key. The text is as in the file: nothing is trimmed, and it need not be UTF-8.
func (f *File) String(key string) (string, bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kindString {
		return "", false
	}
	return string(v.raw), true
}

// Uint is the value of a key of any whole-number kind that is not negative.
func (f *File) Uint(key string) (uint64, bool) {
	n, ok := f.integer(key)
	if !ok {
		return 0, false
	}
	if v := f.values[key]; n < 0 && v.kind != kindUint64 {
		return 0, false
	}
	return uint64(n), true
}

// Int is the value of a key of any whole-number kind that fits.
func (f *File) Int(key string) (int64, bool) {
	n, ok := f.integer(key)
	if !ok || n < 0 && f.values[key].kind == kindUint64 {
		return 0, false
	}
	return n, true
}

func (f *File) integer(key string) (int64, bool) {
	v, ok := f.values[key]
	if !ok {
		return 0, false
	}
	return v.kind.integer(v.raw)
}

// integer decodes a whole number; the bits of a uint64 come as they are.
func (k kind) integer(b []byte) (int64, bool) {
	switch k {
	case kindUint8:
		return int64(b[0]), true
	case kindInt8:
		return int64(int8(b[0])), true
	case kindUint16:
		return int64(binary.LittleEndian.Uint16(b)), true
	case kindInt16:
		return int64(int16(binary.LittleEndian.Uint16(b))), true
	case kindUint32:
		return int64(binary.LittleEndian.Uint32(b)), true
	case kindInt32:
		return int64(int32(binary.LittleEndian.Uint32(b))), true
	case kindUint64, kindInt64:
		return int64(binary.LittleEndian.Uint64(b)), true
	}
	return 0, false
}

// Float is the value of a float32 or float64 key, or of a whole-number key as some writers use.
func (f *File) Float(key string) (float64, bool) {
	v, ok := f.values[key]
	if !ok {
		return 0, false
	}
	switch v.kind {
	case kindFloat32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(v.raw))), true
	case kindFloat64:
		return math.Float64frombits(binary.LittleEndian.Uint64(v.raw)), true
	}
	if u, ok := f.Uint(key); ok {
		return float64(u), true
	}
	n, ok := f.Int(key)
	return float64(n), ok
}

// Bool is the value of a bool key.
func (f *File) Bool(key string) (bool, bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kindBool {
		return false, false
	}
	return v.raw[0] == 1, true
}

// Strings decodes an array of strings. The strings share one new buffer and outlive the file.
func (f *File) Strings(key string) ([]string, bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kindArray || v.elem != kindString {
		return nil, false
	}
	all := string(v.raw)
	out := make([]string, v.n)
	off := 0
	for i := range out {
		n := int(binary.LittleEndian.Uint64(v.raw[off:]))
		out[i] = all[off+8 : off+8+n]
		off += 8 + n
	}
	return out, true
}

// Floats decodes an array of float32 or float64.
func (f *File) Floats(key string) ([]float32, bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kindArray || v.elem != kindFloat32 && v.elem != kindFloat64 {
		return nil, false
	}
	out := make([]float32, v.n)
	for i := range out {
		if v.elem == kindFloat32 {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(v.raw[4*i:]))
		} else {
			out[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(v.raw[8*i:])))
		}
	}
	return out, true
}

// Ints decodes an array of any whole-number kind. An element beyond int64 makes it fail.
func (f *File) Ints(key string) ([]int64, bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kindArray {
		return nil, false
	}
	if _, ok := v.elem.integer(make([]byte, 8)); !ok {
		return nil, false
	}
	out := make([]int64, v.n)
	size := kindBytes[v.elem]
	for i := range out {
		out[i], _ = v.elem.integer(v.raw[i*size:])
		if v.elem == kindUint64 && out[i] < 0 {
			return nil, false
		}
	}
	return out, true
}

// Bools decodes an array of bool.
func (f *File) Bools(key string) ([]bool, bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kindArray || v.elem != kindBool {
		return nil, false
	}
	out := make([]bool, v.n)
	for i := range out {
		out[i] = v.raw[i] == 1
	}
	return out, true
}
