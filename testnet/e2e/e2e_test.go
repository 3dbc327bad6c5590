// Package e2e runs whole meshes of real processes on a real model and holds every
// answer against the one that a single process gives without any network.
//
// Invariant: whatever happens to the peers, the text is byte for byte that one,
// or the answer ends with an honest error. Start reading at TestDisturbances.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
	"github.com/meshnet/meshnet/testnet"
	"github.com/meshnet/meshnet/testnet/realmodel"
	"go.uber.org/goleak"
)

const model = "smollm2"

// binary builds the meshnet command once for all tests.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "meshnet-e2e")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "meshnet")
	return path, testnet.Build(context.Background(), path)
})

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if path, err := binary(); err == nil {
			os.RemoveAll(filepath.Dir(path))
		}
		os.Exit(code)
	}))
}

// start is a mesh on the real model, which is fetched if need be.
func start(t *testing.T, cfg testnet.Config) *testnet.Mesh {
	t.Helper()
	realmodel.SmolLM2(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Home, err = blob.Home(); err != nil {
		t.Fatal(err)
	}
	cfg.Binary, cfg.Model = path, model
	return testnet.Start(t, cfg)
}

// within is a context for one question.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// undisturbed is the answer of one process, asked once for each question.
type undisturbed struct{ known map[string]*testnet.Answer }

func (u *undisturbed) answer(t *testing.T, m *testnet.Mesh, a testnet.Ask) *testnet.Answer {
	t.Helper()
	key := fmt.Sprint(a.Prompt, a.IDs, a.Tokens, a.Temp, a.Seed)
	if w := u.known[key]; w != nil {
		return w
	}
	w, err := m.Generate(within(t, time.Minute), a)
	if err != nil {
		t.Fatal(err)
	}
	if u.known == nil {
		u.known = map[string]*testnet.Answer{}
	}
	u.known[key] = w
	return w
}

// same fails unless two answers have the same ids and text.
func same(t *testing.T, what string, got, want *testnet.Answer) {
	t.Helper()
	if !slices.Equal(got.IDs, want.IDs) || got.Text != want.Text || got.FinishReason != want.FinishReason || !slices.Equal(got.PromptIDs, want.PromptIDs) {
		t.Errorf("%s: %d ids %v (%s), one process says %d ids %v (%s)", what, len(got.IDs), got.IDs, got.FinishReason, len(want.IDs), want.IDs, want.FinishReason)
	}
}

// prompts are 20 texts of 1 to 1,000 tokens, as ids of the real vocabulary: a
// walk through it that depends on the length alone.
func prompts() [][]int32 {
	var out [][]int32
	for _, n := range []int{1, 2, 3, 5, 8, 13, 21, 34, 55, 63, 64, 65, 89, 113, 114, 144, 233, 377, 610, 1000} {
		ids := make([]int32, n)
		x := uint32(n)
		for i := range ids {
			x = x*1664525 + 1013904223
			ids[i] = int32(x>>8) % 49152
		}
		out = append(out, ids)
	}
	return out
}

// The mesh of four processes says what one process says, greedy and seeded.
func TestEqualsOneProcess(t *testing.T) {
	m := start(t, testnet.Config{Ranges: []string{"0:12", "8:22", "18:30"}})
	var alone undisturbed
	for _, ids := range prompts() {
		for _, ask := range []testnet.Ask{
			{IDs: ids, Tokens: 16},
			{IDs: ids, Tokens: 16, Temp: 0.9, Seed: uint64(len(ids))},
		} {
			got, err := m.GenerateMesh(within(t, time.Minute), ask)
			if err != nil {
				t.Fatal(err)
			}
			what := fmt.Sprintf("%d tokens at temperature %v", len(ids), ask.Temp)
			same(t, what, got, alone.answer(t, m, ask))
			if len(got.Route) != 3 || got.Cache.Misses != 0 || len(got.Recoveries) != 0 {
				t.Errorf("%s: route %v, %d misses, recoveries %v; want three hops and no disturbance", what, got.Route, got.Cache.Misses, got.Recoveries)
			}
		}
	}
}

// Any split of the model in two says the same.
func TestEverySplit(t *testing.T) {
	ask := testnet.Ask{Prompt: "Name three colours.", Tokens: 12}
	var alone undisturbed
	for cut := 1; cut < 30; cut++ {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			m := start(t, testnet.Config{Ranges: []string{fmt.Sprintf("0:%d", cut), fmt.Sprintf("%d:30", cut)}})
			want := alone.answer(t, m, ask)
			got, err := m.GenerateMesh(within(t, time.Minute), ask)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "split", got, want)
			if len(got.Route) != 2 || got.Route[0].End != cut {
				t.Errorf("route %v, want a split at %d", got.Route, cut)
			}
		})
	}
}

