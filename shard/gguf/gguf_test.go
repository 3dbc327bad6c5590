package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// raw builds a file byte by byte, so that it can be wrong.
type raw struct{ b []byte }

func newRaw(version uint32, tensors, keys uint64) *raw {
	return (&raw{[]byte("GGUF")}).u32(version).u64(tensors).u64(keys)
}
func (r *raw) u8(v ...byte) *raw            { r.b = append(r.b, v...); return r }
func (r *raw) u32(v uint32) *raw            { r.b = binary.LittleEndian.AppendUint32(r.b, v); return r }
func (r *raw) u64(v uint64) *raw            { r.b = binary.LittleEndian.AppendUint64(r.b, v); return r }
func (r *raw) str(s string) *raw            { r.u64(uint64(len(s))); r.b = append(r.b, s...); return r }
func (r *raw) zero(n int) *raw              { r.b = append(r.b, make([]byte, n)...); return r }
func (r *raw) pad() *raw                    { return r.zero(-len(r.b) & 31) }
func (r *raw) kv32(k string, v uint32) *raw { return r.str(k).u32(4).u32(v) }
func (r *raw) tensor(name string, typ Type, off uint64, dims ...uint64) *raw {
	r.str(name).u32(uint32(len(dims)))
	for _, d := range dims {
		r.u64(d)
	}
	return r.u32(uint32(typ)).u64(off)
}

// one is a file with one tensor and room bytes of data.
func one(typ Type, off uint64, room int, dims ...uint64) []byte {
	return newRaw(3, 1, 0).tensor("t", typ, off, dims...).pad().zero(room).b
}

func two(offA, offB uint64, room int) []byte {
	return newRaw(3, 2, 0).tensor("a", F32, offA, 8).tensor("b", F32, offB, 8).pad().zero(room).b
}

