package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard"
	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/tiny"
)

// tiny has rows of 128 values, and of 256 in ffn_down.
func TestQuantizeVerb(t *testing.T) {
	a, out := modelApp(t)
	said := a.stderr.(*bytes.Buffer)
	dir := t.TempDir()
	in, f16, q4k := filepath.Join(dir, "in.gguf"), filepath.Join(dir, "f16.gguf"), filepath.Join(dir, "q4k.gguf")
	if err := tiny.WriteFile(in, 1); err != nil {
		t.Fatal(err)
	}
	run := func(in, out, typ string, force bool) error {
		return (&modelQuantizeCmd{In: in, Out: out, Type: typ, Force: force}).Run(a)
	}
	for _, tc := range []struct {
		name, in, out, typ string
		force              bool
		stdout, stderr     string // parts
		err                string
		code               int
	}{
		{"to F16", in, f16, "f16", false, "Q8_0  F16  57", "writing f16.gguf as F16", "", 0},
		{"from F16 to a K type", f16, q4k, "Q4_K", false, "F16   Q4_K  8", "49 matrices have rows of 128 values, no multiple of the 256 of Q4_K: they become Q5_0", "", 0},
		{"it exists", f16, q4k, "Q4_K", false, "", "", "exists; --force overwrites", exitUsage},
		{"twice", in, q4k, "q4_0", true, "Q8_0  Q4_0  5", "warning: 57 tensors are quantized already (57 of Q8_0): quality is lost a second time", "", 0},
		{"onto itself", in, filepath.Join(dir, ".", "in.gguf"), "q4_0", true, "", "", "the file to read", exitUsage},
		{"onto a folder", in, dir, "q4_0", true, "", "", "is not a file", exitUsage},
		{"no such type", in, q4k, "q4_k_m", true, "", "", "those are F32, F16,", exitUsage},
		{"no such model", "nope", q4k, "q4_0", true, "", "", `unknown model "nope"`, exitModel},
		{"no such folder", in, filepath.Join(dir, "no", "x.gguf"), "q4_0", false, "", "", "no such file or directory", exitFailure},
	} {
		out.Reset()
		said.Reset()
		err := run(tc.in, tc.out, tc.typ, tc.force)
		if !strings.Contains(out.String(), tc.stdout) || !strings.Contains(said.String(), tc.stderr) {
			t.Errorf("%s: want %q and %q in\n%s\n%s", tc.name, tc.stdout, tc.stderr, out, said)
		}
		if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) || exitCode(err) != tc.code {
			t.Errorf("%s: error %v (%d), want %q (%d)", tc.name, err, exitCode(err), tc.err, tc.code)
		}
	}
	m, err := shard.Open(q4k)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if q := m.Info().Plan[7].Mixer; q == nil {
		t.Error("the model has no layer 7")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".quantize-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	a.json = true
	out.Reset()
	var j quantizedJSON
	if err := run(in, q4k, "Q8_0", true); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &j); err != nil || j.Type != "Q8_0" || j.Size == 0 || j.SizeIn == 0 || len(j.Warnings) != 0 || j.Twice != 0 {
		t.Errorf("%v: %s", err, out)
	}
	// What is of the type already is copied: only the output matrix, F32 in tiny, is new.
	f, g := openGGUF(t, in), openGGUF(t, q4k)
	for i, ts := range f.Tensors() {
		if got := g.Tensors()[i]; ts.Name == "output.weight" {
			if got.Type != gguf.Q8_0 {
				t.Errorf("%s is %s", got.Name, got.Type)
			}
		} else if !bytes.Equal(ts.Data, got.Data) {
			t.Errorf("%s is not a copy", ts.Name)
		}
	}

	// A source that is damaged ends in an error and no file.
	data, err := os.ReadFile(f16)
	if err != nil {
		t.Fatal(err)
	}
	w := openGGUF(t, f16)
	broken, _ := w.Tensor("blk.2.ffn_up.weight")
	at := bytes.Index(data, broken.Data[:64])
	data[at], data[at+1] = 0, 0x7c // an infinity
	bad := filepath.Join(dir, "bad.gguf")
	if err := os.WriteFile(bad, data, 0o644); err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(dir, "fresh.gguf")
	if err := run(bad, fresh, "Q4_0", false); err == nil || !strings.Contains(err.Error(), `tensor "blk.2.ffn_up.weight": row 0: value 0 is +Inf`) {
		t.Errorf("a damaged file: %v", err)
	}
	if _, err := os.Stat(fresh); !os.IsNotExist(err) {
		t.Errorf("a file came of it: %v", err)
	}
}

func openGGUF(t *testing.T, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestBenchVerb(t *testing.T) {
	a, out := modelApp(t)
	a.threads = 2
	in := filepath.Join(t.TempDir(), "in.gguf")
	if err := tiny.WriteFile(in, 1); err != nil {
		t.Fatal(err)
	}
	c := benchEngineCmd{modelFlag: modelFlag{in}, Prefill: 8, Decode: 3, Depth: 5, Batch: 2, Rounds: 2}
	if err := c.Run(a); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"meshnet tiny, seed 1 (llama, Q8_0 F32)", "2 threads", "weights 1.4 MB", "prefill 8 at 5 ", "decode 3 at 5, 2 sessions ", "B/s read", "op/s, "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	a.json = true
	out.Reset()
	if err := c.Run(a); err != nil {
		t.Fatal(err)
	}
	var r map[string]any
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r["prefill_runs"].([]any)) != 2 {
		t.Errorf("%v: %s", err, out)
	}
	for _, key := range []string{"prefill_tokens_per_s", "decode_tokens_per_s", "prefill_percent_of_limit", "decode_percent_of_limit", "load_seconds", "weight_bytes"} {
		if v, ok := r[key].(float64); !ok || v <= 0 {
			t.Errorf("%s is %v", key, r[key])
		}
	}
	c.Rounds = 0
	if err := c.Run(a); exitCode(err) != exitUsage {
		t.Errorf("no rounds: %v", err)
	}
	c.Rounds, c.Depth = 1, 9000
	if err := c.Run(a); err == nil || !strings.Contains(err.Error(), "context of 8192") {
		t.Errorf("too deep: %v", err)
	}
}
