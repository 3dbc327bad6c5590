package testnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/meshnet/meshnet/testnet/internal/fake"
	"github.com/meshnet/meshnet/testnet/relay"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("TESTNET_OWNER"); dir != "" {
		own(dir)
		return
	}
	fake.Main()
	goleak.VerifyTestMain(m)
}

// fakeConfig is a mesh of fakes. Its directory is short: a socket's path must fit.
func fakeConfig(t *testing.T) Config {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "tn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return Config{
		Dir: filepath.Join(dir, "m"), Binary: exe, Ready: 20 * time.Second,
		Env: []string{fake.Env, "MESHNET_SHARD_CACHE_TTL_SECONDS=7"}, Home: filepath.Join(dir, "home"),
	}
}

// gone waits for the kernel to have taken a process away.
func gone(t *testing.T, pid int) {
	t.Helper()
	for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(10 * time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
	}
	t.Errorf("process %d still runs", pid)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNodesLiveAndDie(t *testing.T) {
	m := Start(t, fakeConfig(t))
	ctx := t.Context()
	if m.Layers != 12 || len(m.Nodes()) != 3 || m.Node("n4") != nil {
		t.Fatalf("%d layers, %d nodes", m.Layers, len(m.Nodes()))
	}
	n := m.Node("n2")
	if m.Name(n.ID) != "n2" || m.Name("stranger") != "stranger" {
		t.Error("names are mixed up")
	}

	must(t, n.Freeze())
	brief, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := n.Status(brief); !errors.Is(err, context.DeadlineExceeded) || !n.Frozen() || !n.Running() {
		t.Errorf("a frozen node answered: %v", err)
	}
	must(t, n.Thaw())
	s, err := n.Status(ctx)
	must(t, err)
	if s.Node.Peer != n.ID || s.Node.State != "online" || !strings.Contains(string(s.Cache), `"7"`) {
		t.Errorf("%+v", s)
	}
	must(t, n.WaitRows(ctx, 40))

	if dropped, err := n.Evict(ctx, "all"); dropped != 2 || err != nil {
		t.Error(dropped, err)
	}
	if _, err := n.Evict(ctx, "zz"); err == nil || !strings.Contains(err.Error(), `no session "zz"`) {
		t.Error(err)
	}

	before, id := n.PID(), n.ID
	must(t, n.Kill())
	gone(t, before)
	if n.Running() || n.Kill() == nil || n.Freeze() == nil {
		t.Error("a dead node can be killed")
	}
	if err := m.WaitReady(ctx); err != nil {
		t.Errorf("a node that was killed on purpose is missed: %v", err)
	}
	must(t, n.Restart(ctx))
	if s, err := n.Status(ctx); err != nil || s.Node.Peer != id || n.PID() == before {
		t.Errorf("%+v, %v", s, err)
	}
	must(t, n.Stop(ctx))
	if !strings.Contains(n.LogTail(), "fake n2 leaves") {
		t.Errorf("log: %s", n.LogTail())
	}

	added, err := m.Add(ctx, "0:12")
	must(t, err)
	if added.Name != "n4" || !added.Running() {
		t.Error(added.Name)
	}
}

// Heads that are asked for at the same time, under one name and under several, have an address each.
func TestHeadsAtOnce(t *testing.T) {
	m, err := Up(t.Context(), fakeConfig(t))
	must(t, err)
	t.Cleanup(m.Close)
	const names, each = 8, 4
	var heads [names][each]*Head
	var wg sync.WaitGroup
	for i := range names * each {
		wg.Go(func() {
			h, err := m.Head(fmt.Sprintf("chat%d", i%names))
			if err != nil {
				t.Error(err)
			}
			heads[i%names][i/names] = h
		})
	}
	wg.Wait()
	at := map[netip.Addr]string{}
	for _, same := range heads {
		for _, h := range same {
			if h == nil {
				continue // told above
			}
			if h != same[0] {
				t.Errorf("%s was made twice", h.Name)
			}
			if other, ok := at[h.ip]; ok && other != h.Name {
				t.Errorf("%s and %s are both at %v", h.Name, other, h.ip)
			}
			at[h.ip] = h.Name
		}
	}
	if len(at) != names {
		t.Errorf("%d names are at %d addresses", names, len(at))
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	cfg := fakeConfig(t)
	for range 2 { // the same directory again
		m, err := Up(t.Context(), cfg)
		must(t, err)
		var pids []int
		for _, n := range m.Nodes() {
			pids = append(pids, n.PID())
		}
		must(t, m.Nodes()[0].Freeze())
		if _, err := Up(t.Context(), cfg); !errors.Is(err, ErrRunning) {
			t.Errorf("a second mesh in one directory: %v", err)
		}
		if err := Remove(cfg.Dir); !errors.Is(err, ErrRunning) {
			t.Errorf("a running mesh's directory was removed: %v", err)
		}
		m.Close()
		m.Close()
		for _, pid := range pids {
			gone(t, pid)
		}
		if _, err := m.Add(t.Context(), "0:1"); err == nil {
			t.Error("a closed mesh took a node")
		}
	}
	must(t, Remove(cfg.Dir))
	if _, err := os.Stat(filepath.Join(cfg.Home, "blobs")); err != nil {
		t.Error("the person's models were removed with the mesh:", err)
	}
}

func TestRemoveRefusesOtherDirectories(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "precious"), nil, 0o600))
	if err := Remove(dir); err == nil || !strings.Contains(err.Error(), "no directory of a test mesh") {
		t.Error(err)
	}
	cfg := fakeConfig(t)
	cfg.Dir = dir
	if _, err := Up(t.Context(), cfg); err == nil {
		t.Error("a mesh was put over precious files")
	}
	if _, err := os.Stat(filepath.Join(dir, "precious")); err != nil {
		t.Error(err)
	}
}

