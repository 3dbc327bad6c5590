package cache

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// twin is the store again, written to be obviously right: one slice in order
// of use, every sum taken anew, no counters kept in step.
type twin struct {
	ttl      time.Duration
	sessions int
	bytes    int64
	now      time.Time
	live     []*twinEntry // oldest use first
	ghosts   []*twinEntry // dropped while pinned
}

type twinEntry struct {
	key      Key
	owner    string
	reserved int64
	seen     int64 // bytes at the last release
	len      int
	pins     int
	used     time.Time
}

func (e *twinEntry) cost() int64 { return max(e.reserved, e.seen) }

func (w *twin) total() (n int64) {
	for _, e := range w.live {
		n += e.cost()
	}
	for _, e := range w.ghosts {
		n += e.cost()
	}
	return n
}

func (w *twin) find(k Key) *twinEntry {
	for _, e := range w.live {
		if e.key == k {
			return e
		}
	}
	return nil
}

func (w *twin) take(k Key) *twinEntry {
	e := w.find(k)
	for i := range w.live {
		if w.live[i] == e {
			w.live = append(w.live[:i:i], w.live[i+1:]...)
			break
		}
	}
	return e
}

func (w *twin) kill(k Key) {
	if e := w.take(k); e.pins > 0 {
		w.ghosts = append(w.ghosts, e)
	}
}

func (w *twin) use(e *twinEntry) {
	if w.find(e.key) != nil {
		w.take(e.key)
	}
	e.used = w.now
	w.live = append(w.live, e)
}

func (w *twin) expire() {
	var kept []*twinEntry
	for _, e := range w.live {
		if e.pins > 0 || w.now.Before(e.used.Add(w.ttl)) {
			kept = append(kept, e)
		}
	}
	w.live = kept
}

func (w *twin) admit(k Key, owner string, bytes int64) (int, string) {
	w.expire()
	for _, e := range w.live {
		if e.key.Session == k.Session && e.owner != owner {
			return 0, "not owner"
		}
	}
	e := w.find(k)
	isNew := e == nil
	if isNew {
		e = &twinEntry{key: k, owner: owner}
	}
	fits := func(gone map[*twinEntry]bool) bool {
		count, sum := 1, max(bytes, e.seen)
		for _, o := range w.live {
			if o != e && !gone[o] {
				count++
				sum += o.cost()
			}
		}
		for _, o := range w.ghosts {
			sum += o.cost()
		}
		return sum <= w.bytes && (!isNew || count <= w.sessions)
	}
	gone := map[*twinEntry]bool{}
	// greedy: with e admitted and gone gone, this owner has more than an equal part.
	greedy := func(who string) bool {
		owners, count, sum := map[string]bool{owner: true}, 0, int64(0)
		for _, o := range w.live {
			owners[o.owner] = true
			if o.owner == who && o != e && !gone[o] {
				count, sum = count+1, sum+o.cost()
			}
		}
		if who == owner {
			count, sum = count+1, sum+max(bytes, e.seen)
		}
		return count > 1 && (count > w.sessions/len(owners) || sum > w.bytes/int64(len(owners)))
	}
	for _, may := range []func(o *twinEntry) bool{
		func(o *twinEntry) bool { return o.key.Session == k.Session },
		func(o *twinEntry) bool { return !w.now.Before(o.used.Add(w.ttl / 20)) },
		func(o *twinEntry) bool { return greedy(o.owner) },
		func(o *twinEntry) bool { return !greedy(owner) },
	} {
		for _, o := range w.live {
			if !fits(gone) && o != e && o.pins == 0 && !gone[o] && may(o) {
				gone[o] = true
			}
		}
	}
	if !fits(gone) {
		if max(bytes, e.seen) > w.bytes {
			return 0, "never"
		}
		return 0, "full"
	}
	for o := range gone {
		w.take(o.key)
	}
	e.reserved = bytes
	w.use(e)
	return e.len, ""
}

func (w *twin) release(e *twinEntry, held int, bytes int64) {
	e.pins--
	if e.pins == 0 {
		e.len, e.seen = held, bytes
	}
	if w.find(e.key) != e {
		for i, g := range w.ghosts {
			if g == e && e.pins == 0 {
				w.ghosts = append(w.ghosts[:i:i], w.ghosts[i+1:]...)
				break
			}
		}
		return
	}
	w.use(e)
	for i := 0; i < len(w.live) && w.total() > w.bytes; {
		if w.live[i].pins == 0 {
			w.kill(w.live[i].key)
		} else {
			i++
		}
	}
}

func TestAgainstTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &clock{time.Unix(5000, 0)}
		w := &twin{ttl: 10 * time.Second, sessions: rapid.IntRange(1, 4).Draw(t, "sessions"), bytes: rapid.Int64Range(1, 300).Draw(t, "bytes"), now: c.now}
		s, err := New(Config{TTL: w.ttl, MaxSessions: w.sessions, MaxBytes: w.bytes, Now: c.Now})
		if err != nil {
			t.Fatal(err)
		}
		type pin struct {
			real *Entry
			twin *twinEntry
		}
		var pins []pin
		states := []*fakeState{}
		drawKey := func() Key {
			return key(rapid.SampledFrom([]byte("ABC")).Draw(t, "session"), rapid.IntRange(0, 1).Draw(t, "start"), 2)
		}
		owner := func() string { return rapid.SampledFrom([]string{"head", "head", "head", "other"}).Draw(t, "owner") }
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(t *rapid.T) {
				k, o, b := drawKey(), owner(), rapid.Int64Range(0, 150).Draw(t, "reserve")
				held, err := s.Admit(k, o, b, func() (State, error) {
					states = append(states, &fakeState{each: 10})
					return states[len(states)-1], nil
				})
				wantHeld, want := w.admit(k, o, b)
				if got := kind(err); got != want || held != wantHeld {
					t.Fatalf("admit %v %s %d: got %d %q, want %d %q", k, o, b, held, got, wantHeld, want)
				}
			},
			"acquire": func(t *rapid.T) {
				k, o := drawKey(), owner()
				real, err := s.Acquire(k, o)
				e, want := w.find(k), ""
				if e != nil && e.owner == o && e.pins == 0 && !w.now.Before(e.used.Add(w.ttl)) {
					w.take(k)
					e = nil
				}
				switch {
				case e == nil:
					want = "miss"
				case e.owner != o:
					want = "not owner"
				default:
					e.pins++
					w.use(e)
					pins = append(pins, pin{real, e})
				}
				if got := kind(err); got != want {
					t.Fatalf("acquire %v %s: got %q, want %q", k, o, got, want)
				}
			},
			"release": func(t *rapid.T) {
				if len(pins) == 0 {
					return
				}
				i := rapid.IntRange(0, len(pins)-1).Draw(t, "pin")
				p := pins[i]
				pins = append(pins[:i:i], pins[i+1:]...)
				f := p.real.State().(*fakeState)
				f.len += rapid.IntRange(0, 8).Draw(t, "grow")
				if rapid.Bool().Draw(t, "cut") && p.real.Seek(f.len/2) != nil {
					t.Fatal("a state that can be cut was not")
				}
				p.real.Release()
				w.release(p.twin, f.len, int64(f.len)*10)
			},
			"wait": func(t *rapid.T) {
				c.now = c.now.Add(time.Duration(rapid.IntRange(0, 12).Draw(t, "seconds")) * time.Second)
				w.now = c.now
			},
			"drop": func(t *rapid.T) {
				k, n := drawKey(), 0
				for _, e := range append([]*twinEntry{}, w.live...) {
					if e.key.Session == k.Session {
						w.kill(e.key)
						n++
					}
				}
				if got := s.Drop(k.Session); got != n {
					t.Fatalf("drop: got %d, want %d", got, n)
				}
			},
			"sweep": func(t *rapid.T) {
				before := len(w.live)
				w.expire()
				if got := s.Sweep(); got != before-len(w.live) {
					t.Fatalf("sweep: got %d, want %d", got, before-len(w.live))
				}
			},
			"": func(t *rapid.T) { // after every step
				st := s.Stats()
				if st.Bytes != w.total() || st.Sessions != len(w.live) {
					t.Fatalf("got %d bytes in %d entries, want %d in %d", st.Bytes, st.Sessions, w.total(), len(w.live))
				}
				if st.Sessions > w.sessions || st.Bytes > w.bytes && len(pins) == 0 {
					t.Fatalf("over budget: %+v", st)
				}
				for i, r := range st.Rows {
					if e := w.live[i]; r.Start != e.key.Start || r.Len != e.len || r.InUse != (e.pins > 0) || r.Idle != w.now.Sub(e.used) {
						t.Fatalf("row %d is %+v, want %+v", i, r, *e)
					}
				}
				open := 0
				for _, f := range states {
					if f.closed > 1 {
						t.Fatal("a state was closed twice")
					}
					open += 1 - f.closed
				}
				if open != len(w.live)+len(w.ghosts) {
					t.Fatalf("%d states open, want %d", open, len(w.live)+len(w.ghosts))
				}
			},
		})
	})
}

func kind(err error) string {
	var miss *MissError
	var full *FullError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &miss):
		return "miss"
	case errors.As(err, &full) && full.RetryAfter == 0:
		return "never"
	case errors.As(err, &full):
		return "full"
	case errors.Is(err, ErrNotOwner):
		return "not owner"
	}
	return err.Error()
}
