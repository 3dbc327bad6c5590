package cache

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeState grows by hand; rigid ones cannot be cut back.
type fakeState struct {
	len    int
	each   int64
	rigid  bool
	closed int
}

func (f *fakeState) Len() int     { return f.len }
func (f *fakeState) Bytes() int64 { return int64(f.len) * f.each }
func (f *fakeState) Close()       { f.closed++ }
func (f *fakeState) Truncate(n int) bool {
	if f.rigid || n > f.len {
		return false
	}
	f.len = n
	return true
}

type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func session(b byte) (s [16]byte) { s[0] = b; return s }

func key(b byte, start, end int) Key { return Key{Session: session(b), Start: start, End: end} }

// world is what a script works on.
type world struct {
	t     *testing.T
	s     *Store
	clock *clock
	made  map[Key]*fakeState
	held  map[Key]*Entry
}

func newWorld(t *testing.T, sessions int, bytes int64) *world {
	c := &clock{time.Unix(1000, 0)}
	s, err := New(Config{TTL: 10 * time.Second, MaxSessions: sessions, MaxBytes: bytes, Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, s, c, map[Key]*fakeState{}, map[Key]*Entry{}}
}

// do runs one line of a script and returns what came of it in a word.
//
//	admit A 0 10 100       session A, layers [0,10), 100 bytes, owner "head"
//	admit! A 0 10 100      the same by owner "other"
//	acquire A 0 10         pins;  acquire! by "other"
//	grow A 0 10 7          the state has 7 tokens now, of 10 bytes
//	seek A 0 10 5 | release A 0 10
//	wait 3                 seconds
//	drop A | dropowner head | sweep | close
func (w *world) do(line string) string {
	var f [5]string
	n := copy(f[:], strings.Fields(line))
	num := func(i int) (v int) { fmt.Sscan(f[i], &v); return v }
	var k Key
	if n >= 4 {
		k = key(f[1][0], num(2), num(3))
	}
	owner := "head"
	if strings.HasSuffix(f[0], "!") {
		owner = "other"
	}
	switch strings.TrimSuffix(f[0], "!") {
	case "admit":
		held, err := w.s.Admit(k, owner, int64(num(4)), func() (State, error) {
			w.made[k] = &fakeState{each: 10}
			return w.made[k], nil
		})
		return word(held, err)
	case "acquire":
		e, err := w.s.Acquire(k, owner)
		if err == nil {
			w.held[k] = e
			return word(e.State().Len(), nil)
		}
		return word(0, err)
	case "grow":
		w.made[k].len = num(4)
		return "ok"
	case "rigid":
		w.made[k].rigid = true
		return "ok"
	case "seek":
		err := w.held[k].Seek(num(4))
		return word(w.made[k].len, err)
	case "release":
		w.held[k].Release()
		return "ok"
	case "wait":
		w.clock.now = w.clock.now.Add(time.Duration(num(1)) * time.Second)
		return "ok"
	case "drop":
		return fmt.Sprint(w.s.Drop(session(f[1][0])))
	case "dropowner":
		return fmt.Sprint(w.s.DropOwner(f[1]))
	case "sweep":
		return fmt.Sprint(w.s.Sweep())
	case "close":
		w.s.Close()
		return "ok"
	case "closed": // how often was this state closed
		return fmt.Sprint(w.made[k].closed)
	case "bytes":
		return fmt.Sprint(w.s.Stats().Bytes)
	case "counts":
		st := w.s.Stats()
		return fmt.Sprintf("hit=%d miss=%d evict=%d expire=%d", st.Hits, st.Misses, st.Evictions, st.Expirations)
	}
	w.t.Fatalf("script: %q?", line)
	return ""
}

func word(held int, err error) string {
	var miss *MissError
	var full *FullError
	switch {
	case err == nil:
		return fmt.Sprint(held)
	case errors.As(err, &miss):
		return fmt.Sprintf("miss %d", miss.Held)
	case errors.As(err, &full) && full.RetryAfter == 0:
		return "never"
	case errors.As(err, &full):
		return "full"
	case errors.Is(err, ErrNotOwner):
		return "not owner"
	case errors.Is(err, ErrClosed):
		return "closed"
	}
	return err.Error()
}

func TestScripts(t *testing.T) {
	for _, tc := range []struct {
		name     string
		sessions int
		bytes    int64
		script   string // "line -> word", one a line
	}{
		{"a session comes back and its tokens are there", 4, 1000, `
			admit A 0 10 100   -> 0
			acquire A 0 10     -> 0
			grow A 0 10 5      -> ok
			release A 0 10     -> ok
			admit A 0 10 100   -> 5
			acquire A 0 10     -> 5
			release A 0 10     -> ok
			release A 0 10     -> ok
			counts             -> hit=2 miss=0 evict=0 expire=0`},
		{"unknown, and other layers of a known session, are misses", 4, 1000, `
			acquire A 0 10     -> miss 0
			admit A 0 10 100   -> 0
			acquire A 4 10     -> miss 0
			counts             -> hit=0 miss=2 evict=0 expire=0`},
		{"idle to the TTL is gone, one second earlier is not", 4, 1000, `
			admit A 0 10 100   -> 0
			wait 9             -> ok
			acquire A 0 10     -> 0
			release A 0 10     -> ok
			wait 10            -> ok
			acquire A 0 10     -> miss 0
			closed A 0 10      -> 1
			bytes              -> 0
			counts             -> hit=1 miss=1 evict=0 expire=1`},
		{"in use does not expire; idle counts from the release", 4, 1000, `
			admit A 0 10 100   -> 0
			acquire A 0 10     -> 0
			wait 60            -> ok
			sweep              -> 0
			release A 0 10     -> ok
			wait 9             -> ok
			sweep              -> 0
			wait 1             -> ok
			sweep              -> 1`},
		{"the least recently used leaves first", 2, 1000, `
			admit A 0 10 100   -> 0
			admit B 0 10 100   -> 0
			acquire A 0 10     -> 0
			release A 0 10     -> ok
			admit C 0 10 100   -> 0
			acquire B 0 10     -> miss 0
			acquire A 0 10     -> 0
			counts             -> hit=1 miss=1 evict=1 expire=0`},
		{"in use is never evicted: full, and come back later", 1, 1000, `
			admit A 0 10 100   -> 0
			acquire A 0 10     -> 0
			admit B 0 10 100   -> full
			release A 0 10     -> ok
			admit B 0 10 100   -> 0
			acquire A 0 10     -> miss 0`},
		{"bytes are reserved at admission", 9, 250, `
			admit A 0 10 100   -> 0
			admit B 0 10 100   -> 0
			bytes              -> 200
			acquire B 0 10     -> 0
			admit C 0 10 100   -> 0
			acquire A 0 10     -> miss 0
			admit D 0 10 251   -> never
			admit D 0 10 200   -> full
			acquire C 0 10     -> 0`},
		{"a refusal evicts nobody", 9, 250, `
			admit A 0 10 100   -> 0
			admit B 0 10 100   -> 0
			acquire B 0 10     -> 0
			admit C 0 10 151   -> full
			acquire A 0 10     -> 0`},
		{"a re-route's leftovers go before other sessions", 2, 1000, `
			admit B 0 10 100   -> 0
			admit A 0 10 100   -> 0
			admit A 4 10 100   -> 0
			acquire B 0 10     -> 0
			acquire A 0 10     -> miss 0
			acquire A 4 10     -> 0`},
		{"a session belongs to its head, over whatever layers", 4, 1000, `
			admit A 0 10 100   -> 0
			admit! A 0 10 100  -> not owner
			admit! A 4 10 100  -> not owner
			acquire! A 0 10    -> not owner
			dropowner other    -> 0
			dropowner head     -> 1
			admit! A 0 10 100  -> 0`},
		{"a longer declaration makes room or is refused; the old one stays", 9, 250, `
			admit A 0 10 100   -> 0
			admit B 0 10 100   -> 0
			admit B 0 10 150   -> 0
			bytes              -> 250
			admit B 0 10 151   -> 0
			bytes              -> 151
			admit B 0 10 251   -> never
			bytes              -> 151
			acquire A 0 10     -> miss 0`},
		{"a state that outgrows its reservation pays with idle ones, then itself", 9, 250, `
			admit A 0 10 100   -> 0
			admit B 0 10 100   -> 0
			acquire B 0 10     -> 0
			grow B 0 10 20     -> ok
			release B 0 10     -> ok
			bytes              -> 200
			acquire A 0 10     -> miss 0
			acquire B 0 10     -> 20
			grow B 0 10 26     -> ok
			release B 0 10     -> ok
			bytes              -> 0
			closed B 0 10      -> 1`},
		{"dropped in use: a miss at once, closed and freed at release", 9, 250, `
			admit A 0 10 200   -> 0
			acquire A 0 10     -> 0
			drop A             -> 1
			acquire A 0 10     -> miss 0
			closed A 0 10      -> 0
			bytes              -> 200
			admit B 0 10 100   -> full
			release A 0 10     -> ok
			closed A 0 10      -> 1
			admit B 0 10 100   -> 0
			drop A             -> 0`},
		{"past length: equal, cut back, too short", 4, 1000, `
			admit A 0 10 100   -> 0
			acquire A 0 10     -> 0
			grow A 0 10 8      -> ok
			seek A 0 10 8      -> 8
			seek A 0 10 5      -> 5
			seek A 0 10 6      -> miss 5
			release A 0 10     -> ok
			counts             -> hit=0 miss=1 evict=0 expire=0`},
		{"past length: what cannot be cut is of no use", 4, 1000, `
			admit A 0 10 100   -> 0
			acquire A 0 10     -> 0
			grow A 0 10 8      -> ok
			rigid A 0 10       -> ok
			seek A 0 10 5      -> miss 0
			seek A 0 10 -1     -> miss 0`},
		{"closed", 4, 1000, `
			admit A 0 10 100   -> 0
			admit B 0 10 100   -> 0
			acquire A 0 10     -> 0
			close              -> ok
			closed B 0 10      -> 1
			admit C 0 10 100   -> closed
			acquire B 0 10     -> closed
			release A 0 10     -> ok
			closed A 0 10      -> 1
			close              -> ok`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, tc.sessions, tc.bytes)
			for line := range strings.Lines(strings.TrimSpace(tc.script)) {
				cmd, want, _ := strings.Cut(strings.TrimSpace(line), "->")
				if got := w.do(cmd); got != strings.TrimSpace(want) {
					t.Fatalf("%s: got %q, want %q", strings.TrimSpace(cmd), got, strings.TrimSpace(want))
				}
			}
		})
	}
}

