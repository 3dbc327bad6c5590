package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/meshnet/meshnet/testnet"
	"github.com/meshnet/meshnet/testnet/relay"
)

// up starts a supervisor and waits until the mesh stands. With one there already it
// only shows it.
func up(ctx context.Context, dir string, args []string) error {
	if _, err := upFlags(args); err != nil {
		return err
	}
	if _, err := ask[view](ctx, dir, "status", nil); err == nil {
		fmt.Println("a mesh is up already; testnet down would end it")
		return status(ctx, dir, nil)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, append([]string{"supervise"}, args...)...)
	cmd.Env = append(os.Environ(), "MESHNET_TESTNET="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives us and our terminal
	words, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-ctx.Done():
			cmd.Process.Signal(syscall.SIGTERM)
		case <-ended:
		}
	}()
	// It closes its end once the mesh stands, or by its own end.
	io.Copy(os.Stdout, words)
	if _, err := ask[view](context.WithoutCancel(ctx), dir, "status", nil); err != nil {
		cmd.Wait()
		return errors.New("the mesh did not start")
	}
	if err := status(ctx, dir, nil); err != nil {
		return err
	}
	fmt.Println("\nask it:  testnet/chat.sh \"Why is the sky blue?\"     end it:  testnet/down.sh")
	return nil
}

// down ends the supervisor, and removes what it leaves.
func down(ctx context.Context, dir string, _ []string) error {
	if _, err := os.Stat(dir); err != nil {
		fmt.Println("nothing is up")
		return nil
	}
	h, _ := readHandle(dir)
	_, asked := ask[string](ctx, dir, "down", nil) // if nobody answers, the lock says whether somebody lives
	remove := func() (bool, error) {
		err := testnet.Remove(dir)
		return err == nil, err
	}
	err := poll(ctx, 10*time.Second, remove)
	if errors.Is(err, testnet.ErrRunning) && h.PID > 0 {
		// The lock proves that this process is still the supervisor.
		syscall.Kill(h.PID, syscall.SIGKILL)
		err = poll(ctx, 5*time.Second, remove)
	}
	if err == nil && asked == nil { // it has let go of everything; wait for the process itself, too
		err = poll(ctx, 5*time.Second, func() (bool, error) { return !alive(h.PID), testnet.ErrRunning })
	}
	if err == nil {
		fmt.Println("ended")
	}
	return err
}

// poll tries until try is done, fails with another error than ErrRunning, or time is up.
func poll(ctx context.Context, most time.Duration, try func() (done bool, err error)) error {
	for began := time.Now(); ; {
		done, err := try()
		switch {
		case done:
			return nil
		case !errors.Is(err, testnet.ErrRunning) || time.Since(began) > most:
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// alive says that a process has not ended; a zombie has.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

// chat becomes `meshnet chat`.
func chat(ctx context.Context, dir string, args []string) error {
	head := ""
	if len(args) > 1 && (args[0] == "-head" || args[0] == "--head") {
		head, args = args[1], args[2:]
	}
	return become(ctx, dir, append([]string{"chat", head}, args...))
}

func generate(ctx context.Context, dir string, args []string) error {
	return become(ctx, dir, append([]string{"generate", ""}, args...))
}

// become replaces this process, so that the terminal and its signals are meshnet's.
func become(ctx context.Context, dir string, args []string) error {
	c, err := ask[commandLine](ctx, dir, "command", args)
	if err != nil {
		return err
	}
	return syscall.Exec(c.Args[0], c.Args, c.Env)
}

// view is what status shows.
type view struct {
	Dir, Network, Model string
	Layers              int
	Nodes               []nodeView
	Links               []relay.State
}

type nodeView struct {
	Name, Peer, Addr, State string
	PID                     int
	Layers                  string
	Sessions                int
	Cache                   json.RawMessage `json:",omitempty"`
}

func snapshot(ctx context.Context, m *testnet.Mesh) view {
	c := m.Config()
	v := view{Dir: c.Dir, Network: c.Network, Model: c.Model, Layers: m.Layers}
	for _, n := range m.Nodes() {
		nv := nodeView{Name: n.Name, Peer: n.ID, Addr: n.Addr(), PID: n.PID(), Layers: n.Layers, State: "ended"}
		switch {
		case n.Frozen():
			nv.State = "frozen"
		case n.Running():
			s, err := n.Status(ctx)
			if err != nil {
				nv.State = "silent: " + err.Error()
				break
			}
			nv.State, nv.Sessions, nv.Cache = s.Node.State, len(s.Sessions), s.Cache
			if s.Shard != nil {
				nv.Layers = fmt.Sprintf("%d:%d", s.Shard.Start, s.Shard.End)
			}
		}
		v.Nodes = append(v.Nodes, nv)
	}
	for _, l := range m.Links() {
		if s := l.State(); s.Opened > 0 || s.Mode != relay.Up {
			v.Links = append(v.Links, s)
		}
	}
	sort.Slice(v.Links, func(i, j int) bool {
		return v.Links[i].A+" "+v.Links[i].B < v.Links[j].A+" "+v.Links[j].B
	})
	return v
}

func status(ctx context.Context, dir string, args []string) error {
	v, err := ask[view](ctx, dir, "status", nil)
	if err != nil {
		return err
	}
	if len(args) > 0 {
		if args[0] != "-json" && args[0] != "--json" {
			return usageError("usage: testnet status [-json]")
		}
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	fmt.Printf("%s, %d layers, on the mesh %q in %s\n\n", v.Model, v.Layers, v.Network, v.Dir)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tLAYERS\tSTATE\tSESSIONS\tPID\tADDRESS")
	for _, n := range v.Nodes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\n", n.Name, n.Layers, n.State, n.Sessions, n.PID, n.Addr)
	}
	fmt.Fprintln(w, "\nLINK\tSTATE\tDELAY\tCONNECTIONS\tBYTES")
	for _, l := range v.Links {
		fmt.Fprintf(w, "%s - %s\t%s\t%v\t%d\t%d > < %d\n", l.A, l.B, l.Mode, l.Shape.Delay, l.Conns, l.AToB, l.BToA)
	}
	return w.Flush()
}

// logs shows the ends of all logs, one log, or follows one.
func logs(ctx context.Context, dir string, args []string) error {
	follow := len(args) > 0 && args[0] == "-f"
	if follow {
		args = args[1:]
	}
	if len(args) == 0 {
		if follow {
			return usageError("usage: testnet logs [-f] [NODE]")
		}
		files, _ := filepath.Glob(filepath.Join(dir, "logs", "*.log"))
		if len(files) == 0 {
			return errDown
		}
		for _, f := range files {
			fmt.Printf("--- %s\n%s\n", strings.TrimSuffix(filepath.Base(f), ".log"), testnet.Tail(f, 2<<10))
		}
		return nil
	}
	f, err := os.Open(filepath.Join(dir, "logs", filepath.Base(args[0])+".log"))
	if err != nil {
		return fmt.Errorf("no log of %q: %w", args[0], err)
	}
	defer f.Close()
	for {
		if _, err := io.Copy(os.Stdout, f); err != nil || !follow {
			return err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
	}
}
