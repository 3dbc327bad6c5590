package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/meshnet/testnet"
)

// The seed alone fixes a schedule, and a seed changes all of it.
func TestScheduleRepeats(t *testing.T) {
	cfg := Config{Seed: 7, Duration: 10 * time.Minute, Every: 2 * time.Second, Chats: 8, Processes: -1, Copies: 2, Spans: 3, Tokens: 1, Questions: 1, Kinds: allKinds()}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	first, again := cfg.plan(30).schedule(), cfg.plan(30).schedule()
	if !slices.Equal(first, again) {
		t.Error("the same seed gives two schedules")
	}
	cfg.Seed++
	if other := cfg.plan(30).schedule(); slices.Equal(first, other) || fingerprint(first) == fingerprint(other) {
		t.Error("two seeds give the same schedule")
	}
	kinds := map[string]int{}
	for _, f := range first {
		kinds[f.Kind]++
	}
	for _, k := range allKinds() {
		if kinds[k] == 0 {
			t.Errorf("no %s in %d faults: %v", k, len(first), kinds)
		}
	}
}

// Whatever the seed, every layer keeps a holder that no fault has touched lately;
// with Holes that is not so, or this test would show nothing.
func TestScheduleLeavesHolders(t *testing.T) {
	lost := func(p plan) (n int) {
		away := map[string]time.Duration{}
		for _, f := range p.schedule() {
			if f.Kind == evict || f.Kind == join || f.With != "" && p.isNode(f.With) {
				continue
			}
			away[f.Who] = f.At + f.For
			for l := range 30 {
				if !slices.ContainsFunc(p.Nodes, func(h holder) bool { return h.Start <= l && l < h.End && away[h.Name] <= f.At && h.Name != f.Who }) {
					n++
				}
			}
		}
		return n
	}
	holes := 0
	for seed := range uint64(200) {
		cfg := Config{Seed: seed, Duration: 5 * time.Minute, Every: time.Second, Chats: 4, Copies: 2, Spans: 1 + int(seed%4), Tokens: 1, Questions: 1, Kinds: allKinds()}
		if err := cfg.complete(); err != nil {
			t.Fatal(err)
		}
		if n := lost(cfg.plan(30)); n > 0 {
			t.Fatalf("seed %d: %d times a layer is left without a holder", seed, n)
		}
		cfg.Holes = true
		holes += lost(cfg.plan(30))
	}
	if holes == 0 {
		t.Error("--holes makes no hole")
	}
}

// A recovery is counted to the end of the silence that the fault made, not to a
// token that had left before it; what should disturb nobody by its longest silence.
func TestSilence(t *testing.T) {
	zero := time.Now()
	for _, c := range []struct {
		name   string
		kind   string
		tokens []int // ms after the fault
		want   int
		none   bool
	}{
		{"silence at once", kill, []int{-10, 400, 410, 420}, 400, false},
		{"a token was on its way", kill, []int{-10, 3, 500, 510}, 500, false},
		{"a later silence is another's", kill, []int{5, 300, 310, 320, 9000}, 300, false},
		{"it ended before", kill, []int{-30, -20}, 0, true},
		{"nothing came", kill, nil, 0, true},
		{"leaving: the longest gap", drain, []int{-10, 10, 30, 330, 340, 20000}, 19660, false},
		{"leaving: beyond ten seconds is not its doing", drain, []int{-10, 10, 10011, 10100, 30000}, 10001, false},
	} {
		from, to, ok := watch{fault{Kind: c.kind}, zero, answer(zero, c.tokens...)}.silence()
		if got := to.Sub(from); ok == c.none || ok && got != time.Duration(c.want)*time.Millisecond {
			t.Errorf("%s: %v, %v; want %d ms", c.name, got, ok, c.want)
		}
	}
}

// answer is a chat with tokens at these times.
func answer(zero time.Time, ms ...int) *chat {
	c := &chat{q: &question{}, head: "api", session: "12345678"}
	for _, at := range ms {
		c.tokens = append(c.tokens, zero.Add(time.Duration(at)*time.Millisecond))
	}
	return c
}