func TestAdmitMakeFails(t *testing.T) {
	w := newWorld(t, 1, 100)
	boom := errors.New("boom")
	if _, err := w.s.Admit(key('A', 0, 1), "head", 50, func() (State, error) { return nil, boom }); !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
	if st := w.s.Stats(); st.Sessions != 0 || st.Bytes != 0 {
		t.Fatalf("a failed admission left %+v", st)
	}
	for _, bad := range []Key{key('A', -1, 1), key('A', 2, 2), key('A', 3, 2)} {
		if _, err := w.s.Admit(bad, "head", 1, nil); err == nil {
			t.Errorf("%v was admitted", bad)
		}
	}
}

func TestStatsRows(t *testing.T) {
	w := newWorld(t, 3, 1000)
	w.do("admit A 0 10 100")
	w.do("admit B 4 9 60")
	w.do("acquire A 0 10")
	w.do("grow A 0 10 3")
	w.do("wait 2")
	got := fmt.Sprintf("%+v", w.s.Stats().Rows)
	want := "[{Session:42000000 Start:4 End:9 Len:0 Bytes:0 Reserved:60 Idle:2s InUse:false}" +
		" {Session:41000000 Start:0 End:10 Len:0 Bytes:0 Reserved:100 Idle:2s InUse:true}]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	w.do("release A 0 10")
	if r := w.s.Stats().Rows[1]; r.Len != 3 || r.Bytes != 30 || r.InUse || r.Idle != 0 {
		t.Errorf("after release: %+v", r)
	}
}

