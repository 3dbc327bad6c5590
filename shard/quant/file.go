package quant

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/pool"
	"github.com/meshnet/meshnet/shard/tensor"
)

// Options say how a file is converted.
type Options struct {
	Pure     bool // the output matrix too takes the type; else it gets Q6_K where that is finer
	Pool     *pool.Pool
	Progress func(doneBytes int64) // of the source, from the writing goroutine
}

// Change is what becomes of one tensor.
type Change struct {
	Name     string
	From, To gguf.Type
	Rows     int
	Cols     int
	Want     gguf.Type // To, but for a row that is not whole blocks of it
	Twice    bool      // a quantized tensor is quantized anew: quality is lost a second time
	Bytes    int64
}

// Plan says what becomes of each tensor of a file when its matrices are to be of type t.
//
// Matrices become t; so does the output matrix (the embedding where there is none), unless t is coarser than Q6_K and pure is
// not set. A row that is not whole blocks takes the type that llama.cpp takes: Q5_0 for Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K, and F16
// where not even 32 divide it. Vectors and norms become F32. What routes, convolves or is no weight stays as it is.
func Plan(f *gguf.File, t gguf.Type, pure bool) ([]Change, error) {
	if !slices.Contains(Types(), t) {
		return nil, fmt.Errorf("%s cannot be made here", t)
	}
	if n, ok := f.Uint("split.count"); ok && n > 1 {
		return nil, fmt.Errorf("the file is one of %d parts of a model: join them first", n)
	}
	output := "output.weight"
	if _, ok := f.Tensor(output); !ok {
		output = "token_embd.weight"
	}
	var out []Change
	var errs []error
	for _, ts := range f.Tensors() {
		c := Change{Name: ts.Name, From: ts.Type, Rows: ts.Rows(), Cols: int(ts.Dims[0])}
		switch kindOf(ts) {
		case matrix:
			c.Want = t
			if ts.Name == output && !pure && coarse(t) {
				c.Want = gguf.Q6_K
			}
		case vector:
			c.Want = gguf.F32
		default:
			c.Want = c.From
		}
		c.To = c.Want
		if c.From != c.Want {
			c.To = fallback(c.Want, c.Cols)
		}
		if c.From == c.To {
			if c.Bytes = int64(len(ts.Data)); ts.Data == nil {
				errs = append(errs, fmt.Errorf("tensor %q is of the unknown type %s", ts.Name, ts.Type))
			}
		} else {
			c.Bytes = int64(c.Rows) * int64(c.Cols/c.To.BlockSize()) * int64(c.To.BlockBytes())
			c.Twice = !float(c.From) && !float(c.To)
			if !tensor.Supported(c.From) {
				errs = append(errs, fmt.Errorf("tensor %q is of type %s, which cannot be read here", ts.Name, c.From))
			}
		}
		out = append(out, c)
	}
	const most = 8
	if n := len(errs); n > most {
		errs = append(errs[:most], fmt.Errorf("and %d tensors more", n-most))
	}
	return out, errors.Join(errs...)
}

func float(t gguf.Type) bool { return t == gguf.F32 || t == gguf.F16 || t == gguf.BF16 }

// coarse says whether the output matrix is better in Q6_K.
func coarse(t gguf.Type) bool { return !float(t) && t != gguf.Q8_0 && t != gguf.Q6_K }

type tensorKind int

const (
	other tensorKind = iota
	vector
	matrix
)

// kindOf sorts tensors by what quantizing would do to them, as llama.cpp does.
func kindOf(t *gguf.Tensor) tensorKind {
	dims := len(t.Dims)
	for dims > 1 && t.Dims[dims-1] == 1 {
		dims--
	}
	switch {
	case !float(t.Type) && dims < 2:
		return other
	case dims < 2, strings.HasSuffix(t.Name, "_norm.weight"):
		return vector
	case !strings.HasSuffix(t.Name, "weight"):
		return other
	}
	for _, keep := range []string{"ffn_gate_inp", "ssm_conv1d", "shortconv.conv", "position_embd", "token_types", "time_mix", "rope_freqs"} {
		if strings.Contains(t.Name, keep) {
			return other
		}
	}
	return matrix
}

// fallback is t, or what stands in for it where rows are not whole blocks.
func fallback(t gguf.Type, cols int) gguf.Type {
	if cols%t.BlockSize() == 0 {
		return t
	}
	switch t {
	case gguf.Q4_K:
		t = gguf.Q5_0
	case gguf.Q5_K:
		t = gguf.Q5_1
	case gguf.Q6_K:
		t = gguf.Q8_0
	}
	if cols%t.BlockSize() != 0 {
		return gguf.F16
	}
	return t
}

