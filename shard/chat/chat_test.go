package chat

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/token"
	"github.com/meshnet/meshnet/testnet/realmodel"
	"go.uber.org/goleak"
)

// The test binary is also the child that renders.
const childVerb = "render-template"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == childVerb {
		os.Exit(ChildMain(os.Stdin, os.Stdout))
	}
	goleak.VerifyTestMain(m)
}

func childRunner(t testing.TB) Runner {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return NewRunner(exe, childVerb)
}

// inProcess renders here, for tests whose templates are known to end.
type inProcess struct{}

func (inProcess) Run(_ context.Context, request []byte) ([]byte, error) {
	var out bytes.Buffer
	serve(bytes.NewReader(request), &out)
	return out.Bytes(), nil
}

type conversation struct {
	Name     string    `json:"name"`
	Messages []Message `json:"messages"`
	Add      bool      `json:"add_generation_prompt"`
	Rendered string    `json:"rendered"`
	Template string    `json:"template"` // jinja.jsonl only
}

func conversations(t testing.TB, path string) (out []conversation) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c conversation
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	if len(out) < 6 {
		t.Fatalf("only %d conversations in %s", len(out), path)
	}
	return out
}

// model opens the tokenizer and template of a real model.
func model(t testing.TB, path string) (*token.Tokenizer, Template) {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := token.New(f)
	if err != nil {
		t.Fatal(err)
	}
	return tok, FromModel(f, tok)
}

// The rendered texts are Python's Jinja2 on the files' own templates.
func TestGoldenSmolLM2(t *testing.T) {
	tok, tmpl := model(t, realmodel.SmolLM2(t))
	checkGolden(t, tok, tmpl, "testdata/smollm2.jsonl")
}

func TestGoldenQwen2(t *testing.T) {
	tok, tmpl := model(t, realmodel.Qwen05(t))
	checkGolden(t, tok, tmpl, "testdata/qwen2.jsonl")
}

func checkGolden(t *testing.T, tok *token.Tokenizer, tmpl Template, path string) {
	r := childRunner(t)
	for _, c := range conversations(t, path) {
		text, err := Render(t.Context(), tmpl.Source, tmpl.BOS, tmpl.EOS, c.Messages, c.Add, r)
		if err != nil || text != c.Rendered {
			t.Errorf("%s: Render = %q, %v\nwant %q", c.Name, text, err, c.Rendered)
		}
		p, err := Encode(t.Context(), r, tok, tmpl, c.Messages, c.Add)
		if err != nil || p.Text != c.Rendered {
			t.Errorf("%s: Encode's text = %q, %v\nwant %q", c.Name, p.Text, err, c.Rendered)
		}
		want, err := tok.Encode(c.Rendered, true)
		if err != nil || !slices.Equal(p.IDs, want) {
			t.Errorf("%s: ids %v, %v; the rendered text alone gives %v", c.Name, p.IDs, err, want)
		}
	}
}

// A template can do anything that a program can. Each of these ends in an error
// that says what it did, and this process lives.
func TestBombs(t *testing.T) {
	const long = "CPU time|not rendered after" // the clock comes first on a very busy machine
	bombs := []struct{ name, template, want string }{
		{"recursion", `{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}`, "calls itself without end"},
		{"long range", `{% for i in range(2000000000) %}{% endfor %}`, "of memory|" + long},
		{"nested ranges", `{% for a in range(1000000) %}{% for b in range(1000000) %}{% endfor %}{% endfor %}`, long},
		{"string of 10 GB", `{{ 'a' * 10000000000 }}`, "it needs more than 1024 MiB of memory"},
		{"string beyond int", `{{ 'a' * 9223372036854775807 }}`, ""},
		{"doubling", `{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}`, "of memory|" + long},
		{"long output", `{% for i in range(1000) %}{{ 'a' * 100000 }}{% endfor %}`, "writes more than|of memory|" + long},
		{"file", `{% include '/etc/hostname' %}`, "include"},
		{"deep nesting", "{{ (" + strings.Repeat("(", 500000) + "1" + strings.Repeat(")", 500000) + ") }}", ""},
		{"not Jinja", `{% if %}`, "parse"},
		{"cut off", `{{ 'a`, ""},
		{"too long", strings.Repeat("a", maxTemplate+1), "more than"},
	}
	for _, b := range bombs {
		t.Run(b.name, func(t *testing.T) {
			msgs := []Message{{Role: "user", Content: "Hi"}}
			out, err := Render(t.Context(), b.template, "", "", msgs, true, childRunner(t))
			if err == nil && b.name == "deep nesting" {
				return // an engine may cope
			}
			if !errors.Is(err, ErrTemplate) || !regexp.MustCompile(b.want).MatchString(err.Error()) {
				t.Fatalf("got %.80q, %v; want an error that says %q", out, err, b.want)
			}
		})
	}
}

