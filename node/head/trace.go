package head

import (
	"fmt"
	"strings"
	"time"

	"github.com/meshnet/meshnet/route"
)

// maxMarks bounds the trace of one step; of a longer story the beginning is told.
const maxMarks = 64

// trace is what a session did within one step, and when. Written down is it only if
// something failed: then it answers where the time went.
type trace struct {
	marks []mark
	bad   bool // something failed, or a hop leaves
}

// mark is one thing that the session was told (an Event) or does (an Action).
type mark struct {
	at   time.Duration
	what any
}

func (t *trace) begin() { t.marks, t.bad = t.marks[:0], false }

func (t *trace) add(at time.Duration, what any) {
	switch what := what.(type) {
	case route.Failed:
		t.bad = true
	case route.Say:
		t.bad = t.bad || what.Kind == route.SayReroute
		return // its words repeat the event before it
	}
	if len(t.marks) < maxMarks {
		t.marks = append(t.marks, mark{at, what})
	}
}

// String is a line: what happened, each with the ms since the first failure, or since
// the step began, where nothing failed and a hop only leaves.
func (t *trace) String() string {
	if !t.bad || len(t.marks) == 0 {
		return ""
	}
	zero := t.marks[0].at
	for _, m := range t.marks {
		if _, ok := m.what.(route.Failed); ok {
			zero = m.at
			break
		}
	}
	var b strings.Builder
	for _, m := range t.marks {
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%d ms %s", (m.at - zero).Milliseconds(), words(m.what))
	}
	return b.String()
}

// replay is the time that went into computing rows again, as far as it was of use.
func (t *trace) replay() (d time.Duration) {
	failed := false
	for i, m := range t.marks[:max(len(t.marks)-1, 0)] {
		again := false
		switch w := m.what.(type) {
		case route.Failed:
			failed = true
		case route.Refill:
			again = true
		case route.Send:
			again = failed && w.Rows > 1
		}
		if _, done := t.marks[i+1].what.(route.Done); done && again {
			d += t.marks[i+1].at - m.at
		}
	}
	return d
}

func words(what any) string {
	switch w := what.(type) {
	case route.Failed:
		s := w.Peer.Short() + " failed"
		switch {
		case w.Silent:
			s += " (silent)"
		case w.Code != 0:
			s += fmt.Sprintf(" (%v)", w.Code)
		}
		if w.Next != "" {
			s += " to reach " + w.Next.Short()
		}
		if w.Retry > 0 {
			s += fmt.Sprintf(", come back in %v", w.Retry)
		}
		return s
	case route.Opened:
		return fmt.Sprintf("opened, held %v", w.Held)
	case route.Done:
		return "done"
	case route.Open:
		return "open " + w.Route.String()
	case route.Send:
		return fmt.Sprintf("send %d rows from %d", w.Rows, w.Past)
	case route.Refill:
		return fmt.Sprintf("refill hop %d, %d rows from %d", w.Hop, w.Rows, w.Past)
	case route.Wait:
		return "wait"
	case route.Return:
		return "answered"
	case route.Fail:
		return "gave up"
	}
	return fmt.Sprintf("%T", what)
}
