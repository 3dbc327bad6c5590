package testnet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Head is a place from which the mesh is asked, with an identity and links of its
// own. One process at a time can use it.
type Head struct {
	Name string
	ID   string

	mesh *Mesh
	place
}

// Head gives the head of that name and makes it if need be. Several goroutines may ask.
func (m *Mesh) Head(name string) (*Head, error) {
	m.making.Lock()
	defer m.making.Unlock()
	m.mu.Lock()
	h, host := m.heads[name], firstHead+len(m.heads)
	m.mu.Unlock()
	if h != nil {
		return h, nil
	}
	if host > lastHead || m.Node(name) != nil || name == "" || strings.ContainsAny(name, "/\\ ") {
		return nil, fmt.Errorf("testnet: no head can be called %q, or there are too many", name)
	}
	h = &Head{Name: name, mesh: m}
	var err error
	if h.place, err = m.place(name, byte(host), 0); err != nil {
		return nil, err
	}
	if h.ID, err = makeIdentity(filepath.Join(m.home, "nodes", name)); err != nil {
		return nil, err
	}
	for _, n := range m.Nodes() {
		m.Link(name, n.Name).SetShape(m.cfg.Shape)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heads[name] = h
	return h, nil
}

// IsHead says that there is a head of that name.
func (m *Mesh) IsHead(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heads[name] != nil
}

// FreeHead gives the named head or, for "", the first of head, head-2, ... whose
// identity no process holds.
func (m *Mesh) FreeHead(name string) (*Head, error) {
	if name != "" {
		return m.Head(name)
	}
	for i := 1; ; i++ {
		name := "head"
		if i > 1 {
			name = fmt.Sprintf("head-%d", i)
		}
		h, err := m.Head(name)
		if err != nil {
			return nil, err
		}
		lock, err := lockDir(filepath.Join(m.home, "nodes", name))
		if err == nil {
			return h, lock.Close()
		}
		if !errors.Is(err, ErrRunning) {
			return nil, err
		}
	}
}

// Status asks the process that runs as this head. Its sessions are a line a hop.
func (h *Head) Status(ctx context.Context) (*Status, error) {
	var s Status
	return &s, h.mesh.call(ctx, h.Name, "GET", "/status", nil, &s)
}

// Args is a whole command line of a verb that needs no mesh, the binary first.
func (m *Mesh) Args(verb string, args ...string) []string {
	return append([]string{m.cfg.Binary, verb, "--model", m.cfg.Model, "--threads", strconv.Itoa(m.cfg.Threads)}, args...)
}

// Args is a whole command line, the binary first, of a verb that asks the mesh.
func (h *Head) Args(verb string, args ...string) []string {
	m := h.mesh
	return append(m.Args(verb, h.flags(m.cfg.Network, h.Name, m.peers(h.Name, firstHead))...), args...)
}

// Command is that command line, ready to run.
func (h *Head) Command(ctx context.Context, verb string, args ...string) *exec.Cmd {
	return h.mesh.commandLine(ctx, h.Args(verb, args...))
}

// Ask is a question to the mesh, or to one process.
type Ask struct {
	Head   string // "": head; unused by Generate
	Prompt string
	IDs    []int32 // instead of Prompt, only for Generate and GenerateMesh
	Tokens int     // at most; 0: the default
	Temp   float64
	Seed   uint64
	Args   []string // more flags
	// OnEvent, if not nil, gets what Chat tells on the way, as it comes.
	OnEvent func(Event)
}

// Event is one thing that happens during a Chat.
type Event struct {
	Text   string `json:"text"`
	Tokens int    `json:"tokens"` // that Text is made of
	Note   string `json:"note"`   // words to the person: a re-route, a wait
}

func (a Ask) head() string { return cmp.Or(a.Head, "head") }

func (a Ask) flags() []string {
	args := []string{"--temp", strconv.FormatFloat(a.Temp, 'g', -1, 32), "--seed", strconv.FormatUint(a.Seed, 10)}
	if a.Tokens > 0 {
		args = append(args, "--tokens", strconv.Itoa(a.Tokens))
	}
	return append(args, a.Args...)
}

// prompt is the prompt as generate takes it.
func (a Ask) prompt() []string {
	if len(a.IDs) == 0 {
		return []string{"--prompt", a.Prompt}
	}
	ids := make([]string, len(a.IDs))
	for i, id := range a.IDs {
		ids[i] = strconv.Itoa(int(id))
	}
	return []string{"--ids", strings.Join(ids, ",")}
}

// Answer is what --json prints.
type Answer struct {
	Model             string  `json:"model"`
	PromptIDs         []int32 `json:"prompt_ids"`
	IDs               []int32 `json:"ids"`
	Text              string  `json:"text"`
	FinishReason      string  `json:"finish_reason"`
	FirstTokenMs      float64 `json:"first_token_ms"`
	PrefillTokensPerS float64 `json:"prefill_tokens_per_s"`
	DecodeTokensPerS  float64 `json:"decode_tokens_per_s"`
	Session           string  `json:"session"`
	Route             []struct {
		Peer       string  `json:"peer"`
		Start      int     `json:"start"`
		End        int     `json:"end"`
		MsPerToken float64 `json:"ms_per_token"`
	} `json:"route"`
	BytesPerToken float64 `json:"bytes_per_token"`
	Cache         struct {
		Hits   int `json:"hits"`
		Misses int `json:"misses"`
	} `json:"cache"`
	Recoveries []Recovery `json:"recoveries"`
	Checks     Checks     `json:"checks"`
}

// Checks are those of hops' rows by other holders.
type Checks struct {
	Agreed   int `json:"agreed"`
	Differed int `json:"differed"`
	Skipped  int `json:"skipped"`
}

// Recovery is one disturbance that a head mended.
type Recovery struct {
	Session      string    `json:"session"` // in a Status: the first digits
	Cause        string    `json:"cause"`
	Hop          int       `json:"hop"`
	At           time.Time `json:"at"` // noticed
	Ms           float64   `json:"ms"`
	RowsReplayed int       `json:"rows_replayed"`
	ReplayMs     float64   `json:"replay_ms"`
	Trace        string    `json:"trace"`
}

// Chat asks the mesh with `meshnet chat`. The error is an *ExitError where the
// process failed.
func (m *Mesh) Chat(ctx context.Context, a Ask) (*Answer, error) {
	if a.OnEvent == nil {
		return m.ask(ctx, "chat", a, "--json", "--", a.Prompt)
	}
	h, err := m.Head(a.head())
	if err != nil {
		return nil, err
	}
	cmd := h.Command(ctx, "chat", append(a.flags(), "--events", "--", a.Prompt)...)
	lines := &eventLines{on: a.OnEvent}
	if _, err := m.own(cmd, lines); err != nil {
		return nil, err
	}
	if lines.answer == nil {
		return nil, fmt.Errorf("testnet: chat --events ended without a report: %w", lines.err)
	}
	return lines.answer, nil
}

// eventLines reads what chat --events writes.
type eventLines struct {
	on     func(Event)
	rest   []byte
	answer *Answer
	err    error
}

func (l *eventLines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.rest = rest
		var e struct {
			Event
			Report *Answer `json:"report"`
		}
		switch err := json.Unmarshal(line, &e); {
		case err != nil:
			l.err = fmt.Errorf("%q: %w", line, err)
		case e.Report != nil:
			l.answer = e.Report
		default:
			l.on(e.Event)
		}
	}
}

