package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/shard/chat"
	"go.uber.org/goleak"
)

// TestMain lets the test binary be the child that renders chat templates, and,
// for demos, the whole program.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "render-template" {
		os.Exit(chat.ChildMain(os.Stdin, os.Stdout))
	}
	if os.Getenv("MESHNET_TEST_RUN") != "" {
		os.Exit(run(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// TestConfig: flag beats environment beats file beats default, and a key that
// means nothing is an error that names it.
func TestConfig(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		env  map[string]string
		args string
		want string // network, listen, layers, mdns, threads
		err  string
	}{
		"defaults":           {args: "join", want: "main [] auto true 0"},
		"for all verbs":      {file: `network = "f"`, args: "join", want: "f [] auto true 0"},
		"for one verb":       {file: "[join]\nnetwork = \"f\"\nlayers = \"1:2\"", args: "join", want: "f [] 1:2 true 0"},
		"for another verb":   {file: "[chat]\nnetwork = \"f\"", args: "join", want: "main [] auto true 0"},
		"verb beats all":     {file: "network = \"f\"\n[join]\nnetwork = \"g\"", args: "join", want: "g [] auto true 0"},
		"lists, numbers":     {file: "listen = [\"a:1\", \"b:2\"]\nthreads = 3\nmdns = false", args: "join", want: "main [a:1 b:2] auto false 3"},
		"environment":        {file: `network = "f"`, env: map[string]string{"MESHNET_NETWORK": "e"}, args: "join", want: "e [] auto true 0"},
		"flag":               {file: `network = "f"`, env: map[string]string{"MESHNET_NETWORK": "e"}, args: "join --network=a --no-mdns", want: "a [] auto false 0"},
		"unknown key":        {file: `colour = "red"`, args: "join", err: `unknown key "colour"`},
		"key of no verb":     {file: "[join]\nport = 1", args: "join", err: `unknown key "join.port"; did you mean serve.port?`},
		"unknown verb":       {file: "[dance]\nnetwork = \"f\"", args: "join", err: `unknown key "dance.network"`},
		"not TOML":           {file: `network = `, args: "join", err: "TOML"},
		"wrong type":         {file: `threads = "many"`, args: "join", err: "threads"},
		"comma in a list":    {file: `listen = ["a,b"]`, args: "join", err: "comma"},
		"unknown flag":       {args: "join --colour", err: "--colour"},
		"sampling is looked": {args: "generate --temp=-1", err: "temperature"},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			t.Setenv("MESHNET_HOME", home)
			for _, k := range []string{"MESHNET_NETWORK", "MESHNET_MODEL", "MESHNET_PEERS", "MESHNET_THREADS"} {
				t.Setenv(k, c.env[k])
			}
			if c.file != "" {
				if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var line cli
			parser, err := newParser(&line)
			if err == nil {
				_, err = parser.Parse(strings.Fields(c.args))
			}
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, want an error with %q", err, c.err)
				}
				return
			}
			j := line.Join
			if got := fmt.Sprint(j.Network, j.Listen, j.Layers, j.MDNS, line.Threads); err != nil || strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(c.want, " ", "") {
				t.Errorf("%s, %v; want %s", got, err, c.want)
			}
		})
	}
}

// TestHelp: every verb that a person sees explains itself with an example.
func TestHelp(t *testing.T) {
	t.Setenv("MESHNET_HOME", t.TempDir())
	var line cli
	parser, err := newParser(&line)
	if err != nil {
		t.Fatal(err)
	}
	var walk func(n *kong.Node)
	walk = func(n *kong.Node) {
		for _, child := range n.Children {
			walk(child)
		}
		if n.Type == kong.CommandNode && len(n.Children) == 0 && (n.Help == "" || !strings.Contains(n.Detail, "meshnet "+strings.ReplaceAll(commandPath(n), ".", " "))) {
			t.Errorf("meshnet %s: no help with an example", commandPath(n))
		}
		for _, f := range n.Flags {
			if f.Help == "" {
				t.Errorf("meshnet %s: --%s has no help", commandPath(n), f.Name)
			}
		}
	}
	walk(parser.Model.Node)
}