// A decode step costs the same bytes at any place of a conversation: a row and at
// most 64 bytes for each link.
func TestDecodeBytes(t *testing.T) {
	m := start(t, testnet.Config{Ranges: []string{"0:10", "10:20", "20:30"}})
	var at []float64
	for _, tokens := range []int{10, 100, 500} {
		got, err := m.GenerateMesh(within(t, time.Minute), testnet.Ask{IDs: []int32{1, 2, 3}, Tokens: tokens, Args: []string{"--ignore-eog"}})
		if err != nil {
			t.Fatal(err)
		}
		if got.Cache.Misses != 0 || got.Cache.Hits != tokens-1 {
			t.Errorf("%d tokens: %d hits, %d misses; want every step to find its past", tokens, got.Cache.Hits, got.Cache.Misses)
		}
		at = append(at, got.BytesPerToken)
	}
	const row, links = 576 * 4, 4
	for i, bytes := range at {
		if bytes < links*row || bytes > links*(row+64) {
			t.Errorf("%v bytes a token over %d links; a row is %d bytes, and 64 more are allowed", bytes, links, row)
		}
		if bytes > at[0]+links*8 {
			t.Errorf("bytes a token grow with the answer: %v (at %d)", at, i)
		}
	}
}

// Without a cache the answer is the same, only slower.
func TestStateless(t *testing.T) {
	m := start(t, testnet.Config{Ranges: []string{"0:15", "15:30"}})
	ask := testnet.Ask{Prompt: "Count to five.", Tokens: 10}
	var alone undisturbed
	want := alone.answer(t, m, ask)
	ask.Args = []string{"--stateless"}
	got, err := m.GenerateMesh(within(t, time.Minute), ask)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "stateless", got, want)
	if got.Cache.Hits != 0 {
		t.Errorf("%d steps found something in a cache that must not be used", got.Cache.Hits)
	}
}

// disturbance happens to a mesh while it answers. used are the nodes of the route.
type disturbance struct {
	name   string
	cause  string // of the recovery that the report must show; "" none
	env    []string
	ranges []string
	do     func(t *testing.T, m *testnet.Mesh, used []*testnet.Node)
}

var disturbances = []disturbance{
	{name: "evict", cause: "cache miss", do: func(t *testing.T, m *testnet.Mesh, used []*testnet.Node) {
		if n, err := used[1].Evict(t.Context(), "all"); err != nil || n == 0 {
			t.Errorf("evicted %d sessions: %v", n, err)
		}
	}},
	{name: "expire", cause: "cache miss", env: []string{"MESHNET_SHARD_CACHE_TTL_SECONDS=1"}, do: func(t *testing.T, m *testnet.Mesh, used []*testnet.Node) {
		// The answer stands still for longer than the TTL and less than it takes to be called dead.
		l := m.Link("head", used[0].Name)
		l.Hole()
		time.Sleep(1500 * time.Millisecond)
		l.Heal()
	}},
	{name: "restart", cause: "peer lost", ranges: []string{"0:15", "15:30"}, do: func(t *testing.T, m *testnet.Mesh, used []*testnet.Node) {
		if err := used[1].Restart(t.Context()); err != nil {
			t.Error(err)
		}
	}},
	{name: "kill", cause: "peer lost", do: func(t *testing.T, m *testnet.Mesh, used []*testnet.Node) {
		if err := used[1].Kill(); err != nil {
			t.Error(err)
		}
	}},
	{name: "freeze", cause: "peer lost", do: func(t *testing.T, m *testnet.Mesh, used []*testnet.Node) {
		if err := used[1].Freeze(); err != nil {
			t.Error(err)
		}
	}},
	{name: "cut between hops", do: func(t *testing.T, m *testnet.Mesh, used []*testnet.Node) {
		m.Link(used[0].Name, used[1].Name).Cut()
	}},
	{name: "black hole between hops", do: func(t *testing.T, m *testnet.Mesh, used []*testnet.Node) {
		m.Link(used[0].Name, used[1].Name).Hole()
	}},
	{name: "black hole to the head", do: func(t *testing.T, m *testnet.Mesh, used []*testnet.Node) {
		m.Link("head", used[1].Name).Hole()
	}},
	{name: "leave", cause: "leaving", do: func(t *testing.T, m *testnet.Mesh, used []*testnet.Node) {
		if err := used[1].Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}},
	{name: "pause", cause: "leaving", do: func(t *testing.T, m *testnet.Mesh, used []*testnet.Node) {
		if err := used[1].Pause(t.Context()); err != nil {
			t.Error(err)
			return
		}
		// It goes on elsewhere, and the peer comes back by itself.
		ctx := within(t, time.Minute)
		for {
			s, err := used[1].Status(ctx)
			if err == nil && s.Node.State == "paused" && len(s.Sessions) == 0 {
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				t.Errorf("after a minute: %+v, %v", s, err)
				return
			}
		}
		if err := used[1].Resume(ctx); err != nil {
			t.Error(err)
		}
		if err := used[1].WaitOnline(ctx); err != nil {
			t.Error(err)
		}
	}},
	{name: "a better peer joins", do: func(t *testing.T, m *testnet.Mesh, used []*testnet.Node) {
		if _, err := m.Add(t.Context(), "0:30"); err != nil {
			t.Error(err)
		}
	}},
}

