package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is another process of this program: a node of the demo's mesh. It is the
// leader of its own process group, so that a Ctrl-C reaches only the demo, and it
// ends when its standard input does: when the demo is gone, however it went.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader // its standard output
	pipe  io.Closer
	words *lastWords
	ended chan struct{}
	err   error // of Wait, after ended

	once sync.Once
}

const maxLine = 16 << 20 // of a JSON line: a report of a long answer

// start runs a verb of this program.
func (a *app) start(name, verb string, args ...string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c := &child{name: name, words: &lastWords{}, ended: make(chan struct{})}
	c.cmd = exec.Command(exe, append([]string{verb, "--exit-with-parent"}, args...)...)
	c.cmd.Env = append(os.Environ(), "MESHNET_HOME="+a.home)
	c.cmd.Stderr = c.words
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.cmd.WaitDelay = time.Second
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Not StdoutPipe: Wait would close it while lines are still to be read.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.stdin, c.cmd.Stdout, c.out, c.pipe = stdin, w, bufio.NewReader(r), r
	err = c.cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.ended)
	}()
	return c, nil
}

// next reads the child's next JSON line. io.EOF: there is none any more.
func (c *child) next(v any) error {
	line, err := c.out.ReadBytes('\n')
	if len(line) > maxLine {
		return fmt.Errorf("%s: a line of %d bytes", c.name, len(line))
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

const startTime = 5 * time.Minute // a large model from a slow disk

// first waits for the line that says that a child is up.
func (c *child) first(ctx context.Context, v any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("%s is not up after %v", c.name, startTime))
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- c.next(v) }()
	select {
	case err := <-got:
		if err != nil {
			return c.failure(err)
		}
		return nil
	case <-ctx.Done():
		c.kill()
		<-got
		return context.Cause(ctx)
	}
}

// failure explains a child that ended before it should.
func (c *child) failure(err error) error {
	select {
	case <-c.ended:
		if c.err != nil {
			err = c.err
		}
	case <-time.After(2 * time.Second):
	}
	if words := c.words.String(); words != "" {
		return fmt.Errorf("%s: %w; its last words:\n%s", c.name, err, words)
	}
	return fmt.Errorf("%s: %w", c.name, err)
}

// kill is kill -9 of the whole group.
func (c *child) kill() { syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) }

// stop asks the child to leave, waits a moment and insists.
func (c *child) stop() {
	c.once.Do(func() {
		select {
		case <-c.ended:
		default:
			syscall.Kill(-c.cmd.Process.Pid, syscall.SIGTERM)
		}
		select {
		case <-c.ended:
		case <-time.After(3 * time.Second):
			c.kill()
			<-c.ended
		}
		c.stdin.Close()
		c.pipe.Close()
	})
}

// lastWords keeps the end of what a child says on stderr.
type lastWords struct {
	mu  sync.Mutex
	buf []byte
}

const keptWords = 2 << 10

func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if n := len(l.buf) - keptWords; n > 0 {
		l.buf = append(l.buf[:0], l.buf[n:]...)
	}
	return len(p), nil
}

func (l *lastWords) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return printable(strings.TrimSpace(string(l.buf)))
}

// exitCode is the code of a child that ended without doing what it should.
func (c *child) exitCode() int {
	<-c.ended
	var e *exec.ExitError
	if errors.As(c.err, &e) && e.ExitCode() > 0 {
		return e.ExitCode()
	}
	return exitFailure
}