// fileTypes are llama.cpp's numbers for files that are mostly of a type.
var fileTypes = map[gguf.Type]uint32{
	gguf.F32: 0, gguf.F16: 1, gguf.Q4_0: 2, gguf.Q4_1: 3, gguf.Q8_0: 7, gguf.Q5_0: 8, gguf.Q5_1: 9, gguf.Q4_K: 14, gguf.Q5_K: 16,
	gguf.Q6_K: 18, gguf.BF16: 32,
}

// keys are the file's, with what they say of its type corrected.
func keys(f *gguf.File, t gguf.Type) []gguf.KV {
	set := []gguf.KV{{Key: "general.file_type", Value: fileTypes[t]}}
	if !float(t) {
		set = append(set, gguf.KV{Key: "general.quantization_version", Value: uint32(2)})
	}
	kv := f.KVs()
	for _, s := range set {
		if i := slices.IndexFunc(kv, func(k gguf.KV) bool { return k.Key == s.Key }); i >= 0 {
			kv[i] = s
		} else {
			kv = append(kv, s)
		}
	}
	return kv
}

// Convert writes a file with its matrices as type t, as Plan says, and returns that plan. A value that is not finite or does
// not fit is an error that names it.
func Convert(ctx context.Context, w io.Writer, f *gguf.File, t gguf.Type, o Options) ([]Change, error) {
	plan, err := Plan(f, t, o.Pure)
	if err != nil {
		return nil, err
	}
	infos := make([]gguf.TensorInfo, len(plan))
	for i, c := range plan {
		infos[i] = gguf.TensorInfo{Name: c.Name, Type: c.To, Dims: f.Tensors()[i].Dims}
	}
	cv := &converter{ctx: ctx, file: f, o: o, bands: make([]band, 4*o.Pool.Threads())}
	return plan, gguf.WriteFrom(w, keys(f, t), infos, func(i int, w io.Writer) error {
		return cv.tensor(w, f.Tensors()[i], plan[i].To)
	})
}

type converter struct {
	ctx   context.Context
	file  *gguf.File
	o     Options
	bands []band
	done  int64
}

// band is some rows that one thread converts.
type band struct {
	from, to int
	row      []float32
	out      []byte
	err      error
}

// bandValues is about how many values a band has: some milliseconds of work.
const bandValues = 1 << 16

func (cv *converter) tensor(w io.Writer, t *gguf.Tensor, typ gguf.Type) error {
	defer cv.file.Release(t)
	if t.Type == typ {
		return cv.copy(w, t.Data)
	}
	rows, cols := t.Rows(), int(t.Dims[0])
	per := max(1, bandValues/cols)
	for at := 0; at < rows; {
		n := 0
		for ; n < len(cv.bands) && at < rows; n++ {
			b := &cv.bands[n]
			b.from, b.to = at, min(rows, at+per)
			at = b.to
		}
		cv.o.Pool.Run(n, func(i int) { cv.bands[i].convert(t, typ) })
		for i := range n {
			b := &cv.bands[i]
			if b.err != nil {
				return b.err
			}
			if _, err := w.Write(b.out); err != nil {
				return err
			}
			if err := cv.advance((b.to - b.from) * t.RowBytes()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (cv *converter) copy(w io.Writer, data []byte) error {
	for len(data) > 0 {
		n := min(len(data), 1<<20)
		if _, err := w.Write(data[:n]); err != nil {
			return err
		}
		if err := cv.advance(n); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// advance counts n bytes of the source.
func (cv *converter) advance(n int) error {
	cv.done += int64(n)
	if cv.o.Progress != nil {
		cv.o.Progress(cv.done)
	}
	return cv.ctx.Err()
}

// convert fills out with the rows.
func (b *band) convert(t *gguf.Tensor, typ gguf.Type) {
	cols := int(t.Dims[0])
	b.row = slices.Grow(b.row[:0], cols)[:cols]
	b.out, b.err = b.out[:0], nil
	for r := b.from; r < b.to; r++ {
		err := tensor.DequantRow(t, r, b.row)
		if err == nil {
			b.out, err = Append(b.out, typ, b.row)
		}
		if err != nil {
			b.err = fmt.Errorf("row %d: %w", r, err)
			return
		}
	}
}

// Count is how many tensors of a plan go from one type to another.
type Count struct {
	From, To gguf.Type
	Tensors  int
	Bytes    int64 // when converted
	Fallback int   // of the tensors
	Twice    int
}

// Counts sums up a plan, in the order in which the pairs of types come.
func Counts(plan []Change) []Count {
	var out []Count
	for _, c := range plan {
		i := slices.IndexFunc(out, func(n Count) bool { return n.From == c.From && n.To == c.To })
		if i < 0 {
			i = len(out)
			out = append(out, Count{From: c.From, To: c.To})
		}
		n := &out[i]
		n.Tensors++
		n.Bytes += c.Bytes
		if c.To != c.Want {
			n.Fallback++
		}
		if c.Twice {
			n.Twice++
		}
	}
	return out
}
