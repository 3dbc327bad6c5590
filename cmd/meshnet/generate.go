package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/shard/chat"
)

// generateCmd runs a model in this process: the text that a mesh must equal.
type generateCmd struct {
	modelFlag
	Prompt string  `help:"What to ask; read from a pipe if neither this nor --ids is given." xor:"prompt" placeholder:"TEXT"`
	IDs    []int32 `help:"Token ids instead of a text." name:"ids" xor:"prompt" placeholder:"1,2,3"`
	Raw    bool    `help:"No chat template: go on with the prompt as it stands."`
	systemFlag
	sampling
	IgnoreEOG bool   `help:"Go on past the end of the model's turn." name:"ignore-eog"`
	Logits    string `help:"Write the float32 logits of every position to this .npy file." type:"path" placeholder:"FILE"`
	Stateless bool   `help:"Compute everything again for every token, for comparison."`
	cacheFlag
	standbyFlag
	verifyFlag
	Mesh     bool `help:"The same through the mesh instead of in this process."`
	netFlags `group:"Mesh (with --mesh)"`
}

// Help is shown by --help.
func (generateCmd) Help() string {
	return `Examples:
  meshnet generate --prompt "Why is the sky blue?"
  meshnet generate --raw --prompt "Once upon a time" --tokens 100 --temp 0.8 --seed 7
  meshnet generate --ids 1,2,3 --tokens 5 --json
  meshnet generate --mesh --stateless --prompt "Hello" --json`
}

// Run generates.
func (g *generateCmd) Run(a *app) error {
	req, err := g.request(a)
	if err != nil {
		return err
	}
	w, err := a.openModel(g.Model)
	if err != nil {
		return err
	}
	defer w.model.Close()
	if g.Mesh {
		h, err := a.openHead(w, &g.netFlags, g.cache(), g.Standby, g.verifyFlag)
		if err != nil {
			return err
		}
		h.Settle(a.ctx)
		return errors.Join(g.run(a, w, h.Head, req), h.Close())
	}
	h, err := a.loadLocal(w, g.cache())
	if err != nil {
		return err
	}
	defer h.close()
	return g.run(a, w, h.Head, req)
}

func (g *generateCmd) request(a *app) (head.Request, error) {
	req := head.Request{IDs: g.IDs, Stateless: g.Stateless, IgnoreEOG: g.IgnoreEOG}
	g.sampling.apply(&req)
	if len(g.IDs) > 0 {
		return req, nil
	}
	text := g.Prompt
	if text == "" {
		b, err := io.ReadAll(io.LimitReader(a.stdin, maxPromptBytes+1))
		if err != nil {
			return req, usage("read the prompt: %w", err)
		}
		text = strings.TrimSuffix(string(b), "\n")
	}
	if text == "" {
		return req, usage("no prompt: give --prompt TEXT, --ids 1,2,3 or a text on standard input")
	}
	if len(text) > maxPromptBytes {
		return req, usage("the prompt is longer than %d bytes", maxPromptBytes)
	}
	req.Text = text
	return req, nil
}

const maxPromptBytes = 4 << 20

func (g *generateCmd) run(a *app, w *weights, h *head.Head, req head.Request) (err error) {
	if !g.Raw && req.Text != "" {
		req.Messages = append(g.turns(w.SystemPrompt), chat.Message{Role: "user", Content: req.Text})
		req.Text = ""
	}
	if g.Logits != "" {
		npy, nerr := createNPY(g.Logits)
		if nerr != nil {
			return nerr
		}
		defer func() { err = errors.Join(err, npy.close()) }()
		req.Logits = npy.row
	}
	var notes func(head.Note)
	if g.Mesh {
		notes = func(n head.Note) { fmt.Fprintf(a.stderr, "[%s]\n", printable(n.Text)) }
	}
	res, err := a.answer(a.ctx, h, req, notes)
	if err != nil {
		return err
	}
	if a.json {
		return printJSON(a.stdout, head.NewReport(w.Name, &res, g.Mesh))
	}
	a.log.Info(speedLine(&res))
	return nil
}

// answer generates with the text to stdout, unless one JSON object is to come.
func (a *app) answer(ctx context.Context, h *head.Head, req head.Request, notes func(head.Note)) (head.Result, error) {
	w := &writer{notes: notes}
	req.Whole = a.json
	if !a.json {
		w.out, w.clean = a.stdout, isTerminal(a.stdout)
	}
	res, err := h.Generate(ctx, req, w.emit)
	if w.last != 0 || err == nil {
		w.end()
	}
	return res, err
}
