package main

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// linesPerSecond bounds the lines of a kind, so that nobody fills a disk or hides
// what matters by making us complain.
const linesPerSecond = 10

// limited is a slog.Handler that passes on few lines a second of each message and
// says with the next one how many were left out.
type limited struct {
	slog.Handler
	kinds *kinds
}

// kinds counts lines by message, which is always one of our own constants.
type kinds struct {
	mu sync.Mutex
	m  map[string]*kind
}

type kind struct {
	second  time.Time
	n, lost int
}

func newLimited(h slog.Handler) slog.Handler {
	return limited{h, &kinds{m: map[string]*kind{}}}
}

// Handle implements slog.Handler.
func (l limited) Handle(ctx context.Context, r slog.Record) error {
	ok, lost := l.kinds.count(r.Message, r.Time.Truncate(time.Second))
	if !ok {
		return nil
	}
	if lost > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", lost))
	}
	return l.Handler.Handle(ctx, r)
}

func (k *kinds) count(message string, second time.Time) (ok bool, lost int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.m[message]
	if e == nil {
		if len(k.m) >= 1024 { // more than we have: somebody logs what it hears
			clear(k.m)
		}
		e = &kind{}
		k.m[message] = e
	}
	if !e.second.Equal(second) {
		e.second, e.n = second, 0
	}
	if e.n++; e.n > linesPerSecond {
		e.lost++
		return false, 0
	}
	lost, e.lost = e.lost, 0
	return true, lost
}

// WithAttrs implements slog.Handler.
func (l limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limited{l.Handler.WithAttrs(attrs), l.kinds}
}

// WithGroup implements slog.Handler.
func (l limited) WithGroup(name string) slog.Handler {
	return limited{l.Handler.WithGroup(name), l.kinds}
}
