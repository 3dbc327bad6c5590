// Package openai tests the head's API with OpenAI's own Go client against real
// processes: two volunteers and a head on the model that is made from a seed, so
// no network is needed. It is a module of its own because compiling the client
// takes minutes.
//
// Start reading at TestChat.
package openai

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

var mesh struct {
	url  string
	stop []func()
}

func TestMain(m *testing.M) {
	code := 1
	if err := up(); err != nil {
		fmt.Fprintln(os.Stderr, "start the mesh:", err)
	} else {
		code = m.Run()
	}
	for i := len(mesh.stop) - 1; i >= 0; i-- {
		mesh.stop[i]()
	}
	os.Exit(code)
}

// up builds the program and starts two volunteers and a head.
func up() error {
	dir, err := os.MkdirTemp("", "openai")
	if err != nil {
		return err
	}
	mesh.stop = append(mesh.stop, func() { os.RemoveAll(dir) })
	bin := filepath.Join(dir, "meshnet")
	build := exec.Command("go", "build", "-o", bin, "./cmd/meshnet")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	common := []string{"--home", dir, "--json", "--model", "tiny", "--network", "openai", "--listen", "127.0.0.1:0", "--no-mdns", "--no-quic"}
	var first struct{ Node struct{ Addrs []string } }
	if err := start(bin, &first, append([]string{"join", "--name", "a", "--layers", "0:5"}, common...)...); err != nil {
		return err
	}
	common = append(common, "--peer", first.Node.Addrs[0])
	var second any
	if err := start(bin, &second, append([]string{"join", "--name", "b", "--layers", "3:8"}, common...)...); err != nil {
		return err
	}
	var api struct{ URL string }
	if err := start(bin, &api, append([]string{"serve", "--port", "0"}, common...)...); err != nil {
		return err
	}
	mesh.url = api.URL
	return nil
}

// start runs a node and reads the line that says that it is up.
func start(bin string, up any, args ...string) error {
	cmd := exec.Command(bin, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	mesh.stop = append(mesh.stop, func() {
		cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		late.Stop()
	})
	stuck := time.AfterFunc(60*time.Second, func() { cmd.Process.Kill() })
	defer stuck.Stop()
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("%s said nothing: %w", args[0], err)
	}
	return json.Unmarshal(line, up)
}

func client(o ...option.RequestOption) openai.Client {
	return openai.NewClient(append([]option.RequestOption{option.WithBaseURL(mesh.url + "/"), option.WithAPIKey("none"), option.WithMaxRetries(0)}, o...)...)
}

func ask(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:               "tiny",
		Messages:            []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage(text)},
		MaxCompletionTokens: openai.Int(24),
		Temperature:         openai.Float(0.9),
		Seed:                openai.Int(7),
	}
}

