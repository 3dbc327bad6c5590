package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/meshnet/meshnet/testnet"
	"github.com/meshnet/meshnet/testnet/relay"
	"golang.org/x/sys/unix"
)

// handle is how to reach the supervisor: DIR/testnet.json.
type handle struct {
	Addr  string // of its HTTP server, on loopback
	Token string // who may read the file may ask
	PID   int
}

// supervise is the process that `up` leaves behind: it owns the mesh until it is
// told to end it, or gets a signal.
func supervise(ctx context.Context, dir string, args []string) error {
	cfg, err := upFlags(args)
	if err != nil {
		return err
	}
	cfg.Dir = dir
	cfg.Log = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	m, err := testnet.Up(ctx, cfg)
	if err != nil {
		return err
	}
	defer m.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	h := handle{Addr: l.Addr().String(), Token: rand.Text(), PID: os.Getpid()}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	srv := &http.Server{Handler: &supervisor{mesh: m, token: h.Token, end: cancel}, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(l)
	}()
	if err = ready(dir, h); err == nil {
		<-ctx.Done()
	}
	patience, done := context.WithTimeout(context.Background(), 2*time.Second)
	defer done()
	srv.Shutdown(patience)
	srv.Close()
	<-served
	return err
}

// ready tells `up` that the mesh stands: by the handle, and by closing the pipe that
// stdout and stderr were until now.
func ready(dir string, h handle) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, "testnet.json"), b); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "logs", "testnet.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	return errors.Join(unix.Dup2(int(log.Fd()), 1), unix.Dup2(int(log.Fd()), 2))
}

// writeFile replaces a file in one step: a reader sees the old or the new one.
func writeFile(path string, b []byte) error {
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

type supervisor struct {
	mesh  *testnet.Mesh
	token string
	end   func()
}

// request is a verb and its arguments; the answer is JSON, an error plain text.
type request struct {
	Verb string
	Args []string
}

func (s *supervisor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if subtle.ConstantTimeCompare([]byte(r.Header.Get("X-Token")), []byte(s.token)) != 1 {
		http.Error(w, "wrong token", http.StatusForbidden)
		return
	}
	var req request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out, err := s.do(r.Context(), req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(out)
}

func (s *supervisor) do(ctx context.Context, r request) (any, error) {
	arg := func(i int) string {
		if i < len(r.Args) {
			return r.Args[i]
		}
		return ""
	}
	switch r.Verb {
	case "down":
		s.end()
		return "ending", nil
	case "status":
		return snapshot(ctx, s.mesh), nil
	case "command":
		return s.command(r.Args)
	case "add":
		n, err := s.mesh.Add(ctx, arg(0))
		if err != nil {
			return nil, err
		}
		return n.Name + " serves " + n.Layers, nil
	case "cut", "heal", "shape":
		return s.link(r.Verb, r.Args)
	}
	n := s.mesh.Node(arg(0))
	if n == nil {
		return nil, fmt.Errorf("no node is called %q; testnet status shows them", arg(0))
	}
	switch r.Verb {
	case "kill":
		return "killed " + n.Name, n.Kill()
	case "stop":
		return n.Name + " has left", n.Stop(ctx)
	case "freeze":
		return "froze " + n.Name, n.Freeze()
	case "thaw":
		return "thawed " + n.Name, n.Thaw()
	case "restart":
		return "restarted " + n.Name, n.Restart(ctx)
	case "evict":
		session := arg(1)
		if session == "" {
			session = "all"
		}
		dropped, err := n.Evict(ctx, session)
		return fmt.Sprintf("%s dropped %d", n.Name, dropped), err
	}
	return nil, fmt.Errorf("no verb %q", r.Verb)
}

// link does what changes links.
func (s *supervisor) link(verb string, args []string) (any, error) {
	if verb == "heal" && len(args) == 0 {
		for _, l := range s.mesh.Links() {
			l.Heal()
		}
		return "healed all links", nil
	}
	if len(args) < 2 || args[0] == args[1] {
		return nil, errors.New("a link has two different ends")
	}
	for _, name := range args[:2] {
		if s.mesh.Node(name) == nil && !s.mesh.IsHead(name) {
			return nil, fmt.Errorf("no node or head is called %q; testnet status shows them", name)
		}
	}
	l, pair := s.mesh.Link(args[0], args[1]), args[0]+" - "+args[1]
	switch {
	case verb == "heal":
		l.Heal()
		return "healed " + pair, nil
	case verb == "shape":
		shape, err := parseShape(args[2:])
		if err != nil {
			return nil, err
		}
		l.SetShape(shape)
		return fmt.Sprintf("%s: delay %v, jitter %v, %d bytes/s", pair, shape.Delay, shape.Jitter, shape.Rate), nil
	case len(args) == 2 || args[2] == "reset":
		l.Cut()
		return "cut " + pair, nil
	case args[2] == "hole":
		l.Hole()
		return "nothing passes " + pair, nil
	}
	return nil, fmt.Errorf("cut by %q: reset or hole", args[2])
}

func parseShape(args []string) (s relay.Shape, err error) {
	for i, a := range args {
		switch i {
		case 0:
			s.Delay, err = time.ParseDuration(a)
		case 1:
			s.Jitter, err = time.ParseDuration(a)
		case 2:
			s.Rate, err = strconv.ParseInt(a, 10, 64)
		}
		if err != nil || s.Delay < 0 || s.Jitter < 0 || s.Rate < 0 {
			return s, fmt.Errorf("%q: a delay and jitter such as 20ms, and bytes a second", a)
		}
	}
	return s, nil
}

// commandLine is a process for the caller to run in its own terminal.
type commandLine struct{ Args, Env []string }

func (s *supervisor) command(args []string) (any, error) {
	if args[0] == "generate" {
		return commandLine{s.mesh.Args("generate", args[2:]...), s.mesh.Env()}, nil
	}
	h, err := s.mesh.FreeHead(args[1])
	if err != nil {
		return nil, err
	}
	return commandLine{h.Args(args[0], args[2:]...), s.mesh.Env()}, nil
}

// errDown: there is no mesh.
var errDown = errors.New("no mesh is up here; start one with: testnet up")

func readHandle(dir string) (h handle, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "testnet.json"))
	if err != nil {
		return h, errDown
	}
	if err := json.Unmarshal(b, &h); err != nil || h.Addr == "" {
		return h, errDown
	}
	return h, nil
}

// ask lets the supervisor do a verb.
func ask[T any](ctx context.Context, dir, verb string, args []string) (out T, err error) {
	h, err := readHandle(dir)
	if err != nil {
		return out, err
	}
	body, err := json.Marshal(request{verb, args})
	if err != nil {
		return out, err
	}
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+h.Addr, bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	req.Header.Set("X-Token", h.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			err = errDown
		}
		return out, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil {
		return out, err
	}
	if resp.StatusCode == http.StatusForbidden {
		return out, errDown // another program has the port of a supervisor that is gone
	}
	if resp.StatusCode != http.StatusOK {
		return out, errors.New(string(bytes.TrimSpace(b)))
	}
	return out, json.Unmarshal(b, &out)
}
