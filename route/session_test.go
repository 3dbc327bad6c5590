package route

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// TestSessionScripts plays testdata/session*.txt. A block is one session: lines
// that change its view (as in plan.txt, and "gone NAME"), events that begin with
// their time, and below each event, indented, the actions that must follow.
func TestSessionScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/session*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(strings.TrimSpace(string(data)), "\n\n") {
			name, script, _ := strings.Cut(block, "\n")
			t.Run(strings.TrimPrefix(name, "# "), func(t *testing.T) {
				if got := play(t, script); got != script {
					t.Errorf("%s: got\n%s\nwant\n%s", file, got, script)
				}
			})
		}
	}
}

// play runs a script's lines and returns it with the actions that really followed.
func play(t *testing.T, script string) string {
	q := Query{Model: testModel, Head: "head"}
	cfg := Config{Model: testModel, Head: "head", Bans: NewBans(1), ChunkRows: 64}
	var s *Session
	var out []string
	for _, line := range strings.Split(script, "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		out = append(out, line)
		f := strings.Fields(line)
		switch at, err := time.ParseDuration(f[0]); {
		case f[0] == "stateless":
			cfg.Stateless = true
		case f[0] == "standbys":
			cfg.Standbys = true
		case f[0] == "gone":
			q.Offers = slices.DeleteFunc(q.Offers, func(o wire.Offer) bool { return o.Peer == f[1] })
		case err != nil:
			if err := queryLine(&q, f); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		case f[1] == "lied": // lied PEER [sure]
			cfg.Bans.Lied(p2p.PeerID(f[2]), len(f) > 3, at)
		case f[1] == "standby": // standby HOP [not PEER]
			i, err := strconv.Atoi(f[2])
			if err != nil {
				t.Fatal(err)
			}
			h, ok := s.Standby(at, i, func(id p2p.PeerID) bool { return len(f) > 3 && string(id) == f[4] })
			if out = append(out, "  nobody"); ok {
				out[len(out)-1] = fmt.Sprintf("  %s[%d:%d)", h.Peer.ID, h.Start, h.End)
			}
		case f[1] == "report":
			for _, r := range s.Recoveries() {
				out = append(out, fmt.Sprintf("  %s, hop %d, %s, at %v took %v, %d rows", r.Cause, r.Hop, r.Peer, r.At, r.Took, r.Rows))
			}
			h, m := s.Counts()
			out = append(out, fmt.Sprintf("  hits %d, misses %d", h, m))
		default:
			if s == nil {
				cfg.Layers = q.Layers
				if s, err = NewSession(cfg); err != nil {
					t.Fatal(err)
				}
			}
			var acts []Action
			view := View{Offers: slices.Clone(q.Offers), Links: q.Links}
			if f[1] == "begin" || f[1] == "failed" {
				acts = s.Step(at, view)
			}
			acts = append(acts, s.Step(at, event(t, f[1:], view))...)
			for _, a := range acts {
				out = append(out, "  "+show(a))
			}
		}
	}
	return strings.Join(out, "\n")
}

func event(t *testing.T, f []string, view View) Event {
	num := func(i int) int {
		n, err := strconv.Atoi(f[i])
		if err != nil {
			t.Fatalf("%q: %v", f, err)
		}
		return n
	}
	switch f[0] {
	case "begin":
		return Begin{}
	case "view":
		return view
	case "tick":
		return Tick{}
	case "forward": // forward TOKENS past N want N
		return Forward{Tokens: num(1), Past: num(3), Want: num(5)}
	case "done":
		return Done{Epoch: uint32(num(1))}
	case "leaving":
		return Leaving{Peer: p2p.PeerID(f[1])}
	case "warm": // warm PEER START END ROWS
		return Warm{Peer: p2p.PeerID(f[1]), Start: num(2), End: num(3), Rows: num(4)}
	case "opened": // opened EPOCH HELD[*] ...: * where the link to the next failed
		ev := Opened{Epoch: uint32(num(1))}
		for _, h := range f[2:] {
			n, err := strconv.Atoi(strings.TrimSuffix(h, "*"))
			if err != nil {
				t.Fatal(err)
			}
			ev.Held, ev.Linked = append(ev.Held, n), append(ev.Linked, !strings.HasSuffix(h, "*"))
		}
		return ev
	case "failed": // failed EPOCH HOP PEER WHAT [held N] [retry D] [next PEER]
		ev := Failed{Epoch: uint32(num(1)), Failure: Failure{Hop: num(2), Peer: p2p.PeerID(f[3])}}
		switch f[4] {
		case "lost":
		case "silent":
			ev.Silent = true
		default:
			i := slices.IndexFunc(wire.Codes(), func(c wire.Code) bool { return c.String() == f[4] })
			if i < 0 {
				t.Fatalf("no code %q", f[4])
			}
			ev.Code = wire.Codes()[i]
		}
		for i := 5; i+1 < len(f); i += 2 {
			switch f[i] {
			case "held":
				ev.Held = num(i + 1)
			case "retry":
				ev.Retry, _ = time.ParseDuration(f[i+1])
			case "next":
				ev.Next = p2p.PeerID(f[i+1])
			}
		}
		return ev
	}
	t.Fatalf("no event %q", f)
	return nil
}