func TestANodeThatFailsIsNamed(t *testing.T) {
	cfg := fakeConfig(t)
	cfg.Env = append(cfg.Env, "FAKE_DIE=n2")
	_, err := Up(t.Context(), cfg)
	var dead *DeadError
	if !errors.As(err, &dead) || dead.Node != "n2" || !strings.Contains(err.Error(), "no layers for me") {
		t.Fatal(err)
	}
	must(t, Remove(cfg.Dir)) // its lock is free
}

// own is the process that TestChildrenDieWithTheirOwner kills.
func own(dir string) {
	exe, _ := os.Executable()
	m, err := Up(context.Background(), Config{Dir: dir, Binary: exe, Env: []string{fake.Env, "TESTNET_OWNER="}, Home: dir + ".home"})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, n := range m.Nodes() {
		fmt.Println(n.PID())
	}
	fmt.Println("up")
	select {}
}

func TestChildrenDieWithTheirOwner(t *testing.T) {
	exe, err := os.Executable()
	must(t, err)
	cfg := fakeConfig(t)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "TESTNET_OWNER="+cfg.Dir)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var pids []int
	for {
		var pid int
		if _, err := fmt.Fscanln(out, &pid); err != nil {
			break // "up"
		}
		pids = append(pids, pid)
	}
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
	if len(pids) != 3 {
		t.Fatalf("%d nodes came up", len(pids))
	}
	for _, pid := range pids {
		gone(t, pid)
	}
	must(t, Remove(cfg.Dir))
}

func TestOverlapping(t *testing.T) {
	for _, tc := range []struct {
		layers, nodes int
		want          string
	}{
		{12, 1, "0:12"},
		{12, 2, "0:9 6:12"},
		{30, 3, "0:15 10:25 20:30"},
		{8, 3, "0:3 2:6 5:8"},
		{2, 3, "0:1 0:1 1:2"},
	} {
		if got := strings.Join(Overlapping(tc.layers, tc.nodes), " "); got != tc.want {
			t.Errorf("%d layers over %d nodes: %s, want %s", tc.layers, tc.nodes, got, tc.want)
		}
	}
}

func TestAsking(t *testing.T) {
	cfg := fakeConfig(t)
	cfg.Model, cfg.Network, cfg.Shape = "m", "net", relay.Shape{Delay: time.Millisecond}
	m := Start(t, cfg)
	ctx := t.Context()

	a, err := m.Chat(ctx, Ask{Prompt: "-why?", Tokens: 5, Temp: 0.5, Seed: 9, Args: []string{"-v"}})
	must(t, err)
	for _, want := range []string{"chat --model m --threads 1 --network net --name head --listen /ip4/127.1.", "--announce /ip4/127.1.",
		"--dial-from 127.1.", "--no-mdns --no-quic --peer " + m.Node("n1").Addr(), "--peer " + m.Node("n3").Addr(),
		"--temp 0.5 --seed 9 --tokens 5 -v --json -- -why?"} {
		if !strings.Contains(a.Text, want) {
			t.Errorf("%q lacks %q", a.Text, want)
		}
	}
	if !reflect.DeepEqual(a.IDs, []int32{5}) || a.FinishReason != "stop" {
		t.Errorf("%+v", a)
	}
	if s := m.Link("n2", "head").State(); s.Shape.Delay != time.Millisecond {
		t.Errorf("the head's link has %+v", s)
	}

	var events []Event
	a, err = m.Chat(ctx, Ask{Head: "asker", Prompt: "x", OnEvent: func(e Event) { events = append(events, e) }})
	must(t, err)
	want := []Event{{Note: "a route"}, {Text: "he", Tokens: 1}, {Text: "llo", Tokens: 2}}
	if !reflect.DeepEqual(events, want) || !strings.Contains(a.Text, "--name asker") {
		t.Errorf("%+v, %+v", events, a)
	}

	a, err = m.GenerateMesh(ctx, Ask{IDs: []int32{1, 2, 3}})
	must(t, err)
	if !strings.Contains(a.Text, "--ids 1,2,3 --json --mesh") {
		t.Error(a.Text)
	}
	a, err = m.Generate(ctx, Ask{Prompt: "hi"})
	must(t, err)
	if !strings.Contains(a.Text, "generate --model m --threads 1 --json --temp 0 --seed 0 --prompt hi") {
		t.Error(a.Text)
	}

	_, err = m.Chat(ctx, Ask{Prompt: "fail"})
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Code != 4 || !strings.Contains(err.Error(), "nobody offers layers 3 to 5") {
		t.Error(err)
	}
	api, err := m.Serve(ctx, "api")
	must(t, err)
	if api.URL != "http://127.0.0.1:1/v1" {
		t.Error(api.URL)
	}
	api.Kill()
}

func TestBadConfig(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no directory": {},
		"too many":     {Dir: "x", Nodes: 200},
		"negative":     {Dir: "x", Nodes: -1},
		"port":         {Dir: "x", BasePort: 65500},
	} {
		if _, err := Up(t.Context(), cfg); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
