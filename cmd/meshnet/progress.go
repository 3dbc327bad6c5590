package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
	"golang.org/x/term"
)

// progress shows how far a long task is: a bar where a person looks on, a line
// every ten percent where stderr is a file or a pipe. It is a catalog.Progress.
type progress struct {
	w    io.Writer
	live bool // a terminal

	mu    sync.Mutex
	task  string
	total int64
	done  int64
	begun time.Time
	shown time.Time
	tenth int64
	open  bool // a bar without its newline
}

func newProgress(a *app) *progress {
	return &progress{w: a.stderr, live: isTerminal(a.stderr)}
}

// isTerminal says that a person looks at w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Start begins a task of total bytes (negative: unknown).
func (p *progress) Start(task string, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finish()
	p.task, p.total, p.done, p.tenth = printable(task), total, 0, 0
	p.begun, p.shown = time.Now(), time.Time{}
	if !p.live {
		size := ""
		if total > 0 {
			size = " (" + blob.Bytes(total) + ")"
		}
		fmt.Fprintf(p.w, "%s%s\n", p.task, size)
	}
}

// At says how many bytes are done.
func (p *progress) At(done int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total > 0 {
		done = min(done, p.total)
	}
	p.done = done
	switch {
	case p.live:
		if now := time.Now(); done >= p.total || now.Sub(p.shown) > 100*time.Millisecond {
			p.shown = now
			p.draw()
		}
	case p.total > 0 && done*10/p.total > p.tenth:
		p.tenth = done * 10 / p.total
		fmt.Fprintf(p.w, "  %d %%\n", p.tenth*10)
	}
}

// late is a task for a person who looks on, begun only when it has taken half a second.
func (p *progress) late(task string) func(done, total int64) {
	begun, started := time.Now(), false
	return func(done, total int64) {
		switch {
		case !p.live || !started && time.Since(begun) < 500*time.Millisecond:
			return
		case !started:
			p.Start(task, total)
			started = true
		}
		p.At(done)
	}
}

// Note is a line for the person.
func (p *progress) Note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finish()
	fmt.Fprintln(p.w, printable(text))
}

// Done ends the last task.
func (p *progress) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finish()
}

const barWidth = 24

func (p *progress) draw() {
	rate := float64(p.done) / max(time.Since(p.begun).Seconds(), 0.001)
	if p.total <= 0 {
		fmt.Fprintf(p.w, "\r%s  %s  %s/s\x1b[K", p.task, blob.Bytes(p.done), blob.Bytes(int64(rate)))
	} else {
		filled := int(min(p.done, p.total) * barWidth / p.total)
		fmt.Fprintf(p.w, "\r%s  [%s%s] %3d %%  %s of %s  %s/s\x1b[K", p.task, strings.Repeat("=", filled), strings.Repeat(" ", barWidth-filled),
			min(p.done, p.total)*100/p.total, blob.Bytes(p.done), blob.Bytes(p.total), blob.Bytes(int64(rate)))
	}
	p.open = true
}

func (p *progress) finish() {
	if p.open {
		fmt.Fprintln(p.w)
		p.open = false
	}
}
