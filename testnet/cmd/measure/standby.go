package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/meshnet/meshnet/testnet"
)

const (
	standbyAnswer = 300 // tokens of an answer
	standbyStrike = 60  // tokens before the kill
	// standbyNear is how many rows a standby may be behind to count as warm.
	standbyNear = 16
	// standbyAfter are the silences among which the one is that the kill made: a token
	// or two may have been on their way already.
	standbyAfter = 3
)

var errOver = errors.New("the answer was over before the hop was killed")

// side is one column: with or without standbys.
type side struct {
	flag         string
	silence      []float64 // ms from the kill to the next token
	rows, behind []float64 // computed again; lacking at the kill
	speed        []float64 // tokens/s before the kill
}

// standby kills a hop in mid-answer, each of them in its turn, without and with
// another peer kept ready for it, and shows how long the client waits.
func (m *measure) standby() error {
	mesh, err := m.mesh(append(m.equal(3), m.equal(3)...)...)
	if err != nil {
		return err
	}
	defer mesh.Close()
	prompt := story(1)
	whole, err := mesh.Chat(m.ctx, testnet.Ask{Prompt: prompt, Tokens: standbyAnswer, Args: []string{"--system="}})
	if err != nil {
		return err
	}
	if len(whole.IDs) < standbyAnswer {
		return fmt.Errorf("the answer has only %d tokens", len(whole.IDs))
	}
	without, with := &side{flag: "--no-standby"}, &side{flag: "--standby"}
	for round := range m.rounds {
		for hop := range 3 {
			sides := []*side{without, with}
			if (round+hop)%2 == 1 {
				slices.Reverse(sides)
			}
			for _, s := range sides {
				if err := m.strike(mesh, s, prompt, hop, whole); err != nil {
					return fmt.Errorf("hop %d, %s: %w", hop, s.flag, err)
				}
			}
		}
	}
	fmt.Printf("kill -9 of a hop of 3, %d to %d tokens of context, every layer held by two peers\n\n", len(whole.PromptIDs)+standbyStrike, len(whole.PromptIDs)+standbyAnswer)
	fmt.Println("| | kills | from the kill to the next token, ms: p50 | p99 (of fewer than 100: the most) | rows behind at the kill: p50, most | rows computed again: p50, most | tokens/s before |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, s := range []*side{without, with} {
		fmt.Printf("| %s | %d | %.0f | %.0f | %.0f, %.0f | %.0f, %.0f | %.1f |\n", s.flag, len(s.silence), percentile(s.silence, 50), percentile(s.silence, 99),
			percentile(s.behind, 50), slices.Max(s.behind), percentile(s.rows, 50), slices.Max(s.rows), median(s.speed))
	}
	return nil
}

// story is a question of about 470 tokens that is answered at length.
func story(seed uint64) string {
	words := strings.Fields("river lantern copper orchard window thunder pepper saddle harbour velvet engine meadow winter pocket mirror anchor")
	r := rand.New(rand.NewPCG(seed, 0x73746f7279))
	var b strings.Builder
	b.WriteString("Here are some words:")
	for range 195 {
		b.WriteString(" " + words[r.IntN(len(words))] + ",")
	}
	b.WriteString(" that was all. Tell a long story with as many of them as you can.")
	return b.String()
}

// percentile is the smallest that p percent do not exceed.
func percentile(x []float64, p int) float64 {
	s := slices.Sorted(slices.Values(x))
	return s[(len(s)*p+99)/100-1]
}

// strike asks once, kills a hop on the way and starts it again.
func (m *measure) strike(mesh *testnet.Mesh, s *side, prompt string, hop int, want *testnet.Answer) error {
	var mu sync.Mutex
	var tokens []time.Time
	ready := make(chan struct{})
	ctx, cancel := context.WithTimeout(m.ctx, 2*time.Minute)
	defer cancel()
	var struck time.Time
	var victim *testnet.Node
	var behind int
	killed := make(chan error, 1)
	go func() {
		select {
		case <-ready:
		case <-ctx.Done():
			killed <- errOver
			return
		}
		var err error
		if victim, behind, err = m.target(ctx, mesh, s, hop); err == nil {
			struck = time.Now()
			err = victim.Kill()
		}
		killed <- err
	}()
	got, err := mesh.Chat(ctx, testnet.Ask{Prompt: prompt, Tokens: standbyAnswer, Args: []string{"--system=", s.flag}, OnEvent: func(e testnet.Event) {
		if e.Tokens == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if tokens = append(tokens, time.Now()); len(tokens) == standbyStrike {
			close(ready)
		}
	}})
	if err != nil {
		return err
	}
	cancel()
	if err := <-killed; err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	i, _ := slices.BinarySearchFunc(tokens, struck, time.Time.Compare)
	if later := tokens[i:]; len(later) <= standbyAfter {
		return errOver
	}
	last, longest, end := struck, time.Duration(-1), struck
	for _, t := range tokens[i:][:standbyAfter] {
		if t.Sub(last) > longest {
			longest, end = t.Sub(last), t
		}
		last = t
	}
	if got.Text != want.Text {
		return errors.New("another text than the undisturbed one")
	}
	rows := 0
	for _, r := range got.Recoveries {
		rows += r.RowsReplayed
	}
	if len(got.Recoveries) == 0 {
		return errors.New("nothing was recovered: the hop was not in the route")
	}
	s.silence = append(s.silence, float64(end.Sub(struck).Microseconds())/1000)
	s.rows, s.behind = append(s.rows, float64(rows)), append(s.behind, float64(behind))
	s.speed = append(s.speed, float64(standbyStrike-1)/tokens[standbyStrike-1].Sub(tokens[0]).Seconds())
	fmt.Fprintf(os.Stderr, "hop %d %s: %.0f ms, %d rows\n", hop, s.flag, s.silence[len(s.silence)-1], rows)
	return victim.Restart(m.ctx)
}

// target is the node that serves as hop now, and how many rows its standby lacks; it
// waits until that is warm.
func (m *measure) target(ctx context.Context, mesh *testnet.Mesh, s *side, hop int) (*testnet.Node, int, error) {
	h, err := mesh.Head("head")
	if err != nil {
		return nil, 0, err
	}
	for {
		st, err := h.Status(ctx)
		if err != nil {
			return nil, 0, err
		}
		behind := 0
		if s.flag == "--standby" {
			behind = standbyNear + 1
		}
		peer := ""
		for _, x := range st.Sessions {
			if x.Start != hop*m.layers/3 {
				continue
			}
			if x.Standby {
				behind = x.Behind
			} else {
				peer = x.Peer
			}
		}
		if peer == "" {
			return nil, 0, fmt.Errorf("no hop %d in %+v", hop, st.Sessions)
		}
		if behind <= standbyNear {
			return mesh.Node(mesh.Name(peer)), behind, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}
