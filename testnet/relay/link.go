package relay

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Shape is how a link carries bytes, in each direction.
type Shape struct {
	Delay  time.Duration // one way
	Jitter time.Duration // up to so much more, drawn for every chunk; order is kept
	Rate   int64         // bytes a second over all connections of the link; 0: unlimited
}

// Mode is whether a link carries bytes at all.
type Mode string

const (
	Up   Mode = "up"
	Cut  Mode = "cut"  // connections are reset, new ones refused
	Hole Mode = "hole" // nothing passes and nobody is told
)

// Link is the cable between two nodes.
type Link struct {
	a, b string

	mu      sync.Mutex
	rand    *rand.Rand
	mode    Mode // "" is Up
	shape   Shape
	conns   map[*conn]struct{}
	changed chan struct{} // closed and replaced when mode changes or bytes are counted for a waiter
	waiting int
	free    [2]time.Time // when a direction has sent what it took at Rate
	bytes   [2]int64     // passed on from a to b and from b to a
	opened  int
}

// State is what a link does and has done.
type State struct {
	A, B   string
	Mode   Mode
	Shape  Shape
	Conns  int   // open now
	Opened int   // since the start
	AToB   int64 // bytes passed on
	BToA   int64
}

// State is a snapshot.
func (l *Link) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return State{A: l.a, B: l.b, Mode: l.now(), Shape: l.shape, Conns: len(l.conns), Opened: l.opened, AToB: l.bytes[0], BToA: l.bytes[1]}
}

func (l *Link) now() Mode {
	if l.mode == "" {
		return Up
	}
	return l.mode
}

// SetShape holds for bytes that are read from now on.
func (l *Link) SetShape(s Shape) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shape = s
	l.free = [2]time.Time{}
}

// Cut resets the link's connections and refuses new ones until Heal.
func (l *Link) Cut() { l.set(Cut); l.abortAll() }

// Hole lets nothing pass, not even the end of a connection, until Heal.
func (l *Link) Hole() { l.set(Hole) }

// Heal undoes Cut and Hole. What was stuck in a hole goes on.
func (l *Link) Heal() { l.set(Up) }

func (l *Link) set(m Mode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mode = m
	l.wake()
}

func (l *Link) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// WaitBytes returns when the link has passed on n bytes more, both ways together,
// or ctx ends.
func (l *Link) WaitBytes(ctx context.Context, n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting++
	defer func() { l.waiting-- }()
	for want := l.bytes[0] + l.bytes[1] + n; l.bytes[0]+l.bytes[1] < want; {
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		l.mu.Lock()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// passes waits until the link is no hole; false means that it is cut, or done.
func (l *Link) passes(done <-chan struct{}) bool {
	for {
		l.mu.Lock()
		mode, changed := l.now(), l.changed
		l.mu.Unlock()
		if mode != Hole {
			return mode == Up
		}
		select {
		case <-changed:
		case <-done:
			return false
		}
	}
}

// due is when n bytes that are read now come out at the other end.
func (l *Link) due(direction, n int, last time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := time.Now()
	if l.shape.Rate > 0 {
		if at.Before(l.free[direction]) {
			at = l.free[direction]
		}
		at = at.Add(time.Duration(float64(n) / float64(l.shape.Rate) * float64(time.Second)))
		l.free[direction] = at
	}
	at = at.Add(l.shape.Delay)
	if l.shape.Jitter > 0 {
		at = at.Add(time.Duration(l.rand.Int64N(int64(l.shape.Jitter))))
	}
	if at.Before(last) {
		return last
	}
	return at
}

func (l *Link) count(direction, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes[direction] += int64(n)
	if l.waiting > 0 {
		l.wake()
	}
}

func (l *Link) add(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	l.opened++
	return l.now() != Cut
}

func (l *Link) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

func (l *Link) abortAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.abort()
	}
}
