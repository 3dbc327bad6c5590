// Command testnet starts a mesh of real processes on this machine and breaks it on
// purpose. The scripts in testnet/ are its verbs:
//
//	go run ./testnet/cmd/testnet VERB ...
//
// `up` leaves one supervisor behind, which owns the relay and every process; the
// other verbs ask it (supervise.go). Invariant: when the supervisor ends, for
// whatever reason, all its processes end. Start reading at verbs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/meshnet/meshnet/testnet"
)

// verb is one command. Those without run are the supervisor's to do.
type verb struct {
	name, args, help string
	least, most      int // arguments
	run              func(ctx context.Context, dir string, args []string) error
}

func verbs() []verb {
	return []verb{
		{"up", "[-n N | -ranges 0:4,2:6,...] [-model M] ...", "start a mesh (up -h shows all flags)", 0, -1, up},
		{"chat", "[-head NAME] [FLAGS OF meshnet chat] [PROMPT]", "ask it", 0, -1, chat},
		{"generate", "[FLAGS OF meshnet generate]", "the same model in one process: the undisturbed text", 0, -1, generate},
		{"status", "[-json]", "nodes, links, sessions", 0, 1, status},
		{"kill", "NODE", "end a node with SIGKILL", 1, 1, nil},
		{"stop", "NODE", "ask a node to leave with SIGTERM; it drains first", 1, 1, nil},
		{"freeze", "NODE", "stop a node with SIGSTOP: it keeps its connections and says nothing", 1, 1, nil},
		{"thaw", "NODE", "let a frozen node go on", 1, 1, nil},
		{"restart", "NODE", "kill a node, if it runs, and start it again", 1, 1, nil},
		{"add", "RANGE", "start one more node, for layers A:B or auto", 1, 1, nil},
		{"evict", "NODE [SESSION|all]", "drop a session's cache on a node (all of them without SESSION)", 1, 2, nil},
		{"cut", "NODE NODE [reset|hole]", "cut a link: reset its connections, or let nothing pass and tell nobody", 2, 3, nil},
		{"heal", "[NODE NODE]", "undo cut, for one link or all", 0, 2, nil},
		{"shape", "NODE NODE DELAY [JITTER [BYTES_PER_S]]", "slow a link down, e.g. 20ms 2ms 1000000; 0 undoes it", 3, 5, nil},
		{"logs", "[-f] [NODE]", "show the logs' ends, or follow one", 0, 2, logs},
		{"down", "", "end everything and remove the directory", 0, 0, down},
		{"supervise", "", "", 0, -1, supervise},
	}
}

func usage() error {
	var b strings.Builder
	b.WriteString("usage: testnet VERB [ARGUMENTS]\n\n")
	for _, v := range verbs() {
		if v.help != "" {
			fmt.Fprintf(&b, "  %-9s %s\n            %s\n", v.name, v.args, v.help)
		}
	}
	b.WriteString("\nEverything is kept in ./.testnet, or in $MESHNET_TESTNET. Nodes are n1, n2, ...; the one that asks is head.")
	return usageError(b.String())
}

type usageError string

func (e usageError) Error() string { return string(e) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	var code exitCode
	switch err := err.(type) {
	case nil:
	case exitCode: // of a meshnet process that has said why
		code = err
	case usageError:
		fmt.Fprintln(os.Stderr, err)
		code = 2
	default:
		fmt.Fprintln(os.Stderr, "testnet:", strings.TrimPrefix(err.Error(), "testnet: "))
		code = 1
	}
	os.Exit(int(code))
}

type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return usage()
	}
	dir := os.Getenv("MESHNET_TESTNET")
	if dir == "" {
		dir = ".testnet"
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for _, v := range verbs() {
		if v.name != args[0] {
			continue
		}
		args = args[1:]
		if n := len(args); n < v.least || v.most >= 0 && n > v.most {
			return usageError(fmt.Sprintf("usage: testnet %s %s\n%s", v.name, v.args, v.help))
		}
		if v.run != nil {
			return v.run(ctx, dir, args)
		}
		text, err := ask[string](ctx, dir, v.name, args)
		if err == nil {
			fmt.Println(text)
		}
		return err
	}
	return usage()
}

// upFlags is a mesh as the command line describes it.
func upFlags(args []string) (testnet.Config, error) {
	var cfg testnet.Config
	var ranges string
	f := flag.NewFlagSet("testnet up", flag.ContinueOnError)
	f.IntVar(&cfg.Nodes, "n", 3, "number of nodes, whose ranges then overlap")
	f.StringVar(&ranges, "ranges", "", "layers of each node, e.g. 0:12,8:20,18:30 or auto,auto (instead of -n)")
	f.StringVar(&cfg.Model, "model", "smollm2", "any model that meshnet takes; tiny needs no network")
	f.IntVar(&cfg.BasePort, "port", 0, "port of n1, n2 has the next and so on; 0: free ones")
	f.StringVar(&cfg.Network, "network", "", "name of the mesh (default: one that no other has)")
	f.IntVar(&cfg.Threads, "threads", 1, "threads of each process")
	f.StringVar(&cfg.Binary, "binary", "", "meshnet binary to use (default: built from this source)")
	f.DurationVar(&cfg.Shape.Delay, "delay", 0, "one-way delay of every link, e.g. 20ms")
	f.DurationVar(&cfg.Shape.Jitter, "jitter", 0, "up to so much more delay")
	f.Int64Var(&cfg.Shape.Rate, "rate", 0, "bytes a second of every link and direction; 0: unlimited")
	f.Uint64Var(&cfg.Seed, "seed", 1, "of the jitter")
	if err := f.Parse(args); err != nil {
		return cfg, exitCode(2)
	}
	if f.NArg() > 0 {
		return cfg, usageError(fmt.Sprintf("testnet up: %q is no flag; up -h shows them", f.Arg(0)))
	}
	if ranges != "" {
		cfg.Ranges = strings.Split(ranges, ",")
	}
	return cfg, nil
}