// Whatever happens to a peer in mid-answer, the answer goes on and is the same.
func TestDisturbances(t *testing.T) {
	var alone undisturbed
	for _, d := range disturbances {
		t.Run(strings.ReplaceAll(d.name, " ", "-"), func(t *testing.T) {
			ranges := d.ranges
			if ranges == nil {
				ranges = []string{"0:15", "0:15", "15:30", "15:30"}
			}
			m := start(t, testnet.Config{Ranges: ranges, Env: d.env})
			ask := testnet.Ask{Prompt: "Tell me a long story about a lighthouse.", Tokens: 300, Temp: 0.7, Seed: 7}
			want := alone.answer(t, m, ask)

			var tokens int
			var notes []string
			done := make(chan struct{})
			hit := sync.OnceFunc(func() {
				go func() {
					defer close(done)
					d.do(t, m, used(t, m))
				}()
			})
			ask.OnEvent = func(e testnet.Event) {
				if e.Note != "" {
					notes = append(notes, e.Note)
				}
				if tokens += e.Tokens; tokens >= 40 {
					hit()
				}
			}
			got, err := m.Chat(within(t, 2*time.Minute), ask)
			if err != nil {
				t.Fatal(err)
			}
			<-done
			same(t, d.name, got, want)
			t.Logf("recoveries %+v, %d misses; notes %q", got.Recoveries, got.Cache.Misses, notes)
			found := d.cause == ""
			for _, r := range got.Recoveries {
				found = found || r.Cause == d.cause
			}
			if !found {
				t.Errorf("recoveries %+v, want one of %q", got.Recoveries, d.cause)
			}
			if d.name == "a better peer joins" && len(got.Recoveries) != 0 {
				t.Errorf("the answer was disturbed: %+v", got.Recoveries)
			}
		})
	}
}

// used are the nodes that hold a session now, in the order of their layers.
func used(t *testing.T, m *testnet.Mesh) []*testnet.Node {
	type hop struct {
		start int
		node  *testnet.Node
	}
	var hops []hop
	for _, n := range m.Nodes() {
		s, err := n.Status(t.Context())
		if err != nil {
			t.Error(err)
			continue
		}
		for _, session := range s.Sessions {
			hops = append(hops, hop{session.Start, n})
		}
	}
	slices.SortFunc(hops, func(a, b hop) int { return a.start - b.start })
	var nodes []*testnet.Node
	for _, h := range hops {
		nodes = append(nodes, h.node)
	}
	if len(nodes) < 2 {
		t.Fatalf("only %d nodes hold a session", len(nodes))
	}
	return nodes
}

// When nobody holds a layer any more, the answer ends with an error that names it.
func TestHole(t *testing.T) {
	m := start(t, testnet.Config{Ranges: []string{"0:15", "15:30"}})
	var tokens int
	var killed time.Time
	kill := sync.OnceFunc(func() {
		killed = time.Now()
		if err := m.Node("n2").Kill(); err != nil {
			t.Error(err)
		}
	})
	got, err := m.Chat(within(t, 2*time.Minute), testnet.Ask{Prompt: "Tell me a long story.", Tokens: 300, OnEvent: func(e testnet.Event) {
		if tokens += e.Tokens; tokens >= 20 {
			kill()
		}
	}})
	took := time.Since(killed)
	var exit *testnet.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("answer %+v, error %v; want the process to fail", got, err)
	}
	t.Logf("after %v: %s", took, exit.Stderr)
	if took > 40*time.Second {
		t.Errorf("it took %v to say so", took)
	}
	if !strings.Contains(string(exit.Stderr), "15") {
		t.Errorf("the error does not name the layers: %s", exit.Stderr)
	}
	if strings.Contains(string(exit.Stdout), `"finish_reason":"stop"`) {
		t.Errorf("it says stop: %s", exit.Stdout)
	}
}
