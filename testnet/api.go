package testnet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// API is a `meshnet serve` of the mesh.
type API struct {
	URL  string // ends in /v1
	head *Head
	proc *process
	log  string
}

// Serve starts the API at a free port, from the head of that name.
func (m *Mesh) Serve(ctx context.Context, head string, args ...string) (*API, error) {
	h, err := m.Head(head)
	if err != nil {
		return nil, err
	}
	cmd := h.Command(context.Background(), "serve", append([]string{"--json", "-v", "--port", "0"}, args...)...)
	log := filepath.Join(m.cfg.Dir, "logs", head+".log")
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out, err := os.Create(filepath.Join(m.cfg.Dir, "logs", head+".out"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, f
	a := &API{head: h, log: log}
	if a.proc, err = m.procs.launch(cmd); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Ready)
	defer cancel()
	for {
		b, err := os.ReadFile(out.Name())
		if err == nil && bytes.HasSuffix(b, []byte("\n")) {
			var said struct{ URL string }
			if err := json.Unmarshal(b, &said); err != nil {
				return nil, fmt.Errorf("testnet: serve --json said %q: %w", b, err)
			}
			a.URL = said.URL
			return a, nil
		}
		select {
		case <-a.proc.done:
			return nil, &DeadError{Node: head, Log: Tail(log, 4<<10)}
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			a.Kill()
			return nil, fmt.Errorf("testnet: %s does not serve: %w", head, ctx.Err())
		}
	}
}

// Kill ends the process with SIGKILL and waits for its end.
func (a *API) Kill() {
	a.proc.signal(syscall.SIGKILL)
	<-a.proc.done
}

// Stop asks the process to leave with SIGTERM and waits for its end.
func (a *API) Stop(ctx context.Context) error {
	a.proc.signal(syscall.SIGTERM)
	select {
	case <-a.proc.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s has not ended yet: %w", a.head.Name, ctx.Err())
	}
}

// PID is the process's.
func (a *API) PID() int { return a.proc.cmd.Process.Pid }

// LogPath is where its log goes.
func (a *API) LogPath() string { return a.log }

// LogTail is the last few kilobytes of its log.
func (a *API) LogTail() string { return Tail(a.log, 4<<10) }
