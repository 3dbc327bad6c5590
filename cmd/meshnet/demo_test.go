package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program runs this program in a process of its own.
func program(t *testing.T, home string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), "MESHNET_TEST_RUN=1", "MESHNET_HOME="+home)
	return cmd
}

var pidPattern = regexp.MustCompile(`pid (\d+)`)

// gone waits until none of the processes named in text runs any more.
func gone(t *testing.T, text string, want int) {
	t.Helper()
	found := pidPattern.FindAllStringSubmatch(text, -1)
	if len(found) != want {
		t.Errorf("%d processes named, want %d:\n%s", len(found), want, text)
	}
	deadline := time.Now().Add(10 * time.Second)
	for _, m := range found {
		pid, _ := strconv.Atoi(m[1])
		for !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			if time.Now().After(deadline) {
				t.Errorf("process %d still runs", pid)
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func noNodes(t *testing.T, home string) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(home, "nodes", "demo-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestDemoKill: a volunteer is killed in the middle of the answer, and the text
// is the undisturbed one; all processes have ended.
func TestDemoKill(t *testing.T) {
	home := t.TempDir()
	cmd := program(t, home, "demo", "--model", "tiny", "--kill", "--tokens", "60", "--temp", "0.8", "--seed", "5", "--json")
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, words.String())
	}
	var r struct {
		Text       string
		IDs        []int32
		Reason     string `json:"finish_reason"`
		Same       *bool  `json:"same_as_undisturbed"`
		Recoveries []struct{ Cause string }
		Route      []struct{ Start, End int }
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if r.Same == nil || !*r.Same || len(r.IDs) != 60 || r.Reason != "length" || len(r.Recoveries) == 0 || len(r.Route) != 3 {
		t.Errorf("%s\n%s", out.String(), words.String())
	}
	gone(t, words.String(), 5)
	noNodes(t, home)

	// The same again, as one process does it.
	gen := program(t, home, "generate", "--model", "tiny", "--prompt", "Why is the sky blue?", "--tokens", "60", "--temp", "0.8", "--seed", "5", "--json")
	plain, err := gen.Output()
	if err != nil {
		t.Fatal(err)
	}
	var g struct{ Text string }
	if err := json.Unmarshal(plain, &g); err != nil || g.Text != r.Text {
		t.Errorf("generate says %q, %v; the demo %q", g.Text, err, r.Text)
	}
}

// TestDemoStops: whatever ends a demo ends its nodes.
func TestDemoStops(t *testing.T) {
	for name, c := range map[string]struct {
		args   string
		until  string // is said
		signal syscall.Signal
		code   int
	}{
		"Ctrl-C in the answer":  {"--tokens 8000", "asks:", syscall.SIGINT, exitInterrupted},
		"SIGTERM in the answer": {"--tokens 8000", "asks:", syscall.SIGTERM, exitTerminated},
		"kill -9 in the answer": {"--tokens 8000", "asks:", syscall.SIGKILL, -1},
		"Ctrl-C after --keep":   {"--tokens 5 --keep", "meshnet status", syscall.SIGINT, 0},
		"kill -9 after --keep":  {"--tokens 5 --keep", "meshnet status", syscall.SIGKILL, -1},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			cmd := program(t, home, append([]string{"demo", "--model", "tiny"}, strings.Fields(c.args)...)...)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			cmd.Stderr = w
			err = cmd.Start()
			w.Close()
			if err != nil {
				t.Fatal(err)
			}
			var words strings.Builder
			lines := bufio.NewScanner(io.TeeReader(r, &words))
			for lines.Scan() && !strings.Contains(lines.Text(), c.until) {
			}
			cmd.Process.Signal(c.signal)
			cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != c.code {
				t.Errorf("exit code %d, want %d:\n%s", got, c.code, words.String())
			}
			gone(t, words.String(), 4)
			if c.code >= 0 {
				noNodes(t, home)
			}
		})
	}
}

// TestVerbs: exit codes and words of whole processes.
func TestVerbs(t *testing.T) {
	home := t.TempDir()
	for name, c := range map[string]struct {
		args  string
		stdin string
		code  int
		says  string
	}{
		"version":          {args: "version --json", says: `"architectures":["gemma3","llama","qwen2","qwen3"]`},
		"unknown verb":     {args: "dance", code: exitUsage, says: "dance"},
		"unknown model":    {args: "generate --model nope --prompt x", code: exitModel, says: `"nope"`},
		"no prompt":        {args: "generate --model tiny", code: exitUsage, says: "no prompt"},
		"unknown id":       {args: "generate --model tiny --ids 1,384", code: exitPrompt, says: "384 at position 1"},
		"too long":         {args: "generate --model tiny --raw", stdin: strings.Repeat("x", 9000), code: exitPrompt, says: "context of 8192"},
		"from a pipe":      {args: "generate --model tiny --tokens 1 --json", stdin: "Hello\n", says: `"finish_reason":"length"`},
		"bad layers":       {args: "join --model tiny --layers 3", code: exitUsage, says: "A:B"},
		"layers it lacks":  {args: "join --model tiny --layers 3:99", code: exitUsage, says: "8 layers"},
		"open to all":      {args: "serve --model tiny --host 0.0.0.0", code: exitUsage, says: "API key"},
		"no such address":  {args: "serve --model tiny --host 203.0.113.1 --api-key k", code: exitInUse, says: "--port"},
		"nobody there":     {args: "plan --model tiny --listen 127.0.0.1:0 --no-mdns --wait 200ms", code: exitNoRoute, says: "nobody offers layers 0 to 7"},
		"bad peer":         {args: "chat --model tiny --listen 127.0.0.1:0 --no-mdns --peer 10.0.0.1 hi", code: exitFailure, says: "10.0.0.1"},
		"status of nobody": {args: "status --look --listen 127.0.0.1:0 --no-mdns --model tiny", says: "nobody offers layers"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := program(t, home, strings.Fields(c.args)...)
			cmd.Stdin = strings.NewReader(c.stdin)
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != c.code || !strings.Contains(string(out), c.says) {
				t.Errorf("exit code %d, want %d with %q:\n%s", got, c.code, c.says, out)
			}
		})
	}
}
