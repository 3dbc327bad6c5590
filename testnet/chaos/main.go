// Command chaos breaks a mesh of real processes on purpose, by a schedule that a
// seed fixes, while chats run, and holds every answer against the one that a
// single process gives undisturbed.
//
//	testnet/chaos.sh --seed 1 --duration 60s --chats 8 --json
//
// It prints a line for every fault and one report, with --json as one object
// (Report). The exit code is 1 if an answer was wrong or lost.
//
// Invariant: the same flags give the same faults in the same order; a fault that
// would take a layer's last holder waits until another one serves, unless --holes
// is given. Start reading at Run; what is drawn is in schedule.go.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	os.Exit(code)
}

// command is main without the process. The code is 1 for a wrong or lost answer
// and 2 where nothing could be measured.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) (code int, err error) {
	fs := flag.NewFlagSet("chaos", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var cfg Config
	fs.Uint64Var(&cfg.Seed, "seed", 1, "of the schedule and of the questions' order")
	fs.DurationVar(&cfg.Duration, "duration", time.Minute, "of the faults")
	fs.DurationVar(&cfg.Every, "every", 3*time.Second, "between faults, on average")
	fs.IntVar(&cfg.Chats, "chats", 4, "that run at once")
	fs.IntVar(&cfg.Processes, "processes", -1, "of them that are a `meshnet chat` each, the others go to one `meshnet serve` (-1: a quarter)")
	fs.StringVar(&cfg.Model, "model", "smollm2", "any reference that --model takes")
	fs.IntVar(&cfg.Copies, "copies", 2, "holders of every layer")
	fs.IntVar(&cfg.Spans, "spans", 2, "hops that the model is cut into")
	fs.IntVar(&cfg.Tokens, "tokens", 120, "of an answer, at most")
	fs.IntVar(&cfg.Context, "context", 60, "tokens of a question, roughly")
	fs.IntVar(&cfg.Questions, "questions", 6, "that are asked again and again")
	kinds := fs.String("kinds", "", "of faults, separated by commas (default all)")
	fs.BoolVar(&cfg.Aim, "aim", false, "take a peer that a chat uses, where one can be spared, instead of the schedule's")
	fs.BoolVar(&cfg.Holes, "holes", false, "let layers lose their last holder")
	fs.StringVar(&cfg.Binary, "binary", "", "a meshnet binary (default: built)")
	fs.StringVar(&cfg.Dir, "dir", "", "keep the mesh's files here (default: removed)")
	dry := fs.Bool("dry", false, "only print the schedule")
	asJSON := fs.Bool("json", false, "print one JSON object; the faults go to standard error")
	if err := fs.Parse(args); err != nil {
		return 2, nil // it has said so
	}
	if fs.NArg() > 0 {
		return 2, fmt.Errorf("unexpected %q: see --help", fs.Arg(0))
	}
	if cfg.Kinds, err = parseKinds(*kinds); err != nil {
		return 2, err
	}
	if cfg.Home, err = blob.Home(); err != nil {
		return 2, err
	}
	words := stdout
	if *asJSON {
		words = stderr
	}
	cfg.Log = func(format string, args ...any) { fmt.Fprintf(words, format+"\n", args...) }
	if *dry {
		if err := cfg.dry(); err != nil {
			return 2, err
		}
		return 0, nil
	}
	if cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "chaos")
		if err != nil {
			return 2, err
		}
		defer os.RemoveAll(dir)
		cfg.Dir = filepath.Join(dir, "m")
	}
	report, err := Run(ctx, cfg)
	if err != nil {
		return 2, err
	}
	if *asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = e.Encode(report)
	} else {
		report.print(stdout)
	}
	if report.Wrong+report.Lost > 0 {
		code = 1
	}
	return code, err
}
