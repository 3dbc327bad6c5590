// Command meshnet runs one large language model across many machines.
//
// Each verb is a file here that shapes flags and output; what it does is in
// package node and below. Invariant: stdout carries the answer and nothing else,
// so that it can be piped; words about the work go to stderr.
// Start reading at cli, then at demo.go.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/lmittmann/tint"
	"github.com/meshnet/meshnet/cache/blob"
	"github.com/meshnet/meshnet/node/machine"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/shard/chat"
	"golang.org/x/term"
)

// cli is the whole command line.
type cli struct {
	Home    string `help:"Directory of models, identities and sockets (default: $XDG_DATA_HOME/meshnet or ~/.local/share/meshnet)." env:"MESHNET_HOME" placeholder:"DIR" group:"Common"`
	Threads int    `help:"Threads to compute with (0: as many as this process has cores, hyperthreads not counted)." env:"MESHNET_THREADS" placeholder:"N" group:"Common"`
	Packed  string `help:"Disk for packed weights, which make the next start a matter of mapping files: a size such as 16GiB, or off." env:"MESHNET_PACKED" default:"off" placeholder:"SIZE" group:"Common"`
	JSON    bool   `help:"Print one JSON object instead of text." name:"json" group:"Common"`
	Verbose bool   `help:"Log what happens to stderr." short:"v" group:"Common"`

	Demo     demoCmd     `cmd:"" help:"Start a mesh of real processes on this machine and ask it something."`
	Chat     chatCmd     `cmd:"" help:"Talk to a model through the mesh, or ask one thing."`
	Serve    serveCmd    `cmd:"" help:"Offer the mesh as an OpenAI-compatible API on this machine."`
	Join     joinCmd     `cmd:"" help:"Lend this machine: serve layers of a model to the mesh."`
	Status   statusCmd   `cmd:"" help:"Show peers, ranges, holes, routes, sessions and caches."`
	Plan     planCmd     `cmd:"" help:"Show the route that a chat would take."`
	Generate generateCmd `cmd:"" help:"Run a model in this process, without any network."`
	Model    modelCmd    `cmd:"" help:"Fetch, list, show, convert and remove model files."`
	Bench    benchCmd    `cmd:"" help:"Measure how fast this machine is."`
	Version  versionCmd  `cmd:"" help:"Print version, engine and CPU kernels."`
}

// app is what every verb gets.
type app struct {
	ctx            context.Context // ends with the first SIGINT or SIGTERM; the cause is interrupted
	signals        *signals
	stdin          io.Reader
	stdout, stderr io.Writer
	home           string
	threads        int
	packedMax      string // --packed
	json, verbose  bool
	log            *slog.Logger
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "render-template" { // a child with limits: nothing else may run first
		os.Exit(chat.ChildMain(os.Stdin, os.Stdout))
	}
	os.Exit(run(os.Args[1:]))
}

func newParser(c *cli) (*kong.Kong, error) {
	// Kong takes a variable that is set to nothing for a value; people mean "not set".
	for _, v := range os.Environ() {
		if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, "MESHNET_") && value == "" {
			os.Unsetenv(name)
		}
	}
	return kong.New(c,
		kong.Name("meshnet"),
		kong.Vars{"cache_type": wire.DefaultCacheType.String()},
		kong.Description("Run one large language model across many machines.\n\nStart with: meshnet demo"),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
		kong.Configuration(tomlConfig(os.Getenv), configPath(os.Getenv)),
	)
}

func run(args []string) int {
	var c cli
	parser, err := newParser(&c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "meshnet:", err)
		return exitUsage
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "meshnet:", err)
		fmt.Fprintln(os.Stderr, "Try: meshnet --help, or meshnet VERB --help")
		return exitUsage
	}

	sig := &signals{}
	ctx, stop := sig.context()
	defer stop()
	a := &app{ctx: ctx, signals: sig, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, threads: c.Threads, packedMax: c.Packed, json: c.JSON, verbose: c.Verbose, log: logger(os.Stderr, c.Verbose)}
	if a.threads <= 0 {
		a.threads = machine.Machine{}.Threads(runtime.GOMAXPROCS(0))
	}
	if a.home, err = homeDir(c.Home); err == nil {
		err = parsed.Run(a)
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", err, context.Cause(ctx))
	}
	code := exitCode(err)
	if err != nil && code < exitInterrupted {
		fmt.Fprintln(os.Stderr, "meshnet:", printable(err.Error()))
		if code == exitNoRoute {
			fmt.Fprintln(os.Stderr, "Lend this machine with `meshnet join`, or name a node of the mesh with --peer; `meshnet status` shows what there is.")
		}
	}
	return code
}

// signals ends a context with the first SIGINT or SIGTERM; the second one ends
// the process at once, as nobody catches it any more.
type signals struct {
	mu    sync.Mutex
	spare func() bool
}

// onInterrupt lets fn have SIGINTs from now on; those it answers with true end
// nothing. nil: none.
func (s *signals) onInterrupt(fn func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = fn
}

func (s *signals) spared(got os.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return got == syscall.SIGINT && s.spare != nil && s.spare()
}

func (s *signals) context() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case sig := <-got:
				if s.spared(sig) {
					continue
				}
				signal.Stop(got)
				cancel(interrupted{sig.(syscall.Signal)})
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

func homeDir(flag string) (string, error) {
	if flag == "" {
		return blob.Home()
	}
	dir, err := filepath.Abs(flag)
	if err != nil {
		return "", usage("--home %q: %w", flag, err)
	}
	// Children and packages that look it up themselves must see the same place.
	return dir, os.Setenv("MESHNET_HOME", dir)
}

func logger(w *os.File, verbose bool) *slog.Logger {
	level := slog.LevelWarn
	if verbose {
		level = slog.LevelDebug
	}
	if term.IsTerminal(int(w.Fd())) {
		return slog.New(newLimited(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: "15:04:05.000"})))
	}
	return slog.New(newLimited(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})))
}

// printable is s without what could steer a terminal: text of models, peers and
// files is not ours. Newlines and tabs stay.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < 0x20 || r >= 0x7f && r < 0xa0: // C0, DEL, C1
			return -1
		case r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069: // direction overrides hide what is meant
			return -1
		}
		return r
	}, s)
}
