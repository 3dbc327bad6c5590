package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/meshnet/meshnet/cache/blob"
	"github.com/meshnet/meshnet/shard"
	"github.com/meshnet/meshnet/shard/bench"
)

type benchCmd struct {
	Engine benchEngineCmd `cmd:"" help:"Measure this machine's engine with a model: prefill, decode, memory, and shares of the machine's limits."`
}

// benchEngineCmd measures the engine of this process.
type benchEngineCmd struct {
	modelFlag
	Prefill int `help:"Tokens of the prompt (0: leave it out)." short:"p" default:"512" placeholder:"N"`
	Decode  int `help:"Tokens to make, one at a time (0: leave it out)." short:"n" default:"128" placeholder:"N"`
	Depth   int `help:"Tokens that the context holds before, untimed." short:"d" default:"0" placeholder:"N"`
	Batch   int `help:"Sessions whose tokens are made in one batch." short:"b" default:"1" placeholder:"N"`
	Rounds  int `help:"Rounds; the median counts." short:"r" default:"5" placeholder:"N"`
	cacheFlag
}

// Help is shown by --help.
func (benchEngineCmd) Help() string {
	return `Examples:
  meshnet bench engine --model smollm2
  meshnet bench engine --model ./my.gguf -p 512 -n 64 -d 4096 --threads 1
  MESHNET_CPU=avx2 meshnet bench engine -b 8 --json

As llama-bench does it: a prompt in one chunk into a context of -d tokens; then -n single tokens at that depth. Every token goes
through the whole engine, nothing is sampled. Beside the speeds stand shares of what bare loops of instructions reach on the same
threads: in decode the weights read a second of the read bandwidth, in prefill the operations of the matrices of the multiplication
peak. On a busy machine compare only what was measured in turns.`
}

// Run measures.
func (c *benchEngineCmd) Run(a *app) error {
	cfg := bench.Config{Prefill: c.Prefill, Decode: c.Decode, Depth: c.Depth, Batch: c.Batch, Rounds: c.Rounds, Cache: shard.CacheType(c.cache()), Threads: a.threads}
	if err := cfg.Validate(); err != nil {
		return fail(exitUsage, err)
	}
	path, err := a.modelPath(c.Model)
	if err != nil {
		return err
	}
	bar := newProgress(a)
	if bar.live {
		cfg.Note = bar.Note
	}
	r, err := bench.Run(a.ctx, path, cfg)
	if err != nil {
		return err
	}
	if a.json {
		return printJSON(a.stdout, r)
	}
	return printBench(a.stdout, r)
}

// kernels is a kernel set for a person, with a note that there may be.
func kernels(name, note string) string {
	if note == "" {
		return name
	}
	return name + " (" + note + ")"
}

func printBench(w io.Writer, r *bench.Result) error {
	fmt.Fprintf(w, "%s (%s, %s): %s kernels, %d threads\n", printable(r.Model), printable(r.Arch), r.Types, kernels(r.Kernels, r.Note), r.Threads)
	resident := "not known"
	if r.ResidentBytes > 0 {
		resident = blob.Bytes(r.ResidentBytes)
	}
	fmt.Fprintf(w, "loaded in %.2f s, first token after %.2f s; weights %s, %s caches %s, resident %s\n",
		r.LoadSeconds, r.FirstTokenSeconds, blob.Bytes(r.WeightBytes), r.CacheType, blob.Bytes(r.CacheBytes), resident)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TEST\tTOKENS/S\tOF THE LIMIT\tTHE LIMIT\tROUNDS")
	depth := ""
	if r.Depth > 0 {
		depth = fmt.Sprintf(" at %d", r.Depth)
	}
	if r.Prefill > 0 {
		peak := prefixed(r.Limits.Int8OpsPerS) + "op/s, " + r.Limits.Int8With
		fmt.Fprintf(t, "prefill %d%s\t%.1f\t%.1f %%\t%s\t%s\n", r.Prefill, depth, r.PrefillPerS, r.PrefillPercent, peak, rates(r.PrefillRuns))
	}
	if r.Decode > 0 {
		what := fmt.Sprintf("decode %d%s", r.Decode, depth)
		if r.Batch > 1 {
			what += fmt.Sprintf(", %d sessions", r.Batch)
		}
		fmt.Fprintf(t, "%s\t%.1f\t%.1f %%\t%sB/s read\t%s\n", what, r.DecodePerS, r.DecodePercent, prefixed(r.Limits.ReadBytesPerS), rates(r.DecodeRuns))
	}
	return t.Flush()
}

func rates(runs []float64) string {
	out := make([]string, len(runs))
	for i, v := range runs {
		out[i] = fmt.Sprintf("%.1f", v)
	}
	return strings.Join(out, " ")
}

// prefixed is a rate with its prefix, as in "43.7 G".
func prefixed(v float64) string {
	for _, p := range []struct {
		unit float64
		name string
	}{{1e12, "T"}, {1e9, "G"}} {
		if v >= p.unit {
			return fmt.Sprintf("%.2f %s", v/p.unit, p.name)
		}
	}
	return fmt.Sprintf("%.2f M", v/1e6)
}
