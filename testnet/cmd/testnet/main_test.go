package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/meshnet/meshnet/testnet/internal/fake"
	"github.com/meshnet/meshnet/testnet/relay"
	"go.uber.org/goleak"
)

// The test binary is also the supervisor that `up` starts and the meshnet that the
// supervisor starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		main()
		return
	}
	fake.Main()
	goleak.VerifyTestMain(m)
}

func TestAMeshFromUpToDown(t *testing.T) {
	tmp, err := os.MkdirTemp("", "tn")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(tmp, "net")
	t.Setenv("MESHNET_TESTNET", dir)
	name, value, _ := strings.Cut(fake.Env, "=")
	t.Setenv(name, value)
	t.Setenv("FAKE_HOME", filepath.Join(tmp, "home"))
	ctx := t.Context()
	do := func(line string) error { return run(ctx, strings.Fields(line)) }
	ok := func(line string) {
		t.Helper()
		if err := do(line); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	fails := func(line, why string) {
		t.Helper()
		if err := do(line); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want an error with %q", line, err, why)
		}
	}
	look := func() view {
		t.Helper()
		v, err := ask[view](ctx, dir, "status", nil)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	state := func(i int, want string) {
		t.Helper()
		if got := look().Nodes[i].State; got != want {
			t.Errorf("n%d is %q, want %q", i+1, got, want)
		}
	}

	fails("status", "no mesh is up")
	fails("kill n1", "no mesh is up")
	ok("down")
	fails("", "usage: testnet VERB")
	fails("dance", "usage: testnet VERB")
	fails("kill", "usage: testnet kill NODE")
	fails("up extra", `"extra" is no flag`)

	ok("up -ranges 0:6,4:12,0:12 -model m -binary " + exe)
	defer do("down")
	pid := func() int { return look().Nodes[0].PID }
	first := pid()
	ok("up -n 1") // shows the one that is up
	if v := look(); len(v.Nodes) != 3 || v.Nodes[1].Layers != "4:12" || v.Model != "m" || pid() != first {
		t.Fatalf("%+v", v)
	}
	ok("kill n1")
	state(0, "ended")
	fails("kill n1", "n1 is not running")
	ok("restart n1")
	state(0, "online")
	ok("freeze n2")
	state(1, "frozen")
	ok("thaw n2")
	state(1, "online")
	ok("evict n2")
	ok("evict n2 all")
	fails("evict n2 zz", `no session "zz"`)
	fails("kill n9", `no node is called "n9"`)

	links := func() (all []relay.Mode) {
		for _, l := range look().Links {
			all = append(all, l.Mode)
		}
		return all
	}
	ok("cut n1 n2 hole")
	ok("cut n3 n2")
	if got := links(); !slices.Equal(got, []relay.Mode{relay.Hole, relay.Cut}) {
		t.Errorf("links %v", got)
	}
	ok("heal n2 n1")
	ok("heal")
	if got := links(); len(got) != 0 {
		t.Errorf("links %v", got)
	}
	ok("shape n1 n2 20ms 1ms 1000")
	fails("shape n1 n2 fast", `"fast"`)
	fails("cut n1 n2 softly", `"softly"`)
	fails("cut n1 n1", "two different ends")
	fails("cut n1 head", `"head"`)
	ok("add 3:9")
	if v := look(); len(v.Nodes) != 4 {
		t.Errorf("%d nodes", len(v.Nodes))
	}
	ok("logs")
	ok("logs n4")
	fails("logs n9", `no log of "n9"`)

	command := func(args ...string) string {
		t.Helper()
		c, err := ask[commandLine](ctx, dir, "command", args)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(c.Env, "MESHNET_HOME="+filepath.Join(dir, "home")) {
			t.Error("the command would use another home")
		}
		return strings.Join(c.Args, " ")
	}
	if got := command("chat", "", "Hi"); !strings.Contains(got, " chat --model m ") || !strings.Contains(got, "--name head ") || !strings.HasSuffix(got, " Hi") {
		t.Error(got)
	}
	lock, err := os.Create(filepath.Join(dir, "home", "nodes", "head", "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if got := command("chat", "", "Hi"); !strings.Contains(got, "--name head-2 ") {
		t.Errorf("a busy head was given: %s", got)
	}
	if got := command("generate", "", "--prompt", "Hi"); !strings.HasSuffix(got, " generate --model m --threads 1 --prompt Hi") {
		t.Error(got)
	}
	ok("cut n1 head")

	h, err := readHandle(dir)
	if err != nil {
		t.Fatal(err)
	}
	ok("down")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("down left %s: %v", dir, err)
	}
	if alive(h.PID) {
		t.Error("the supervisor lives")
	}
	fails("status", "no mesh is up")
}

func TestAFailedUpSaysWhy(t *testing.T) {
	tmp, err := os.MkdirTemp("", "tn")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("MESHNET_TESTNET", filepath.Join(tmp, "net"))
	name, value, _ := strings.Cut(fake.Env, "=")
	t.Setenv(name, value)
	t.Setenv("FAKE_HOME", filepath.Join(tmp, "home"))
	t.Setenv("FAKE_DIE", "n2")
	if err := run(t.Context(), []string{"up", "-binary", exe}); err == nil || err.Error() != "the mesh did not start" {
		t.Error(err)
	}
	if err := run(t.Context(), []string{"down"}); err != nil {
		t.Error(err)
	}
}

// Each script is one verb, or the program chaos, and nothing else.
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("../../*.sh")
	if err != nil || len(scripts) < 13 {
		t.Fatal(scripts, err)
	}
	for _, path := range scripts {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".sh")
		call := " run ./cmd/testnet " + name
		if name == "chaos" {
			call = " run ./chaos"
		} else if !slices.ContainsFunc(verbs(), func(v verb) bool { return v.name == name }) {
			t.Errorf("%s: no such verb", path)
		}
		if text := string(b); !strings.HasSuffix(text, call+` "$@"`+"\n") || strings.Count(text, "\n") > 5 {
			t.Errorf("%s does more than to call its verb:\n%s", path, text)
		}
		if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s can't be executed", path)
		}
	}
}
