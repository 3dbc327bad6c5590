// Command measure makes the tables of docs/measurements.md that need a whole mesh:
// what a decode step costs in bytes and time as an answer grows, what a split costs
// against one node and one process, and how long a killed hop is missed. Every figure of a row is taken in
// turns with the others of that row, and medians are printed, as Markdown.
//
//	go run ./testnet/cmd/measure -model qwen2.5-coder-0.5b split
//	go run ./testnet/cmd/measure growth
//	go run ./testnet/cmd/measure standby
//	go run ./testnet/cmd/measure verify
//	go run ./testnet/cmd/measure -ref 'llama-bench-like COMMAND that prints JSON' engine
//	go run ./testnet/cmd/measure -ref 'COMMAND that writes logits' -text FILE quality FILE.gguf...
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
	"github.com/meshnet/meshnet/testnet"
)

type measure struct {
	ctx     context.Context
	model   string
	layers  int
	threads int
	rounds  int
	tokens  int
	ref     string
	text    string
	home    string
	dir     string
	binary  string
}

func main() {
	m := measure{}
	flag.StringVar(&m.model, "model", "smollm2", "model")
	flag.IntVar(&m.layers, "layers", 0, "layers of the model (0: as known for the models of the list)")
	flag.IntVar(&m.threads, "threads", 1, "threads of every process")
	flag.IntVar(&m.rounds, "rounds", 3, "rounds; medians are printed")
	flag.IntVar(&m.tokens, "tokens", 0, "only this length of answer in split (0: 32, 128, 512 and 1,024)")
	flag.StringVar(&m.ref, "ref", "", "command that measures another engine and prints JSON with prefill_tokens_per_s and decode_tokens_per_s; $MODEL and $THREADS are set for it")
	flag.StringVar(&m.text, "text", "", "text to score in quality")
	flag.Parse()
	if err := m.run(flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
}

func (m *measure) run(what string) error {
	verbs := map[string]func() error{"growth": m.growth, "split": m.split, "engine": m.engine, "standby": m.standby, "verify": m.verify,
		"quality": func() error { return m.quality(flag.Args()[1:]) }}
	do := verbs[what]
	if do == nil {
		return fmt.Errorf("measure what? growth, split, engine, standby, verify or quality; %q is none of them", what)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	m.ctx = ctx
	if m.layers == 0 && what != "quality" {
		m.layers = map[string]int{"smollm2": 30, "qwen2.5-coder-0.5b": 24, "qwen2.5-coder-1.5b": 28, "tiny": 8}[m.model]
		if m.layers == 0 {
			return fmt.Errorf("how many layers has %s? say -layers N", m.model)
		}
	}
	var err error
	if m.home, err = blob.Home(); err != nil {
		return err
	}
	if m.dir, err = os.MkdirTemp("", "meshnet-measure"); err != nil {
		return err
	}
	defer os.RemoveAll(m.dir)
	m.binary = filepath.Join(m.dir, "meshnet")
	if err := testnet.Build(ctx, m.binary); err != nil {
		return err
	}
	fmt.Printf("%s, %d threads a process, median of %d rounds, %s, %d cores, %s\n\n", m.model, m.threads, m.rounds, cpu(), runtime.NumCPU(), time.Now().Format("2006-01-02"))
	return do()
}

// mesh starts nodes with the given ranges.
func (m *measure) mesh(ranges ...string) (*testnet.Mesh, error) {
	dir, err := os.MkdirTemp(m.dir, "mesh")
	if err != nil {
		return nil, err
	}
	return testnet.Up(m.ctx, testnet.Config{Dir: dir, Binary: m.binary, Model: m.model, Home: m.home, Ranges: ranges, Threads: m.threads, Log: func(string, ...any) {}})
}

// equal cuts the layers into n ranges of about the same length.
func (m *measure) equal(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("%d:%d", i*m.layers/n, (i+1)*m.layers/n))
	}
	return out
}

// ask is an answer of exactly tokens tokens to a short prompt.
func ask(tokens int, args ...string) testnet.Ask {
	ids := make([]int32, 16)
	for i := range ids {
		ids[i] = int32(1000 + 37*i)
	}
	return testnet.Ask{IDs: ids, Tokens: tokens, Args: append(args, "--ignore-eog")}
}

// growth shows that a decode step costs the same at any place of an answer, and
// that without a cache it does not.
func (m *measure) growth() error {
	mesh, err := m.mesh(m.equal(3)...)
	if err != nil {
		return err
	}
	defer mesh.Close()
	fmt.Println("| tokens of the answer | bytes a token, all links | bytes a token and link | cache hits / misses | seconds | ms a token | stateless: seconds | ms a token |")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	for _, n := range []int{10, 50, 100, 200, 500, 1000} {
		var took, without []float64
		var last *testnet.Answer
		for range m.rounds {
			a, err := mesh.GenerateMesh(m.ctx, ask(n))
			if err != nil {
				return err
			}
			last = a
			took = append(took, float64(n-1)/a.DecodeTokensPerS)
			if n <= 200 {
				if a, err = mesh.GenerateMesh(m.ctx, ask(n, "--stateless")); err != nil {
					return err
				}
				without = append(without, float64(n-1)/a.DecodeTokensPerS)
			}
		}
		t := median(took)
		row := fmt.Sprintf("| %d | %.0f | %.0f | %d / %d | %.2f | %.2f |", n, last.BytesPerToken, last.BytesPerToken/4, last.Cache.Hits, last.Cache.Misses, t, 1000*t/float64(n-1))
		if len(without) > 0 {
			w := median(without)
			row += fmt.Sprintf(" %.2f | %.1f |", w, 1000*w/float64(n-1))
		} else {
			row += " – | – |"
		}
		fmt.Println(row)
	}
	return nil
}

