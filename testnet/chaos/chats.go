package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/meshnet/meshnet/testnet"
)

// question is asked again and again; want is the undisturbed answer.
type question struct {
	testnet.Ask
	want *testnet.Answer
}

// words make questions of any length that differ from their first word on.
var words = strings.Fields(`river lantern copper orchard window thunder pepper saddle harbour velvet engine meadow
	ladder candle winter pocket barley mirror anchor ribbon cellar feather market tunnel silver garden basket morning`)

// questions makes n of about so many tokens each, every second one sampled.
func questions(n, tokens, answer int) []*question {
	var out []*question
	for i := range n {
		r := rand.New(rand.NewPCG(uint64(i), 0x71756573))
		var b strings.Builder
		fmt.Fprintf(&b, "Story number %d. Here are some words:", i+1)
		for range max(tokens-45, 1) / 2 { // such a word and its comma are two tokens of most vocabularies
			b.WriteString(" " + words[r.IntN(len(words))] + ",")
		}
		b.WriteString(" that was all. Tell a long story with as many of them as you can.")
		// The API adds no system prompt, so nobody does.
		q := &question{Ask: testnet.Ask{Prompt: b.String(), Tokens: answer, Args: []string{"--system="}}}
		if i%2 == 1 {
			q.Temp, q.Seed = 0.8, uint64(100+i)
		}
		out = append(out, q)
	}
	return out
}

// chat is one answer as it comes.
type chat struct {
	q     *question
	head  string
	began time.Time

	mu      sync.Mutex
	session string      // first hex digits, once known
	tokens  []time.Time // when each piece of text came
	text    strings.Builder
	finish  string
	err     error
	ended   time.Time
	mended  []testnet.Recovery // what the head says of it
}

func (c *chat) piece(text string) {
	if text == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens = append(c.tokens, time.Now())
	c.text.WriteString(text)
}

// answering says that the answer has begun and is not near its end.
func (c *chat) answering() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.tokens) > 0 && len(c.tokens) < c.q.Tokens*3/4
}

// asker is one of the chats that run at once: it asks until told to stop.
type asker struct {
	r    *run
	head string // of its own, or the API's
	url  string // of the API; "" asks by a process
	rand *rand.Rand
}

func (a *asker) loop(ctx, hard context.Context) {
	for ctx.Err() == nil {
		c := &chat{q: a.r.questions[a.rand.IntN(len(a.r.questions))], head: a.head, began: time.Now()}
		a.r.begin(c)
		within, cancel := context.WithTimeout(hard, a.r.cfg.Patience)
		var err error
		if a.url != "" {
			err = a.overHTTP(within, c)
			a.r.askHead(within, c)
		} else {
			err = a.overProcess(within, c)
		}
		if err != nil && within.Err() != nil && hard.Err() == nil {
			err = fmt.Errorf("hangs: no end after %v: %w", a.r.cfg.Patience, err)
		}
		cancel()
		a.r.end(c, err)
		if err != nil { // an error that comes at once must not fill the report
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
}

func (a *asker) overProcess(ctx context.Context, c *chat) error {
	ask := c.q.Ask
	ask.Head = a.head
	ask.OnEvent = func(e testnet.Event) { c.piece(e.Text) }
	got, err := a.r.mesh.Chat(ctx, ask)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finish, c.mended = got.FinishReason, got.Recoveries
	if got.Text != c.text.String() {
		return fmt.Errorf("the report's text is not the streamed one")
	}
	return nil
}

// overHTTP asks the API for a stream.
func (a *asker) overHTTP(ctx context.Context, c *chat) error {
	body, err := json.Marshal(map[string]any{
		"model": a.r.cfg.Model, "stream": true, "max_tokens": c.q.Tokens, "temperature": c.q.Temp, "seed": c.q.Seed,
		"messages": []map[string]string{{"role": "user", "content": c.q.Prompt}},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, "POST", a.url+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(b))
	}
	c.mu.Lock()
	c.session = resp.Header.Get("X-Meshnet-Session")
	c.mu.Unlock()
	return c.events(resp.Body)
}

// events reads server-sent events up to [DONE].
func (c *chat) events(body io.Reader) error {
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return nil
		}
		var e struct {
			Choices []struct {
				Delta        struct{ Content string }
				FinishReason *string `json:"finish_reason"`
			}
			Error *struct{ Message string }
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return fmt.Errorf("event %q: %w", data, err)
		}
		if e.Error != nil {
			return errors.New(e.Error.Message)
		}
		for _, ch := range e.Choices {
			c.piece(ch.Delta.Content)
			if ch.FinishReason != nil {
				c.mu.Lock()
				c.finish = *ch.FinishReason
				c.mu.Unlock()
			}
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return errors.New("the stream ended without [DONE]")
}