// Every recovery is reported once: alone, with others that struck meanwhile, or of a
// chat that had not begun to answer; and one over its goal with what the head did.
func TestMeasure(t *testing.T) {
	zero := time.Now()
	ms := func(n int) time.Time { return zero.Add(time.Duration(n) * time.Millisecond) }
	var watched []watch
	var all []struck
	strike := func(kind string, at int, chats ...*chat) {
		f := fault{Kind: kind, Who: "n1"}
		all = append(all, struck{f, ms(at)})
		for _, c := range chats {
			watched = append(watched, watch{f, ms(at), c})
		}
	}
	for n := 1; n <= 200; n++ {
		strike(evict, 100_000*n, answer(ms(100_000*n), -10, n))
	}
	slow := answer(zero, -10, 700, 710)
	slow.mended = []testnet.Recovery{
		{At: ms(-500), ReplayMs: 400, Trace: "earlier"},
		{At: ms(50), ReplayMs: 100, Trace: "open"},
		{At: ms(60), ReplayMs: 100, Trace: "open"},
	}
	strike(kill, 0, slow)
	strike(kill, 10_000, answer(zero, 9_990, 10_900, 10_910)) // and another fault within
	strike(freeze, 10_500)
	strike(kill, 20_000, answer(zero, 20_900))
	both := answer(zero, 29_000, 31_500) // the second fault of a silence
	strike(freeze, 30_000, both)
	strike(kill, 31_000, both)
	var rep Report
	rep.measure(watched, all, zero)
	for _, c := range []struct {
		name string
		got  Times
		want Times
	}{
		{"percentiles", rep.Recovery[evict], Times{N: 200, P50: 100, P99: 198, Max: 200}},
		{"alone", rep.Recovery[kill], Times{N: 1, P50: 700, P99: 700, Max: 700}},
		{"without its replay", rep.WithoutReplay[kill], Times{N: 1, P50: 600, P99: 600, Max: 600}},
		{"noticed", rep.Noticed[kill], Times{N: 1, P50: 50, P99: 50, Max: 50}},
		{"overlapping", rep.Overlapping[kill], Times{N: 2, P50: 500, P99: 900, Max: 900}},
		{"the first of two", rep.Overlapping[freeze], Times{N: 1, P50: 1500, P99: 1500, Max: 1500}},
		{"before the first token", rep.Prompt[kill], Times{N: 1, P50: 900, P99: 900, Max: 900}},
	} {
		each := c.got.Each
		if c.got.Each = nil; !reflect.DeepEqual(c.got, c.want) || len(each) != c.want.N {
			t.Errorf("%s: %+v, want %+v", c.name, c.got, c.want)
		}
	}
	if len(rep.OverGoal) != 2 {
		t.Fatalf("over its goal are %q", rep.OverGoal)
	}
	for i, words := range [][]string{{"kill n1, api 12345678: 700 ms, 100 of them", "noticed after 50 ms; open"}, {"900 ms, with freeze n1", "mended nothing"}} {
		for _, w := range words {
			if !strings.Contains(rep.OverGoal[i], w) {
				t.Errorf("no %q in %q", w, rep.OverGoal[i])
			}
		}
	}
}

// A fault counts for those clients alone whose way it is on.
func TestWhoIsHit(t *testing.T) {
	route := []string{"n1", "n2", "n3"}
	for _, c := range []struct {
		f    fault
		want bool
	}{
		{fault{Who: "n2"}, true},
		{fault{Who: "n4"}, false},
		{fault{Who: "n2", With: "api"}, true},
		{fault{Who: "n2", With: "chat1"}, false},
		{fault{Who: "n2", With: "n1"}, true},
		{fault{Who: "n2", With: "n3"}, true},
		{fault{Who: "n1", With: "n3"}, false},
	} {
		if got := on(c.f, "api", route); got != c.want {
			t.Errorf("%v: %v", c.f, got)
		}
	}
}

func TestCommandLine(t *testing.T) {
	for _, args := range [][]string{{"--kinds", "earthquake"}, {"--chats", "0", "--dry"}, {"--nonsense"}, {"more"}, {"--chats", "2", "--processes", "3", "--dry"}} {
		if code, err := command(t.Context(), args, new(bytes.Buffer), new(bytes.Buffer)); code != 2 {
			t.Errorf("%v: code %d, %v", args, code, err)
		}
	}
	var out bytes.Buffer
	if code, err := command(t.Context(), []string{"--dry", "--duration", "30s"}, &out, new(bytes.Buffer)); code != 0 || err != nil || !strings.Contains(out.String(), "schedule ") {
		t.Errorf("%d, %v, %s", code, err, &out)
	}
}

// Twenty seconds of it, with real processes.
func TestChaos(t *testing.T) {
	dir, err := os.MkdirTemp("", "cz") // short: a socket's path must fit
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	bin := filepath.Join(dir, "meshnet")
	if err := testnet.Build(t.Context(), bin); err != nil {
		t.Fatal(err)
	}
	var out, words bytes.Buffer
	code, err := command(t.Context(), []string{
		"--binary", bin, "--dir", filepath.Join(dir, "m"), "--model", "tiny", "--seed", "5", "--duration", "12s", "--questions", "3", "--every", "1s",
		"--chats", "4", "--tokens", "200", "--aim", "--kinds", "kill,freeze,cut,hole,drain,evict,restart", "--json",
	}, &out, &words)
	t.Logf("%s", &words)
	if err != nil {
		t.Fatal(err)
	}
	var rep struct {
		Faults, Answers, Wrong, Lost int
		Recovery                     map[string]Times `json:"recovery_ms"`
		Overlapping                  map[string]Times `json:"overlapping_ms"`
		Prompt                       map[string]Times `json:"prompt_ms"`
		Trouble                      []string
	}
	if err := json.Unmarshal(out.Bytes(), &rep); err != nil {
		t.Fatalf("%v in %s", err, &out)
	}
	t.Logf("%s", &out)
	if code != 0 || rep.Wrong != 0 || rep.Lost != 0 {
		t.Errorf("%d wrong, %d lost of %d answers, code %d", rep.Wrong, rep.Lost, rep.Answers, code)
	}
	if n := len(rep.Recovery) + len(rep.Overlapping) + len(rep.Prompt); rep.Faults < 3 || rep.Answers < 4 || n == 0 {
		t.Errorf("%d faults, %d answers, %d kinds of recoveries: too little happened", rep.Faults, rep.Answers, n)
	}
	if len(rep.Trouble) > 0 {
		t.Errorf("trouble: %q", rep.Trouble)
	}
}