// split compares one process, one node and the layers split over two and three.
func (m *measure) split() error {
	lengths := []int{32, 128, 512, 1024}
	if m.tokens > 0 {
		lengths = []int{m.tokens}
	}
	var meshes []*testnet.Mesh
	defer func() {
		for _, mesh := range meshes {
			mesh.Close()
		}
	}()
	for n := 1; n <= 3; n++ {
		mesh, err := m.mesh(m.equal(n)...)
		if err != nil {
			return err
		}
		meshes = append(meshes, mesh)
	}
	fmt.Println("decode, tokens/s")
	fmt.Println()
	fmt.Println("| tokens of the answer | one process | one node | two nodes | three nodes | two over one node | three over one process |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, n := range lengths {
		got := make([][]float64, 4)
		var ratio2, ratio3 []float64
		for range m.rounds {
			var rate [4]float64
			a, err := meshes[0].Generate(m.ctx, ask(n))
			if err != nil {
				return err
			}
			rate[0] = a.DecodeTokensPerS
			for i, mesh := range meshes {
				b, err := mesh.GenerateMesh(m.ctx, ask(n))
				if err != nil {
					return err
				}
				if !slices.Equal(a.IDs, b.IDs) {
					return fmt.Errorf("%d tokens over %d nodes differ from one process", n, i+1)
				}
				rate[i+1] = b.DecodeTokensPerS
			}
			for i, r := range rate {
				got[i] = append(got[i], r)
			}
			ratio2, ratio3 = append(ratio2, rate[2]/rate[1]), append(ratio3, rate[3]/rate[0])
		}
		fmt.Printf("| %d | %.1f | %.1f | %.1f | %.1f | %.2f | %.2f |\n", n, median(got[0]), median(got[1]), median(got[2]), median(got[3]), median(ratio2), median(ratio3))
	}
	return nil
}

// engine compares one process with another engine: 512 tokens of prompt, 128 new.
func (m *measure) engine() error {
	if m.ref == "" {
		return fmt.Errorf("compare with what? say -ref COMMAND")
	}
	store, err := exec.CommandContext(m.ctx, m.binary, "model", "show", m.model, "--json").Output()
	if err != nil {
		return fmt.Errorf("model show: %w", err)
	}
	var shown struct{ Path string }
	if err := json.Unmarshal(store, &shown); err != nil || shown.Path == "" {
		return fmt.Errorf("model show %s names no path: %v", m.model, err)
	}
	ids := make([]string, 512)
	for i := range ids {
		ids[i] = fmt.Sprint((7919*i + 13) % 40000)
	}
	var prefill, decode, refPrefill, refDecode, ratioP, ratioD []float64
	type rates struct {
		Prefill float64 `json:"prefill_tokens_per_s"`
		Decode  float64 `json:"decode_tokens_per_s"`
	}
	// A prefill into an empty cache, and a decode from one: as llama-bench does.
	generate := func(tokens int, ids ...string) (r rates, err error) {
		out, err := exec.CommandContext(m.ctx, m.binary, "generate", "--model", m.model, "--threads", fmt.Sprint(m.threads), "--json",
			"--ignore-eog", "--tokens", fmt.Sprint(tokens), "--ids", strings.Join(ids, ",")).Output()
		if err != nil {
			return r, fmt.Errorf("generate: %w", err)
		}
		return r, json.Unmarshal(out, &r)
	}
	for range m.rounds {
		ours, err := generate(1, ids...)
		if err != nil {
			return err
		}
		long, err := generate(129, ids[0])
		if err != nil {
			return err
		}
		ours.Decode = long.Decode
		var theirs rates
		cmd := exec.CommandContext(m.ctx, "sh", "-c", m.ref)
		cmd.Env = append(os.Environ(), "MODEL="+shown.Path, fmt.Sprintf("THREADS=%d", m.threads))
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %w", m.ref, err)
		}
		if err := json.Unmarshal(out, &theirs); err != nil {
			return fmt.Errorf("%s: %w", m.ref, err)
		}
		prefill, decode = append(prefill, ours.Prefill), append(decode, ours.Decode)
		refPrefill, refDecode = append(refPrefill, theirs.Prefill), append(refDecode, theirs.Decode)
		ratioP, ratioD = append(ratioP, ours.Prefill/theirs.Prefill), append(ratioD, ours.Decode/theirs.Decode)
	}
	fmt.Println("| | prefill 512, tokens/s | decode, tokens/s |")
	fmt.Println("|---|---|---|")
	fmt.Printf("| meshnet generate | %.0f | %.1f |\n| reference | %.0f | %.1f |\n| ratio | %.2f | %.2f |\n",
		median(prefill), median(decode), median(refPrefill), median(refDecode), median(ratioP), median(ratioD))
	return nil
}

func median(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	return s[len(s)/2]
}

func cpu() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
		}
	}
	return runtime.GOARCH
}