var hostile = []struct {
	name string
	data []byte
	want string // part of the error, "" when the file is odd but harmless
}{
	{"empty", nil, "not a GGUF"},
	{"short magic", []byte("GG"), "not a GGUF"},
	{"other magic", []byte("GGML\x03\x00\x00\x00aaaaaaaaaaaaaaaaaaaa"), "not a GGUF"},
	{"no version", []byte("GGUF"), "version needs 4 bytes"},
	{"version 1", newRaw(1, 0, 0).b, "version 1 is not supported"},
	{"version 4", newRaw(4, 0, 0).b, "version 4 is not supported"},
	{"big endian", []byte("GGUF\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), "big endian"},
	{"header cut", newRaw(3, 0, 0).b[:20], "key count needs 8"},
	{"absurd tensor count", newRaw(3, 1<<60, 0).b, "tensors do not fit"},
	{"tensor count beyond the file", newRaw(3, 100, 0).zero(64).b, "100 tensors do not fit"},
	{"absurd key count", newRaw(3, 0, math.MaxUint64).b, "keys do not fit"},
	{"key longer than the file", newRaw(3, 0, 1).u64(60000).zero(30).b, "key needs 60000 bytes"},
	{"huge key", newRaw(3, 0, 1).u64(1 << 62).zero(30).b, "at most 65535"},
	{"empty key", newRaw(3, 0, 1).kv32("", 1).zero(8).b, "key is empty"},
	{"duplicate key", newRaw(3, 0, 2).kv32("a", 1).kv32("a", 2).b, `key "a" comes twice`},
	{"unknown value type", newRaw(3, 0, 1).str("a").u32(13).u64(0).b, "unknown value type 13"},
	{"huge string", newRaw(3, 0, 1).str("a").u32(8).u64(1 << 63).b, "at most 1048576"},
	{"string beyond the file", newRaw(3, 0, 1).str("a").u32(8).u64(1000).b, "needs 1000 bytes"},
	{"huge array", newRaw(3, 0, 1).str("a").u32(9).u32(4).u64(1 << 62).b, "does not fit"},
	{"array length that overflows", newRaw(3, 0, 1).str("a").u32(9).u32(10).u64(1 << 61).b, "does not fit"},
	{"huge string array", newRaw(3, 0, 1).str("a").u32(9).u32(8).u64(1 << 40).b, "does not fit"},
	{"string array cut off", newRaw(3, 0, 1).str("a").u32(9).u32(8).u64(2).str("x").u64(50).b, "string in array needs 50"},
	{"nested array", newRaw(3, 0, 1).str("a").u32(9).u32(9).u64(1).u32(9).u64(1).zero(16).b, "array of arrays"},
	{"unknown element type", newRaw(3, 0, 1).str("a").u32(9).u32(99).u64(1).b, "element type 99"},
	{"bool of 2", newRaw(3, 0, 1).str("a").u32(7).u8(2).zero(8).b, "bool is 2"},
	{"bool array with 7", newRaw(3, 0, 1).str("a").u32(9).u32(7).u64(3).u8(0, 1, 7).b, "bool is 7"},
	{"alignment 0", newRaw(3, 0, 1).kv32("general.alignment", 0).b, "power of two"},
	{"alignment 24", newRaw(3, 0, 1).kv32("general.alignment", 24).b, "power of two"},
	{"alignment 2^31", newRaw(3, 0, 1).kv32("general.alignment", 1<<31).b, "power of two"},
	{"alignment a string", newRaw(3, 0, 1).str("general.alignment").u32(8).str("32").b, "not a positive whole number"},
	{"alignment negative", newRaw(3, 0, 1).str("general.alignment").u32(5).u32(0xfffffff0).b, "not a positive whole number"},
	{"dims overflow", one(F32, 0, 64, 1<<33, 1<<33), "product at most"},
	{"dims overflow to little", one(F32, 0, 64, 1<<32, 1<<32, 1<<3), "product at most"},
	{"2^31 values", one(F32, 0, 64, 1<<31), "incomplete or damaged"},
	{"no dims", one(F32, 0, 64), "has 0 dims"},
	{"five dims", one(F32, 0, 64, 1, 1, 1, 1, 1), "has 5 dims"},
	{"2^32-1 dims", newRaw(3, 1, 0).str("t").u32(math.MaxUint32).zero(64).b, "4294967295 dims"},
	{"dim 0", one(F32, 0, 64, 8, 0), "dim 1 is 0"},
	{"33 values in blocks of 32", one(Q8_0, 0, 128, 33), "not whole blocks"},
	{"offset past the end", one(F32, 1<<40, 64, 8), "end outside"},
	{"offset that overflows", one(F32, math.MaxUint64-31, 64, 8), "end outside"},
	{"one byte missing", one(F32, 0, 31, 8), "incomplete"},
	{"no data at all", newRaw(3, 1, 0).tensor("t", F32, 0, 8).b, "incomplete"},
	{"unaligned offset", one(F32, 8, 64, 8), "not a multiple of 32"},
	{"overlap", two(0, 0, 64), "lies inside"},
	{"overlap out of order", newRaw(3, 2, 0).tensor("a", F32, 32, 8).tensor("b", F32, 0, 9).pad().zero(96).b, "lies inside"},
	{"duplicate tensor", newRaw(3, 2, 0).tensor("a", F32, 0, 8).tensor("a", F32, 32, 8).pad().zero(64).b, `tensor "a" comes twice`},
	{"nameless tensor", newRaw(3, 1, 0).tensor("", F32, 0, 8).pad().zero(64).b, "no name"},
	{"long tensor name", newRaw(3, 1, 0).tensor(strings.Repeat("x", 2000), F32, 0, 8).pad().zero(64).b, "at most 1024"},
	{"tensor table cut", newRaw(3, 1, 0).tensor("tttttttttttttttttt", F32, 0, 8).b[:60], "needs"},
	{"nothing inside", newRaw(3, 0, 0).b, ""},
	{"split count 2^40", newRaw(3, 0, 1).str("split.tensors.count").u32(10).u64(1 << 40).b, ""},
	{"split count -1", newRaw(3, 0, 1).str("split.tensors.count").u32(5).u32(math.MaxUint32).b, ""},
	{"empty arrays", newRaw(3, 0, 2).str("a").u32(9).u32(8).u64(0).str("b").u32(9).u32(4).u64(0).b, ""},
	{"gap between tensors", two(0, 64, 96), ""},
	{"trailing bytes", one(F32, 0, 4096, 8), ""},
	{"unknown tensor type", one(77, 0, 64, 33), ""},
	{"version 2", newRaw(2, 0, 1).kv32("a", 1).b, ""},
}

func TestHostile(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			f, err := Parse(c.data)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && err == nil:
				t.Errorf("accepted: %v", f.Tensors())
			case c.want != "" && !strings.Contains(err.Error(), c.want):
				t.Errorf("error %q does not say %q", err, c.want)
			}
		})
	}
}

