package chat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// A child renders one template and ends. It may use so much:
const (
	childTime   = 10 * time.Second // on the clock; a busy machine may be slow to start it
	childCPU    = 2                // seconds
	childMemory = 1 << 30          // bytes beyond what the program itself has mapped
	childStack  = 64 << 20         // bytes: some hundred thousand nested calls
	maxOutput   = 8 << 20          // bytes of rendered text, as JSON
	maxComplain = 8 << 10          // bytes of a crash report that are read
)

// exitCPU is how a child says that its CPU time is used up.
const exitCPU = 3

// Runner renders a request, JSON to JSON, somewhere else than in this process.
type Runner interface {
	Run(ctx context.Context, request []byte) (response []byte, err error)
}

type request struct {
	Template string    `json:"template"`
	BOS      string    `json:"bos"`
	EOS      string    `json:"eos"`
	Messages []Message `json:"messages"`
	Add      bool      `json:"add_generation_prompt"`
}

type response struct {
	Text   string `json:"text"`
	Error  string `json:"error,omitempty"`
	Refuse bool   `json:"refuse,omitempty"` // the template itself raised Error
}

func render(ctx context.Context, r Runner, req request) (string, error) {
	if len(req.Template) > maxTemplate {
		return "", fmt.Errorf("%w: %d bytes long, more than %d", ErrTemplate, len(req.Template), maxTemplate)
	}
	in, err := json.Marshal(req)
	if err != nil {
		return "", err
	}
	out, err := r.Run(ctx, in)
	if err != nil {
		return "", err
	}
	var resp response
	if err := json.Unmarshal(out, &resp); err != nil {
		return "", fmt.Errorf("%w: the child that renders it answered %d bytes that are no answer", ErrTemplate, len(out))
	}
	switch {
	case resp.Refuse:
		return "", fmt.Errorf("%w: the model's chat template refuses them: %s", ErrMessages, resp.Error)
	case resp.Error != "":
		return "", fmt.Errorf("%w: %s", ErrTemplate, resp.Error)
	}
	return resp.Text, nil
}

// NewRunner runs exe with args once for each request; that process must call
// ChildMain.
func NewRunner(exe string, args ...string) Runner { return &runner{exe, args} }

type runner struct {
	exe  string
	args []string
}

// Run starts the child, writes the request and reads the answer. The error says
// which limit the template ran into.
func (r *runner) Run(parent context.Context, request []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(parent, childTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.exe, r.args...)
	out, complain := &limited{max: maxOutput, over: cancel}, &limited{max: maxComplain}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), out, complain
	cmd.Env = []string{"GOTRACEBACK=none"}
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case parent.Err() != nil:
		return nil, context.Cause(parent)
	case out.full:
		return nil, fmt.Errorf("%w: it writes more than %d bytes", ErrTemplate, maxOutput)
	case err == nil:
		return out.b.Bytes(), nil
	case !errors.As(err, &exit) && ctx.Err() == nil:
		return nil, fmt.Errorf("start %q to render the chat template: %w", r.exe, err)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: not rendered after %v", ErrTemplate, childTime)
	}
	return nil, fmt.Errorf("%w: %s", ErrTemplate, died(exit, complain.b.String()))
}

// died says why a child ended without an answer.
func died(exit *exec.ExitError, complaint string) string {
	switch {
	case exit.ExitCode() == exitCPU || killedForCPU(exit):
		return fmt.Sprintf("it needs more than %d s of CPU time", childCPU)
	case containsAny(complaint, "stack exceeds", "stack overflow"):
		return "it calls itself without end"
	case containsAny(complaint, "out of memory", "cannot allocate memory",
		"failed to allocate", "too many address space collisions"): // the last two by the race detector
		return fmt.Sprintf("it needs more than %d MiB of memory", childMemory>>20)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(complaint), "\n")
	return fmt.Sprintf("the child that renders it ended with %v: %.200q", exit, first)
}

func containsAny(s string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(s, p) })
}

// limited keeps the first max bytes. What comes after is dropped and calls over.
type limited struct {
	b    bytes.Buffer
	max  int
	full bool
	over func()
}

func (l *limited) Write(p []byte) (int, error) {
	if room := l.max - l.b.Len(); len(p) > room {
		l.b.Write(p[:room])
		if l.full = true; l.over != nil {
			l.over()
		}
		return len(p), nil
	}
	return l.b.Write(p)
}

// ChildMain is the whole life of a child: it sets its limits, reads a request from
// stdin, renders it to stdout and returns the exit code. It must be called before
// the program does anything else.
func ChildMain(stdin io.Reader, stdout io.Writer) int {
	debug.SetMaxStack(childStack)
	if err := setLimits(); err != nil {
		return answer(stdout, response{Error: fmt.Sprintf("set the limits of the child that renders it: %v", err)})
	}
	return serve(stdin, stdout)
}

func serve(stdin io.Reader, stdout io.Writer) int {
	var req request
	if err := json.NewDecoder(stdin).Decode(&req); err != nil {
		return answer(stdout, response{Error: fmt.Sprintf("read the request: %v", err)})
	}
	return answer(stdout, run(req))
}

func answer(w io.Writer, r response) int {
	if err := json.NewEncoder(w).Encode(r); err != nil {
		return 1
	}
	return 0
}

// run renders in this process.
func run(req request) (resp response) {
	defer func() {
		if p := recover(); p != nil { // the engine's bug, at a template's wish
			resp = response{Error: fmt.Sprintf("the template engine failed: %v", p)}
		}
	}()
	source, err := layout(req.Template)
	if err != nil {
		return response{Error: err.Error()}
	}
	t, err := jinja.Compile(source)
	if err != nil {
		return response{Error: err.Error()}
	}
	var refused error
	list := make([]jinja.Value, len(req.Messages))
	for i, m := range req.Messages {
		d := jinja.NewDict()
		d.AsDict().Set("role", jinja.NewString(m.Role))
		d.AsDict().Set("content", jinja.NewString(m.Content))
		list[i] = d
	}
	text, err := t.RenderValues(map[string]jinja.Value{
		"messages":              jinja.NewList(list),
		"add_generation_prompt": jinja.NewBool(req.Add),
		"bos_token":             jinja.NewString(req.BOS),
		"eos_token":             jinja.NewString(req.EOS),
		"tools":                 jinja.None(), // transformers passes these even when there are none
		"documents":             jinja.None(),
		"raise_exception": jinja.NewCallable("raise_exception", func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
			refused = errors.New("no reason given")
			if len(args) > 0 {
				refused = errors.New(args[0].String())
			}
			return jinja.Undefined(), refused
		}),
	})
	switch {
	case refused != nil:
		return response{Error: refused.Error(), Refuse: true}
	case err != nil:
		return response{Error: err.Error()}
	}
	return response{Text: text}
}