func context30(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestModels(t *testing.T) {
	c := client()
	page, err := c.Models.List(context30(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Data) != 1 || page.Data[0].ID != "tiny" {
		t.Fatalf("models: %+v", page.Data)
	}
	if m, err := c.Models.Get(context30(t), "tiny"); err != nil || m.ID != "tiny" {
		t.Errorf("get: %+v, %v", m, err)
	}
}

// TestChat: whole and streamed give the same text, usage and reason; the same
// seed gives the same text again.
func TestChat(t *testing.T) {
	c := client()
	whole, err := c.Chat.Completions.New(context30(t), ask("Hello"))
	if err != nil {
		t.Fatal(err)
	}
	choice := whole.Choices[0]
	if choice.Message.Content == "" || choice.FinishReason != "length" || whole.Usage.CompletionTokens != 24 ||
		whole.Usage.TotalTokens != whole.Usage.PromptTokens+24 {
		t.Errorf("whole: %s", whole.RawJSON())
	}

	p := ask("Hello")
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := c.Chat.Completions.NewStreaming(context30(t), p)
	var acc openai.ChatCompletionAccumulator
	pieces := 0
	for stream.Next() {
		if !acc.AddChunk(stream.Current()) {
			t.Fatalf("chunk does not fit: %s", stream.Current().RawJSON())
		}
		pieces++
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if got := acc.Choices[0]; got.Message.Content != choice.Message.Content || got.FinishReason != "length" || got.Message.Role != "assistant" {
		t.Errorf("streamed %q (%s), whole %q", got.Message.Content, got.FinishReason, choice.Message.Content)
	}
	if acc.Usage.TotalTokens != whole.Usage.TotalTokens || pieces < 10 {
		t.Errorf("usage %+v after %d pieces", acc.Usage, pieces)
	}
}

// TestStop: the text ends before the stop string, streamed too.
func TestStop(t *testing.T) {
	c := client()
	whole, err := c.Chat.Completions.New(context30(t), ask("Hello"))
	if err != nil {
		t.Fatal(err)
	}
	text := whole.Choices[0].Message.Content
	stop := text[len(text)/2 : len(text)/2+2]
	want, _, _ := strings.Cut(text, stop)
	p := ask("Hello")
	p.Stop.OfStringArray = []string{stop}
	cut, err := c.Chat.Completions.New(context30(t), p)
	if err != nil {
		t.Fatal(err)
	}
	if got := cut.Choices[0]; got.Message.Content != want || got.FinishReason != "stop" {
		t.Errorf("stop %q: %q (%s), want %q", stop, got.Message.Content, got.FinishReason, want)
	}
	p.Stop = openai.ChatCompletionNewParamsStopUnion{OfString: openai.String(stop)}
	stream := c.Chat.Completions.NewStreaming(context30(t), p)
	var streamed strings.Builder
	for stream.Next() {
		if ch := stream.Current().Choices; len(ch) > 0 {
			streamed.WriteString(ch[0].Delta.Content)
		}
	}
	if stream.Err() != nil || streamed.String() != want {
		t.Errorf("streamed %q, %v", streamed.String(), stream.Err())
	}
}

func TestLogprobs(t *testing.T) {
	p := ask("Hello")
	p.Logprobs, p.TopLogprobs = openai.Bool(true), openai.Int(3)
	p.Temperature = openai.Float(0)
	c := client()
	got, err := c.Chat.Completions.New(context30(t), p)
	if err != nil {
		t.Fatal(err)
	}
	tokens := got.Choices[0].Logprobs.Content
	if len(tokens) != 24 {
		t.Fatalf("%d tokens with log probabilities, want 24", len(tokens))
	}
	for i, tok := range tokens {
		if tok.Logprob > 0 || len(tok.TopLogprobs) != 3 || tok.TopLogprobs[0].Token != tok.Token || tok.TopLogprobs[0].Logprob < tok.TopLogprobs[1].Logprob {
			t.Errorf("token %d: %s", i, tok.RawJSON())
		}
	}
}

func TestCompletions(t *testing.T) {
	c := client()
	p := openai.CompletionNewParams{Model: "tiny", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once upon a")},
		MaxTokens: openai.Int(12), Temperature: openai.Float(0)}
	whole, err := c.Completions.New(context30(t), p)
	if err != nil {
		t.Fatal(err)
	}
	stream := c.Completions.NewStreaming(context30(t), p)
	var text strings.Builder
	for stream.Next() {
		text.WriteString(stream.Current().Choices[0].Text)
	}
	if stream.Err() != nil || text.String() != whole.Choices[0].Text || whole.Usage.CompletionTokens != 12 {
		t.Errorf("streamed %q, whole %s, %v", text.String(), whole.RawJSON(), stream.Err())
	}
}

// TestErrors: the client understands what went wrong.
func TestErrors(t *testing.T) {
	c := client()
	for name, change := range map[string]struct {
		f      func(*openai.ChatCompletionNewParams)
		status int
		code   string
	}{
		"unknown model": {func(p *openai.ChatCompletionNewParams) { p.Model = "gpt-9" }, 404, "model_not_found"},
		"two answers":   {func(p *openai.ChatCompletionNewParams) { p.N = openai.Int(2) }, 400, ""},
		"too long": {func(p *openai.ChatCompletionNewParams) {
			p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(strings.Repeat("word ", 20000))}
		}, 400, "context_length_exceeded"},
	} {
		p := ask("Hello")
		change.f(&p)
		_, err := c.Chat.Completions.New(context30(t), p)
		var e *openai.Error
		if !errors.As(err, &e) || e.StatusCode != change.status || e.Code != change.code {
			t.Errorf("%s: %v", name, err)
		}
		stream := c.Chat.Completions.NewStreaming(context30(t), p)
		for stream.Next() {
			t.Errorf("%s: a streamed chunk", name)
		}
		if !errors.As(stream.Err(), &e) || e.StatusCode != change.status {
			t.Errorf("%s, streamed: %v", name, stream.Err())
		}
	}
}

// TestCancel: when the client goes, the server's request ends, long before its
// thousand tokens would.
func TestCancel(t *testing.T) {
	c := client()
	p := ask("Hello")
	p.MaxCompletionTokens = openai.Int(8000)
	ctx, leave := context.WithCancel(context30(t))
	stream := c.Chat.Completions.NewStreaming(ctx, p)
	for i := 0; i < 5 && stream.Next(); i++ {
	}
	leave()
	for stream.Next() {
	}
	if !errors.Is(stream.Err(), context.Canceled) {
		t.Errorf("after leaving: %v", stream.Err())
	}
	deadline := time.Now().Add(5 * time.Second)
	for active(t) != "0" {
		if time.Now().After(deadline) {
			t.Fatal("the request still runs")
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// active reads the number of running requests from /metrics.
func active(t *testing.T) string {
	t.Helper()
	c := client()
	var resp []byte
	if err := c.Get(context30(t), "../metrics", nil, &resp); err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(strings.NewReader(string(resp))); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "meshnet_api_active_requests "); ok {
			return v
		}
	}
	t.Fatal("no such metric")
	return ""
}

// TestSession: every answer names its session, and readiness is a real forward.
func TestSession(t *testing.T) {
	var session string
	c := client(option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		resp, err := next(r)
		if err == nil {
			session = resp.Header.Get("X-Meshnet-Session")
		}
		return resp, err
	}))
	if _, err := c.Chat.Completions.New(context30(t), ask("Hello")); err != nil {
		t.Fatal(err)
	}
	if len(session) != 32 {
		t.Errorf("session %q", session)
	}
	var ready []byte
	if err := c.Get(context30(t), "../readyz", nil, &ready); err != nil || string(ready) != "ready\n" {
		t.Errorf("readyz: %q, %v", ready, err)
	}
}

// TestCurl: the API as a person meets it in a shell.
func TestCurl(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Log("no curl on this machine: not tried")
		return
	}
	out, err := exec.CommandContext(context30(t), "bash", "curl.sh", mesh.url, "tiny").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
