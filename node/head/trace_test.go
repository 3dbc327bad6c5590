package head_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A recovery says what was done meanwhile, in order, without anything of the text.
func TestTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := spares(t)
		defer w.Close()
		m := newMesh(w, "head")
		c := begin(t, m.Backend(), 1, 40)
		defer c.b.Close()
		c.steps(3)
		at := time.Now()
		w.Kill("b")
		c.step()
		r := c.b.Stats().Recoveries
		if len(r) != 1 || r[0].Session != session(1) || r[0].At.Before(at) || r[0].At.After(time.Now()) {
			t.Fatalf("recoveries %+v", r)
		}
		rest := r[0].Trace
		for _, want := range []string{"b failed", "0 ms open a[0:4) -> b2[4:8) -> c[8:12)", "opened, held [42 0 42]", "refill hop 1, 42 rows from 0", "done", "send 1 rows from 42", "done"} {
			_, after, ok := strings.Cut(rest, want)
			if !ok {
				t.Fatalf("no %q at its place in %q", want, r[0].Trace)
			}
			rest = after
		}
		c.step()
		if got := c.b.Stats().Recoveries; len(got) != 1 || len(m.Recent()) != 1 {
			t.Errorf("%d and %d recoveries after a step that nothing disturbed", len(got), len(m.Recent()))
		}
	})
}