func show(a Action) string {
	switch a := a.(type) {
	case Open:
		line := fmt.Sprintf("open %d %v", a.Epoch, a.Route)
		if a.Within < openMost {
			line += fmt.Sprintf(" within %v", a.Within)
		}
		if slices.Max(a.Signs) > 0 {
			line += fmt.Sprintf(" signs %v", a.Signs)
		}
		return line
	case Send:
		return fmt.Sprintf("send %d seq %d %v past %d rows %d by %d want %d within %v", a.Epoch, a.Seq, a.Mode, a.Past, a.Rows, a.Chunk, a.Want, a.Deadline)
	case Refill:
		return fmt.Sprintf("refill %d seq %d hop %d past %d rows %d by %d within %v", a.Epoch, a.Seq, a.Hop, a.Past, a.Rows, a.Chunk, a.Deadline)
	case Wait:
		return fmt.Sprintf("wait until %v", a.Until)
	case Say:
		return "say " + a.Text
	case Return:
		return "return"
	case Fail:
		return "fail " + a.Err.Error()
	}
	return fmt.Sprintf("%#v", a)
}

// TestBans: 15 s, doubled each time, at most 10 min, ±20 %, reset by success.
// TestLied: what a liar does besides ends nothing, and it is out for as long as the case
// is clear.
func TestLied(t *testing.T) {
	b := NewBans(42)
	for id, c := range map[p2p.PeerID]struct {
		sure bool
		long time.Duration
	}{"sure": {true, 24 * time.Hour}, "one of two": {false, 10 * time.Minute}} {
		b.Lost(id, 1, 0)
		b.Lied(id, c.sure, 0)
		b.Back(id, 2, time.Second)
		b.Forgive(id)
		b.Ban(id, time.Second)
		b.Forgive(id)
		if at := c.long - 1; !b.Liar(id, at) || !b.Now(at)[id] {
			t.Errorf("%s is asked again before %v", id, c.long)
		}
		if b.Liar(id, c.long) || b.Now(c.long)[id] {
			t.Errorf("%s is out for longer than %v", id, c.long)
		}
	}
	b.Lied("sure", true, 0)
	b.Lied("sure", false, 0)
	if !b.Liar("sure", time.Hour) {
		t.Error("a doubt ends a certainty")
	}
}

func TestBans(t *testing.T) {
	b := NewBans(42)
	now := time.Duration(0)
	for i, want := range []time.Duration{15, 30, 60, 120, 240, 480, 600, 600, 600} {
		want *= time.Second
		until := b.Ban("a", now)
		if d := until - now; d < want*8/10 || d > want*12/10 {
			t.Errorf("ban %d lasts %v, want %v ± 20 %%", i, d, want)
		}
		if !b.Now(until - 1)["a"] || b.Now(until)["a"] {
			t.Errorf("ban %d does not end when it says", i)
		}
		now = until
	}
	b.Forgive("a")
	if b.Now(now)["a"] {
		t.Error("forgiven and still banned")
	}
	if d := b.Ban("a", now) - now; d > 18*time.Second {
		t.Errorf("after success a ban lasts %v", d)
	}
	b.Rest("b", now+5*time.Second, now)
	if !b.Now(now)["b"] || b.Now(now + 5*time.Second)["b"] {
		t.Error("a busy peer rests as long as it asked for")
	}
	b.Lost("c", 7, now)
	b.Back("c", 7, now)
	if !b.Now(now)["c"] {
		t.Error("an offer from before its loss ends a ban")
	}
	b.Back("c", 8, now)
	if b.Now(now)["c"] || b.Doubts(now)["c"] == 0 {
		t.Error("a peer that came back is banned still, or not in doubt")
	}
	b.Ban("d", now)
	b.Lost("d", 1, now)
	b.Back("d", 2, now)
	if !b.Now(now)["d"] {
		t.Error("an offer ends a ban that was for more than a loss")
	}
	spread := map[time.Duration]bool{}
	for seed := range uint64(20) {
		spread[NewBans(seed).Ban("a", 0)] = true
	}
	if len(spread) < 15 {
		t.Errorf("twenty heads come back at %d different times", len(spread))
	}
	for i := range 5000 {
		b.Ban(p2p.PeerID(fmt.Sprint(i)), now)
	}
	if len(b.m) > maxBans {
		t.Errorf("%d bans are remembered", len(b.m))
	}
}

// TestDeadlines: a decode step may take 4 times the p95 so far, from 2 to 15 s.
func TestDeadlines(t *testing.T) {
	for _, tt := range []struct{ step, want time.Duration }{
		{10 * time.Millisecond, 2 * time.Second},
		{time.Second, 4 * time.Second},
		{10 * time.Second, 15 * time.Second},
	} {
		s, err := NewSession(Config{Layers: 1, Model: testModel, Head: "head", Bans: NewBans(1), ChunkRows: 64})
		if err != nil {
			t.Fatal(err)
		}
		s.Step(0, View{Offers: []wire.Offer{{Model: testModel, Layers: 1, End: 1, Peer: "a", State: wire.Online, CacheTypes: wire.AllCacheTypes}}})
		s.Step(0, Begin{})
		s.Step(0, Opened{Epoch: 1, Held: []int{0}, Linked: []bool{false}})
		now, last := time.Duration(0), time.Duration(0)
		for i := range 30 {
			for _, a := range s.Step(now, Forward{Tokens: i + 1, Past: i, Want: 1}) {
				if send, ok := a.(Send); ok {
					last = send.Deadline
				}
			}
			now += tt.step
			s.Step(now, Done{Epoch: 1})
		}
		if last != tt.want {
			t.Errorf("steps of %v: deadline %v, want %v", tt.step, last, tt.want)
		}
	}
}
