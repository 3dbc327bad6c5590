package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/pool"
	"github.com/meshnet/meshnet/shard/quant"
)

type modelQuantizeCmd struct {
	In    string `arg:"" help:"GGUF file, or any name or reference of a model."`
	Out   string `arg:"" help:"File to write." type:"path"`
	Type  string `arg:"" help:"F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1 or Q4_0."`
	Pure  bool   `help:"The output matrix too in this type, not in Q6_K where that is finer."`
	Force bool   `help:"Overwrite the file if it exists."`
}

func (modelQuantizeCmd) Help() string {
	return `Examples:
  meshnet model quantize my-f16.gguf my-q4_k.gguf Q4_K
  meshnet model quantize smollm2 smollm2-f16.gguf F16

All matrices take the type; the output matrix (or the embedding that serves as one) takes Q6_K where that is finer. Rows that are not a
multiple of 256 take Q5_0 for Q4_K, Q5_1 for Q5_K and Q8_0 for Q6_K, as llama.cpp does it. Norms, biases and all metadata stay. The
same input gives the same bytes on every machine. Quantizing what is quantized already loses quality twice: start from F16 or F32.`
}

// quantizedJSON is what quantize prints with --json.
type quantizedJSON struct {
	Path     string          `json:"path"`
	Type     string          `json:"type"`
	Size     int64           `json:"size_bytes"`
	SizeIn   int64           `json:"size_bytes_in"`
	Seconds  float64         `json:"seconds"`
	Tensors  []quantizedType `json:"tensors"`
	Twice    int             `json:"quantized_twice"` // tensors
	Warnings []string        `json:"warnings"`
}

type quantizedType struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Tensors  int    `json:"tensors"`
	Bytes    int64  `json:"bytes"`
	Fallback int    `json:"fallback,omitempty"`
}

// Run converts the file.
func (c *modelQuantizeCmd) Run(a *app) error {
	typ, err := quant.Parse(c.Type)
	if err != nil {
		return usage("TYPE %w", err)
	}
	path, err := a.modelPath(c.In)
	if err != nil {
		return err
	}
	f, err := gguf.Open(path)
	if err != nil {
		return fail(exitModel, err)
	}
	defer f.Close()
	plan, err := quant.Plan(f, typ, c.Pure)
	if err != nil {
		return fail(exitModel, fmt.Errorf("quantize %q: %w", c.In, err))
	}
	if err := c.free(path); err != nil {
		return err
	}
	out := quantizedJSON{Path: c.Out, Type: typ.String(), SizeIn: f.Size(), Warnings: warnings(plan)}
	bar := newProgress(a)
	for _, w := range out.Warnings {
		bar.Note("warning: " + w)
	}
	begun := time.Now()
	if out.Size, err = c.write(a, f, typ, bar); err != nil {
		return fmt.Errorf("quantize %q to %q: %w", c.In, c.Out, err)
	}
	out.Seconds = time.Since(begun).Seconds()
	for _, n := range quant.Counts(plan) {
		out.Twice += n.Twice
		out.Tensors = append(out.Tensors, quantizedType{n.From.String(), n.To.String(), n.Tensors, n.Bytes, n.Fallback})
	}
	if a.json {
		return writeJSON(a.stdout, out)
	}
	t := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FROM\tTO\tTENSORS\tSIZE")
	for _, n := range out.Tensors {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", n.From, n.To, n.Tensors, blob.Bytes(n.Bytes))
	}
	fmt.Fprintf(t, "\n%s: %s, was %s; %.1f s\n", printable(c.Out), blob.Bytes(out.Size), blob.Bytes(out.SizeIn), out.Seconds)
	return t.Flush()
}

// free says whether Out may be written.
func (c *modelQuantizeCmd) free(in string) error {
	have, err := os.Stat(c.Out)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fail(exitUsage, err)
	}
	from, err := os.Stat(in)
	switch {
	case err != nil:
		return fail(exitModel, err)
	case os.SameFile(have, from):
		return usage("%q is the file to read: name another to write", c.Out)
	case !have.Mode().IsRegular():
		return usage("%q is not a file", c.Out)
	case !c.Force:
		return usage("%q exists; --force overwrites it", c.Out)
	}
	return nil
}

// warnings say where the result is worse, or larger, than one may expect.
func warnings(plan []quant.Change) []string {
	out := []string{}
	twice, thin := map[string]int{}, map[string]int{}
	var from, why []string // in the order of the file
	for _, c := range plan {
		if c.Twice {
			if twice[c.From.String()]++; twice[c.From.String()] == 1 {
				from = append(from, c.From.String())
			}
		}
		if c.To != c.Want {
			key := fmt.Sprintf("have rows of %d values, no multiple of the %d of %s: they become %s", c.Cols, c.Want.BlockSize(), c.Want, c.To)
			if thin[key]++; thin[key] == 1 {
				why = append(why, key)
			}
		}
	}
	if len(from) > 0 {
		n := 0
		for i, t := range from {
			n += twice[t]
			from[i] = fmt.Sprintf("%d of %s", twice[t], t)
		}
		out = append(out, fmt.Sprintf("%d tensors are quantized already (%s): quality is lost a second time. Start from an F16 or F32 file if there is one", n, strings.Join(from, ", ")))
	}
	for _, key := range why {
		out = append(out, fmt.Sprintf("%d matrices %s", thin[key], key))
	}
	return out
}

// write makes the file, which appears whole or not at all, and looks whether it can be read.
func (c *modelQuantizeCmd) write(a *app, f *gguf.File, typ gguf.Type, bar *progress) (size int64, err error) {
	tmp, err := os.CreateTemp(filepath.Dir(c.Out), ".quantize-*")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	p := pool.New(a.threads)
	defer p.Close()
	defer bar.Done()
	bar.Start("writing "+filepath.Base(c.Out)+" as "+typ.String(), f.Size())
	w := bufio.NewWriterSize(tmp, 1<<20)
	_, err = quant.Convert(a.ctx, w, f, typ, quant.Options{Pure: c.Pure, Pool: p, Progress: bar.At})
	if err = errors.Join(err, w.Flush(), tmp.Chmod(0o644)); err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return 0, err
	}
	if size, err = readable(f, tmp.Name()); err != nil {
		return 0, err
	}
	return size, os.Rename(tmp.Name(), c.Out)
}

// readable says whether the engine takes the file that was written, if it took the one that was read.
func readable(was *gguf.File, path string) (int64, error) {
	g, err := gguf.Open(path)
	if err != nil {
		return 0, fmt.Errorf("what was written cannot be read: %w", err)
	}
	defer g.Close()
	if _, err := model.Read(was); err == nil {
		if _, err := model.Read(g); err != nil {
			return 0, fmt.Errorf("what was written is not a model: %w", err)
		}
	}
	return g.Size(), nil
}