func TestExitCodes(t *testing.T) {
	gap := &route.GapError{Missing: [][2]int{{1, 2}}}
	for _, c := range []struct {
		err  error
		code int
	}{
		{nil, 0},
		{errors.New("x"), exitFailure},
		{usage("x"), exitUsage},
		{fail(exitModel, errors.New("x")), exitModel},
		{fail(exitModel, nil), 0},
		{fmt.Errorf("find a route: %w", gap), exitNoRoute},
		{fmt.Errorf("x: %w", syscall.EADDRINUSE), exitInUse},
		{&head.TooLongError{Prompt: 9, Context: 8}, exitPrompt},
		{fmt.Errorf("x: %w", context.Canceled), exitInterrupted},
		{fmt.Errorf("%w (%w)", fail(exitModel, errors.New("x")), interrupted{syscall.SIGTERM}), exitTerminated},
		{fmt.Errorf("%w (%w)", context.Canceled, interrupted{syscall.SIGINT}), exitInterrupted},
	} {
		if got := exitCode(c.err); got != c.code {
			t.Errorf("%v: %d, want %d", c.err, got, c.code)
		}
	}
}

// TestPrintable: nothing that a model or a peer says steers the terminal.
func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n":               "plain\ttext\n",
		"\x1b[31mred\x1b[0m":          "[31mred[0m",
		"\x1b]0;title\a":              "]0;title",
		"over\rwritten\b":             "overwritten",
		"c1 \u009b31m csi":            "c1 31m csi",
		"\u202egnp.exe":               "gnp.exe",
		"é 日本 👍🏽 \u200d":              "é 日本 👍🏽 \u200d",
		"bad \xff byte":               "bad \uFFFD byte",
		"\x00\x7f nothing \x1b\\ end": " nothing \\ end",
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestNPY reads the file back by the format's description (numpy.lib.format).
func TestNPY(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.npy")
	w, err := createNPY(path)
	if err != nil {
		t.Fatal(err)
	}
	rows := [][]float32{{1, -2.5, 3}, {0, float32(math.Inf(1)), 1e-30}}
	for i, r := range rows {
		if err := w.row(i, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := int(binary.LittleEndian.Uint16(b[8:]))
	head := string(b[10 : 10+n])
	if !bytes.HasPrefix(b, []byte("\x93NUMPY\x01\x00")) || (10+n)%64 != 0 || !strings.HasSuffix(head, "\n") ||
		!strings.Contains(head, "'descr': '<f4'") || !strings.Contains(head, "'fortran_order': False") || !strings.Contains(head, "'shape': (2, 3)") {
		t.Errorf("header %q", b[:10+n])
	}
	for i, want := range append(rows[0], rows[1]...) {
		if got := math.Float32frombits(binary.LittleEndian.Uint32(b[10+n+4*i:])); got != want {
			t.Errorf("value %d: %g, want %g", i, got, want)
		}
	}
	if len(b) != 10+n+4*6 {
		t.Errorf("%d bytes", len(b))
	}
}

// TestSpan: the demo's ranges cover all layers, overlap, and every one is needed.
func TestSpan(t *testing.T) {
	for _, layers := range []int{1, 2, 3, 8, 24, 28, 30, 61} {
		for n := 1; n <= min(layers, 9); n++ {
			holders := make([][]int, layers)
			for i := range n {
				start, end := span(layers, n, i)
				for l := start; l < end; l++ {
					holders[l] = append(holders[l], i)
				}
			}
			needed, shared := map[int]bool{}, false
			for l, h := range holders {
				if len(h) == 0 {
					t.Errorf("%d layers, %d nodes: nobody has layer %d", layers, n, l)
				}
				if len(h) == 1 {
					needed[h[0]] = true
				}
				shared = shared || len(h) > 1
			}
			if len(needed) != n || n > 1 && layers/n > 2 && !shared {
				t.Errorf("%d layers, %d nodes: needed %v, overlap %v", layers, n, needed, shared)
			}
		}
	}
}
