package testnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Output is what a finished process has printed.
type Output struct {
	Stdout, Stderr []byte
}

// ExitError: a process has ended with a code that is not 0.
type ExitError struct {
	Verb string
	Code int // -1: by a signal
	Output
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("meshnet %s ended with %d: %s", e.Verb, e.Code, bytes.TrimSpace(e.Stderr))
}

// Run runs any verb in the mesh's home and waits for its end.
func (m *Mesh) Run(ctx context.Context, args ...string) (Output, error) {
	return m.own(m.command(ctx, args...), nil)
}

// own runs a command that ends with the mesh. also sees its stdout as it comes.
func (m *Mesh) own(cmd *exec.Cmd, also io.Writer) (Output, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if also != nil {
		cmd.Stdout = io.MultiWriter(&stdout, also)
	}
	p, err := m.procs.launch(cmd)
	if err != nil {
		return Output{}, err
	}
	<-p.done
	return outcome(cmd, stdout.Bytes(), stderr.Bytes())
}

func runCommand(cmd *exec.Cmd) (Output, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		return Output{}, err
	}
	return outcome(cmd, stdout.Bytes(), stderr.Bytes())
}

func outcome(cmd *exec.Cmd, stdout, stderr []byte) (Output, error) {
	out := Output{stdout, stderr}
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		return out, &ExitError{Verb: strings.Join(cmd.Args[1:min(3, len(cmd.Args))], " "), Code: code, Output: out}
	}
	return out, nil
}

// command is a verb in the mesh's home.
func (m *Mesh) command(ctx context.Context, args ...string) *exec.Cmd {
	return m.commandLine(ctx, append([]string{m.cfg.Binary}, args...))
}

func (m *Mesh) commandLine(ctx context.Context, line []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = m.Env()
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// Env is the environment of every process of the mesh: ours, without what would
// lead it elsewhere.
func (m *Mesh) Env() []string {
	var env []string
	for _, kv := range os.Environ() {
		switch name, _, _ := strings.Cut(kv, "="); name {
		case "MESHNET_HOME", "MESHNET_NETWORK", "MESHNET_PEERS", "MESHNET_MODEL":
		default:
			env = append(env, kv)
		}
	}
	return append(append(env, "MESHNET_HOME="+m.home), m.cfg.Env...)
}

// prepareBinary builds meshnet, unless one was given.
func (m *Mesh) prepareBinary(ctx context.Context) error {
	if m.cfg.Binary != "" {
		abs, err := filepath.Abs(m.cfg.Binary)
		m.cfg.Binary = abs
		return err
	}
	bin := filepath.Join(m.cfg.Dir, "bin", "meshnet")
	m.cfg.Log("building %s", bin)
	if err := Build(ctx, bin); err != nil {
		return err
	}
	m.cfg.Binary = bin
	return nil
}

// Build builds the meshnet command of the module around the working directory.
func Build(ctx context.Context, path string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/meshnet/meshnet/cmd/meshnet")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := runCommand(cmd)
	var exit *ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("building meshnet: %s", bytes.TrimSpace(append(out.Stdout, out.Stderr...)))
	}
	return err
}
