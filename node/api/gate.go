package api

import (
	"context"
	"sync"
)

// gate lets a fixed number of requests generate and a fixed number wait.
type gate struct {
	slots chan struct{}

	mu     sync.Mutex
	queued int
	bound  int
}

func newGate(active, queued int) *gate {
	return &gate{slots: make(chan struct{}, active), bound: queued}
}

// enter takes a slot, waiting in the queue if it must. wait is called once
// before waiting. full says that the queue had no room.
func (g *gate) enter(ctx context.Context, wait func()) (full bool, err error) {
	select {
	case g.slots <- struct{}{}:
		return false, nil
	default:
	}
	if !g.join() {
		return true, nil
	}
	defer g.quit()
	wait()
	select {
	case g.slots <- struct{}{}:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (g *gate) leave() { <-g.slots }

func (g *gate) join() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queued >= g.bound {
		return false
	}
	g.queued++
	return true
}

func (g *gate) quit() {
	g.mu.Lock()
	g.queued--
	g.mu.Unlock()
}

// counts are the requests that generate and that wait.
func (g *gate) counts() (active, queued int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.slots), g.queued
}