// GenerateMesh asks it with `meshnet generate --mesh`.
func (m *Mesh) GenerateMesh(ctx context.Context, a Ask) (*Answer, error) {
	return m.ask(ctx, "generate", a, append(a.prompt(), "--json", "--mesh")...)
}

func (m *Mesh) ask(ctx context.Context, verb string, a Ask, more ...string) (*Answer, error) {
	h, err := m.Head(a.head())
	if err != nil {
		return nil, err
	}
	return m.answer(h.Command(ctx, verb, append(a.flags(), more...)...))
}

// Generate runs the model in one process, without any mesh: the text that every
// answer of the mesh must equal.
func (m *Mesh) Generate(ctx context.Context, a Ask) (*Answer, error) {
	args := append(append([]string{"--json"}, a.flags()...), a.prompt()...)
	return m.answer(m.commandLine(ctx, m.Args("generate", args...)))
}

func (m *Mesh) answer(cmd *exec.Cmd) (*Answer, error) {
	out, err := m.own(cmd, nil)
	if err != nil {
		return nil, err
	}
	var a Answer
	if err := json.Unmarshal(out.Stdout, &a); err != nil {
		return nil, fmt.Errorf("testnet: %s printed %q: %w", cmd.Args[1], out.Stdout, err)
	}
	return &a, nil
}