// A count in the file must not become an allocation.
func TestHostileAllocatesLittle(t *testing.T) {
	for _, c := range hostile {
		if n := testing.AllocsPerRun(1, func() { _, _ = Parse(c.data) }); n > 60 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}

var sampleKV = []KV{
	{"general.architecture", "llama"}, {"u8", uint8(200)}, {"i8", int8(-3)}, {"u16", uint16(65000)}, {"i16", int16(-300)},
	{"u32", uint32(4e9)}, {"i32", int32(-70000)}, {"u64", uint64(math.MaxUint64)}, {"i64", int64(-1 << 40)}, {"f32", float32(1.5)},
	{"f64", 2.25}, {"yes", true}, {"no", false}, {"space", "  \n\x00\xff"}, {"strings", []string{"a", "", " \n", "é"}},
	{"floats", []float32{1, -2.5}}, {"doubles", []float64{3.5}}, {"i32s", []int32{-1, 2}}, {"u64s", []uint64{1, math.MaxUint64}},
	{"u8s", []uint8{1, 255}}, {"bools", []bool{true, false}}, {"none", []string{}},
}

func sample(t testing.TB) []byte {
	var b bytes.Buffer
	err := Write(&b, sampleKV, []TensorInfo{
		{"a", F32, []uint64{3, 2}, []byte("0123456789abcdefghijklmn")},
		{"b", Q8_0, []uint64{32}, bytes.Repeat([]byte{7}, 34)},
		{"c", F16, []uint64{1}, []byte{1, 2}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestWriteThenRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, sample(t), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	type got struct {
		v  any
		ok bool
	}
	g := func(v any, ok bool) got { return got{v, ok} }
	for _, c := range []struct {
		what      string
		got, want got
	}{
		{"string", g(f.String("general.architecture")), g("llama", true)},
		{"string is not trimmed", g(f.String("space")), g("  \n\x00\xff", true)},
		{"string of other kind", g(f.String("u8")), g("", false)},
		{"absent", g(f.Uint("nope")), g(uint64(0), false)},
		{"u8", g(f.Uint("u8")), g(uint64(200), true)},
		{"i8", g(f.Int("i8")), g(int64(-3), true)},
		{"i8 as uint", g(f.Uint("i8")), g(uint64(0), false)},
		{"u16", g(f.Uint("u16")), g(uint64(65000), true)},
		{"i16", g(f.Int("i16")), g(int64(-300), true)},
		{"u32", g(f.Uint("u32")), g(uint64(4e9), true)},
		{"i32", g(f.Int("i32")), g(int64(-70000), true)},
		{"u64", g(f.Uint("u64")), g(uint64(math.MaxUint64), true)},
		{"u64 as int", g(f.Int("u64")), g(int64(0), false)},
		{"i64", g(f.Int("i64")), g(int64(-1<<40), true)},
		{"float is no uint", g(f.Uint("f32")), g(uint64(0), false)},
		{"f32", g(f.Float("f32")), g(1.5, true)},
		{"f64", g(f.Float("f64")), g(2.25, true)},
		{"whole number as float", g(f.Float("i8")), g(-3.0, true)},
		{"yes", g(f.Bool("yes")), g(true, true)},
		{"no", g(f.Bool("no")), g(false, true)},
		{"bool of other kind", g(f.Bool("u8")), g(false, false)},
		{"strings", g(f.Strings("strings")), g([]string{"a", "", " \n", "é"}, true)},
		{"no strings", g(f.Strings("none")), g([]string{}, true)},
		{"strings of other kind", g(f.Strings("floats")), g([]string(nil), false)},
		{"floats", g(f.Floats("floats")), g([]float32{1, -2.5}, true)},
		{"doubles", g(f.Floats("doubles")), g([]float32{3.5}, true)},
		{"floats of other kind", g(f.Floats("i32s")), g([]float32(nil), false)},
		{"i32s", g(f.Ints("i32s")), g([]int64{-1, 2}, true)},
		{"u8s", g(f.Ints("u8s")), g([]int64{1, 255}, true)},
		{"u64s beyond int64", g(f.Ints("u64s")), g([]int64(nil), false)},
		{"ints of other kind", g(f.Ints("bools")), g([]int64(nil), false)},
		{"bools", g(f.Bools("bools")), g([]bool{true, false}, true)},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: got %v, want %v", c.what, c.got, c.want)
		}
	}
	if len(f.Keys()) != len(sampleKV) || f.Kind("strings") != "array of string" || f.Kind("u8") != "uint8" || f.Has("nope") {
		t.Errorf("keys %v, kinds %q %q", f.Keys(), f.Kind("strings"), f.Kind("u8"))
	}
	a, ok := f.Tensor("a")
	if !ok || string(a.Data) != "0123456789abcdefghijklmn" || a.Rows() != 2 || a.RowBytes() != 12 || !reflect.DeepEqual(a.Dims, []uint64{3, 2}) {
		t.Errorf("tensor a: %+v", a)
	}
	f.Release(a)
	if string(a.Data) != "0123456789abcdefghijklmn" {
		t.Error("a released tensor reads other bytes")
	}
	b, _ := f.Tensor("b")
	if b.Type.String() != "Q8_0" || len(b.Data) != 34 || b.Data[33] != 7 || len(f.Tensors()) != 3 {
		t.Errorf("tensor b: %+v of %d", b, len(f.Tensors()))
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// Whatever prefix of a file is left, it is an error, never a panic.
func TestEveryCut(t *testing.T) {
	whole := sample(t)
	last := len(whole) - int(padding(2)) // the padding after the last tensor may be missing
	for n := range last {
		if _, err := Parse(whole[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes were accepted", n, len(whole))
		}
	}
	if _, err := Parse(whole[:last]); err != nil {
		t.Errorf("without trailing padding: %v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	short := filepath.Join(dir, "short")
	if err := os.WriteFile(short, []byte("GGUF"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file", dir: "not a regular file", short: "too few",
	} {
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%q) = %v, want %q", path, err, want)
		}
	}
}

func TestWriteErrors(t *testing.T) {
	for name, c := range map[string]struct {
		kv   []KV
		t    []TensorInfo
		want string
	}{
		"int":   {kv: []KV{{"a", 1}}, want: "needs a size"},
		"data":  {t: []TensorInfo{{"t", F32, []uint64{2}, []byte{1}}}, want: "need 8"},
		"block": {t: []TensorInfo{{"t", Q4_0, []uint64{31}, nil}}, want: "not whole blocks"},
		"dims":  {t: []TensorInfo{{"t", F32, nil, nil}}, want: "0 dims"},
		"type":  {t: []TensorInfo{{"t", 99, []uint64{1}, nil}}, want: "unknown type 99"},
		"huge":  {t: []TensorInfo{{"t", F32, []uint64{1 << 40, 1 << 40}, nil}}, want: "too large"},
	} {
		if err := Write(&bytes.Buffer{}, c.kv, c.t); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A file whose keys and tensors are copied is the same file.
func TestCopy(t *testing.T) {
	whole := sample(t)
	f, err := Parse(whole)
	if err != nil {
		t.Fatal(err)
	}
	var infos []TensorInfo
	for _, x := range f.Tensors() {
		infos = append(infos, TensorInfo{Name: x.Name, Type: x.Type, Dims: x.Dims})
	}
	var b bytes.Buffer
	fill := func(i int, w io.Writer) error {
		for _, c := range f.Tensors()[i].Data { // in small pieces
			if _, err := w.Write([]byte{c}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := WriteFrom(&b, f.KVs(), infos, fill); err != nil || !bytes.Equal(b.Bytes(), whole) {
		t.Errorf("the copy differs (%v)", err)
	}
	short := func(int, io.Writer) error { return nil }
	if err := WriteFrom(io.Discard, nil, infos, short); err == nil || !strings.Contains(err.Error(), "0 bytes of data were given") {
		t.Errorf("a tensor without data: %v", err)
	}
	broken := errors.New("broken")
	if err := WriteFrom(io.Discard, nil, infos, func(int, io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("a fill that fails: %v", err)
	}
	aligned, err := Parse(file(t, []KV{{"general.alignment", uint32(64)}, {"a", "b"}}))
	if err != nil {
		t.Fatal(err)
	}
	if kv := aligned.KVs(); len(kv) != 1 || kv[0].Key != "a" {
		t.Errorf("keys to copy are %v", kv)
	}
}

func file(t *testing.T, kv []KV) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, kv, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func FuzzParse(f *testing.F) {
	for _, c := range hostile {
		f.Add(c.data)
	}
	f.Add(sample(f))
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := Parse(data)
		if err != nil {
			return
		}
		for _, k := range g.Keys() {
			g.String(k)
			g.Uint(k)
			g.Int(k)
			g.Float(k)
			g.Bool(k)
			g.Strings(k)
			g.Floats(k)
			g.Ints(k)
			g.Bools(k)
		}
		total := 0
		for _, ts := range g.Tensors() {
			total += len(ts.Data)
			if ts.Type.Known() && len(ts.Data) != ts.Rows()*ts.RowBytes() {
				t.Errorf("tensor %q: %d bytes, %d rows of %d", ts.Name, len(ts.Data), ts.Rows(), ts.RowBytes())
			}
		}
		if total > len(data) {
			t.Errorf("tensors hold %d bytes, the file %d", total, len(data))
		}
	})
}