// TestTogether has everything at once from several goroutines; it is for the
// race detector, and checks that every state was closed exactly once.
func TestTogether(t *testing.T) {
	s, err := New(Config{TTL: time.Microsecond, MaxSessions: 3, MaxBytes: 500})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var made []*fakeState
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				k := key(byte('A'+g), 0, 1+i%2) // a goroutine is a session: its steps are one after the other
				_, err := s.Admit(k, "head", int64(i%200), func() (State, error) {
					f := &fakeState{each: 1}
					mu.Lock()
					made = append(made, f)
					mu.Unlock()
					return f, nil
				})
				if err != nil {
					continue
				}
				if e, err := s.Acquire(k, "head"); err == nil {
					e.State().(*fakeState).len++
					e.Seek(1)
					e.Release()
				}
				switch i % 50 {
				case 7:
					s.Drop(session(byte('A' + (g+1)%4)))
				case 9:
					s.Sweep()
				case 11:
					if st := s.Stats(); st.Bytes > 700 || st.Sessions > 3 {
						t.Errorf("over budget: %+v", st)
					}
				}
			}
		})
	}
	wg.Wait()
	s.Close()
	for i, f := range made {
		if f.closed != 1 {
			t.Fatalf("state %d was closed %d times", i, f.closed)
		}
	}
}
