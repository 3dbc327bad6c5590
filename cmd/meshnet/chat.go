package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/meshnet/meshnet/node"
	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/shard/chat"
	"golang.org/x/term"
)

// chatCmd talks to a model through the mesh.
type chatCmd struct {
	modelFlag
	Prompt []string `arg:"" optional:"" help:"What to ask; without it, a pipe or a conversation."`
	systemFlag
	sampling
	Stateless bool `help:"Compute everything again for every token, for comparison."`
	cacheFlag
	standbyFlag
	verifyFlag
	netFlags
	Events bool          `help:"Print what happens as JSON lines." hidden:""`
	Pace   time.Duration `help:"Wait after each event." hidden:""`
}

// Help is shown by --help.
func (chatCmd) Help() string {
	return `Examples:
  meshnet chat
  meshnet chat "Why is the sky blue?"
  echo "Why is the sky blue?" | meshnet chat --model qwen2.5-coder-0.5b --temp 0.7

With a prompt, only the answer goes to stdout. In a conversation, Ctrl-C stops an answer, /reset forgets, /quit ends.`
}

// Run talks.
func (c *chatCmd) Run(a *app) error {
	prompt := strings.Join(c.Prompt, " ")
	stdin, _ := a.stdin.(*os.File)
	talk := prompt == "" && stdin != nil && term.IsTerminal(int(stdin.Fd()))
	if prompt == "" && !talk {
		b, err := io.ReadAll(io.LimitReader(a.stdin, maxPromptBytes+1))
		if err != nil {
			return usage("read the prompt: %w", err)
		}
		prompt = strings.TrimSuffix(string(b), "\n")
		if prompt == "" || len(prompt) > maxPromptBytes {
			return usage("a prompt of %d bytes: give 1 to %d, as an argument or on standard input", len(prompt), maxPromptBytes)
		}
	} else {
		c.tie(a)
	}
	w, err := a.openModel(c.Model)
	if err != nil {
		return err
	}
	defer w.model.Close()
	h, err := a.openHead(w, &c.netFlags, c.cache(), c.Standby, c.verifyFlag)
	if err != nil {
		return err
	}
	h.Settle(a.ctx)
	t := &conversation{a: a, cmd: c, h: h, model: w.Name, turns: c.turns(w.SystemPrompt)}
	if note := h.Note(); note != "" {
		fmt.Fprintln(a.stderr, printable(note))
	}
	if talk {
		err = t.talk()
	} else {
		_, err = t.ask(a.ctx, prompt)
	}
	return errors.Join(err, h.Close())
}

// conversation is the turns so far.
type conversation struct {
	a     *app
	cmd   *chatCmd
	h     *node.HeadPeer
	model string
	turns []chat.Message
	route string // that was said last
}

// note says what a person who waits may want to know, the route only when it is another.
func (t *conversation) note(n head.Note) {
	if n.Kind == head.NoteRoute {
		if n.Text == t.route {
			return
		}
		t.route = n.Text
	}
	fmt.Fprintf(t.a.stderr, "[%s]\n", printable(n.Text))
}

// ask sends one more turn and prints the answer, which becomes a turn if it is whole.
func (t *conversation) ask(ctx context.Context, prompt string) (head.Result, error) {
	req := head.Request{Messages: append(t.turns[:len(t.turns):len(t.turns)], chat.Message{Role: "user", Content: prompt}), Stateless: t.cmd.Stateless}
	t.cmd.sampling.apply(&req)
	var res head.Result
	var err error
	if t.cmd.Events {
		res, err = t.h.Generate(ctx, req, t.event)
	} else {
		res, err = t.a.answer(ctx, t.h.Head, req, t.note)
	}
	if err != nil {
		return res, err
	}
	t.turns = append(req.Messages, chat.Message{Role: "assistant", Content: res.Text})
	if t.cmd.Events {
		report := head.NewReport(t.model, &res, true)
		return res, printJSON(t.a.stdout, event{Report: &report})
	}
	if t.a.json {
		return res, printJSON(t.a.stdout, head.NewReport(t.model, &res, true))
	}
	t.a.log.Info(speedLine(&res))
	return res, nil
}

// event is a line of --events: exactly one field but Route is set.
type event struct {
	Text   string           `json:"text,omitempty"`
	Tokens int              `json:"tokens,omitempty"` // that Text is made of
	Note   string           `json:"note,omitempty"`
	Route  []head.HopReport `json:"route,omitempty"` // with a note that a route was found
	Report *head.Report     `json:"report,omitempty"`
}

func (t *conversation) event(d head.Delta) error {
	e := event{Text: d.Text, Tokens: len(d.IDs)}
	if d.Note != nil {
		e.Note = d.Note.Text
		for _, h := range t.h.Route(wire.SessionID{}) {
			e.Route = append(e.Route, head.HopReport{Peer: string(h.Peer.ID), Start: h.Start, End: h.End})
		}
	}
	time.Sleep(t.cmd.Pace)
	return printJSON(t.a.stdout, e)
}

// talk reads turns from the terminal until it ends or the person does.
func (t *conversation) talk() error {
	lines := make(chan string)
	go func() { // ends with the process: a read of the terminal can't be stopped
		defer close(lines)
		for in := bufio.NewScanner(t.a.stdin); in.Scan(); {
			lines <- in.Text()
		}
	}()
	fmt.Fprintf(t.a.stderr, "%s on the mesh %q. Ctrl-C stops an answer; /reset forgets, /quit ends.\n", t.model, t.cmd.Network)
	first := t.turns
	for {
		fmt.Fprint(t.a.stderr, "\n> ")
		var line string
		var more bool
		select {
		case line, more = <-lines:
		case <-t.a.ctx.Done():
		}
		if !more {
			fmt.Fprintln(t.a.stderr)
			return nil
		}
		switch line = strings.TrimSpace(line); {
		case line == "":
		case line == "/quit" || line == "/exit":
			return nil
		case line == "/reset":
			t.turns = first
		case strings.HasPrefix(line, "/"):
			fmt.Fprintln(t.a.stderr, "there are /reset and /quit")
		default:
			if err := t.turn(line); err != nil {
				return err
			}
		}
	}
}

// turn asks, lets Ctrl-C end the answer alone, and keeps the conversation alive
// after a failure.
func (t *conversation) turn(line string) error {
	ctx, cancel := context.WithCancel(t.a.ctx)
	defer cancel()
	var once sync.Once
	t.a.signals.onInterrupt(func() (spared bool) {
		once.Do(func() { spared = true })
		cancel()
		return spared
	})
	defer t.a.signals.onInterrupt(nil)
	_, err := t.ask(ctx, line)
	switch {
	case err == nil:
	case t.a.ctx.Err() != nil:
		return err
	case ctx.Err() != nil:
		fmt.Fprintln(t.a.stderr, "(stopped)")
	default:
		fmt.Fprintln(t.a.stderr, printable(err.Error()))
	}
	return nil
}