func TestRender(t *testing.T) {
	user := []Message{{Role: "user", Content: "Hi"}}
	tests := []struct {
		name, template string
		msgs           []Message
		want, fault    string
		kind           error
	}{
		{name: "one newline at the end is dropped", template: "a\n\n", msgs: user, want: "a\n"},
		{name: "tokens", template: "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", msgs: user, want: "<s>Hi</s>"},
		{name: "no tools", template: "{% if tools is not none %}x{% endif %}{% if documents %}y{% endif %}", msgs: user, want: ""},
		{name: "empty content", template: "[{{ messages[0]['content'] }}]", msgs: []Message{{Role: "user"}}, want: "[]"},
		{name: "developer is system", template: "{{ messages[0].role }}", msgs: []Message{{Role: "developer"}}, want: "system"},
		{name: "template's refusal", template: "{{ raise_exception('System role not supported') }}", msgs: user, fault: "System role not supported", kind: ErrMessages},
		{name: "no messages", template: "", fault: "0 messages", kind: ErrMessages},
		{name: "unknown role", template: "", msgs: []Message{{Role: "user>\nx"}}, fault: `"user>\nx"`, kind: ErrMessages},
		{name: "broken UTF-8", template: "", msgs: []Message{{Role: "user", Content: "a\xff"}}, fault: "not valid UTF-8", kind: ErrMessages},
		{name: "too much text", template: "", msgs: []Message{{Role: "user", Content: strings.Repeat("a", maxContent+1)}}, fault: "bytes", kind: ErrMessages},
		{name: "function that is not there", template: "{{ nope() }}", msgs: user, fault: "nope", kind: ErrTemplate},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Render(t.Context(), tt.template, "<s>", "</s>", tt.msgs, false, inProcess{})
			if got != tt.want || !errors.Is(err, tt.kind) || tt.kind != nil && !strings.Contains(err.Error(), tt.fault) {
				t.Fatalf("got %q, %v; want %q, %v %q", got, err, tt.want, tt.kind, tt.fault)
			}
		})
	}
}

func TestRunnerFaults(t *testing.T) {
	msgs := []Message{{Role: "user", Content: "Hi"}}
	if _, err := Render(t.Context(), ChatML, "", "", msgs, true, NewRunner("/no/such/program")); err == nil || errors.Is(err, ErrTemplate) ||
		!strings.Contains(err.Error(), `"/no/such/program"`) {
		t.Errorf("a runner that can't start: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Render(ctx, ChatML, "", "", msgs, true, childRunner(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: %v", err)
	}
	var out bytes.Buffer
	if code := serve(strings.NewReader("{"), &out); code != 0 || !strings.Contains(out.String(), "read the request") {
		t.Errorf("a request cut off: exit %d, %s", code, out.Bytes())
	}
}

func TestMessageJSON(t *testing.T) {
	tests := []struct{ in, want, fault string }{
		{`{"role":"user","content":"a"}`, "a", ""},
		{`{"role":"assistant","content":null}`, "", ""},
		{`{"role":"assistant"}`, "", ""},
		{`{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, "a\nb", ""},
		{`{"role":"user","content":[]}`, "", ""},
		{`{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}`, "", `"image_url"`},
		{`{"role":"user","content":[{"type":"text"}]}`, "", "only"},
		{`{"role":"user","content":7}`, "", "neither text nor"},
		{`{"role":7}`, "", "cannot unmarshal"},
	}
	for _, tt := range tests {
		var m Message
		err := json.Unmarshal([]byte(tt.in), &m)
		if tt.fault == "" && (err != nil || m.Content != tt.want) {
			t.Errorf("%s: %q, %v; want %q", tt.in, m.Content, err, tt.want)
		}
		if tt.fault != "" && (!errors.Is(err, ErrMessages) || !strings.Contains(err.Error(), tt.fault)) {
			t.Errorf("%s: %v; want an error that says %s", tt.in, err, tt.fault)
		}
	}
}
