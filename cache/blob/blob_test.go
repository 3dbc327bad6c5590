package blob

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// held keeps the child's locks: a file that nobody can reach is closed.
var held []any

// TestMain is also the child process of the tests that need several: it acts
// on BLOB_TEST_CHILD instead of running tests.
func TestMain(m *testing.M) {
	switch dir := os.Getenv("BLOB_TEST_DIR"); os.Getenv("BLOB_TEST_CHILD") {
	case "half": // write half a blob, both kinds, and hang until killed
		s, err := Open(dir)
		check(err)
		for _, key := range []string{"tmp", "part"} {
			l, err := s.Lock(context.Background(), key, nil)
			check(err)
			begin := l.Create
			if key == "part" {
				begin = l.Resume
			}
			w, err := begin()
			check(err)
			_, err = io.WriteString(w, "half of ")
			check(err)
			held = append(held, l, w)
		}
		fmt.Println("ready")
		select {}
	case "race": // get the blob "the one", making it only if it is not there
		s, err := Open(dir)
		check(err)
		waited := false
		l, err := s.Lock(context.Background(), "the one", func() { waited = true })
		check(err)
		defer l.Unlock()
		if _, ok := s.Path(sha256.Sum256([]byte("the one"))); ok {
			fmt.Printf("found waited=%v\n", waited)
			os.Exit(0)
		}
		w, err := l.Create()
		check(err)
		for _, b := range []byte("the one") {
			_, err = w.Write([]byte{b})
			check(err)
			time.Sleep(10 * time.Millisecond)
		}
		_, _, err = w.Commit(sha256.Sum256([]byte("the one")), 7)
		check(err)
		fmt.Println("made")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func check(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func child(t *testing.T, what, dir string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "BLOB_TEST_CHILD="+what, "BLOB_TEST_DIR="+dir)
	return cmd
}

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func lock(t *testing.T, s *Store, key string) *Lock {
	t.Helper()
	l, err := s.Lock(t.Context(), key, func() { t.Fatal("the lock is held") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Unlock)
	return l
}

func create(t *testing.T, s *Store, key, text string) *Writer {
	t.Helper()
	w, err := lock(t, s, key).Create()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	return w
}

func left(t *testing.T, s *Store) (names []string) {
	entries, err := os.ReadDir(s.tmp(""))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, filepath.Ext(e.Name()))
	}
	return names
}

func TestCommit(t *testing.T) {
	hello := Sum(sha256.Sum256([]byte("hello")))
	for _, tc := range []struct {
		name string
		want Sum
		size int64
		err  string // "" is success
	}{
		{"hash and size known", hello, 5, ""},
		{"nothing known", Sum{}, -1, ""},
		{"short", hello, 9, "5 bytes came instead of 9: cut short"},
		{"long", hello, 4, "5 bytes came instead of 4: another file"},
		{"other bytes", Sum{1}, 5, "the SHA-256 is 2cf24dba5fb0a30e"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := open(t)
			w := create(t, s, "k", "hello")
			if _, ok := s.Path(hello); ok {
				t.Fatal("found before it was committed")
			}
			path, sum, err := w.Commit(tc.want, tc.size)
			if sum != hello {
				t.Errorf("sum %x", sum)
			}
			if n := left(t, s); len(n) != 0 {
				t.Errorf("left behind: %v", n)
			}
			_, ok := s.Path(hello)
			if tc.err != "" {
				var mismatch *MismatchError
				if !errors.As(err, &mismatch) || !strings.Contains(err.Error(), tc.err) || ok {
					t.Fatalf("got %v, found %v; want %q", err, ok, tc.err)
				}
				return
			}
			info, statErr := os.Stat(path)
			if err != nil || !ok || statErr != nil || info.Mode() != 0o644 {
				t.Fatalf("got %v, found %v, %v", err, ok, info)
			}
			if err := s.Verify(hello); err != nil {
				t.Error(err)
			}
			if err := os.WriteFile(path, []byte("hellO"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := s.Verify(hello); err == nil || !strings.Contains(err.Error(), "pull it again") {
				t.Errorf("a changed file passed: %v", err)
			}
		})
	}
}

func TestListRemoveMeta(t *testing.T) {
	s := open(t)
	a, b := Sum(sha256.Sum256([]byte("a"))), Sum(sha256.Sum256([]byte("bb")))
	for _, text := range []string{"a", "bb", "a"} { // the third is there already
		l, err := s.Lock(t.Context(), text, nil)
		if err != nil {
			t.Fatal(err)
		}
		w, err := l.Create()
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, text)
		if _, _, err := w.Commit(Sum{}, -1); err != nil {
			t.Fatal(err)
		}
		l.Unlock()
	}
	if err := os.WriteFile(filepath.Join(s.Dir(), "README"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	list, err := s.List()
	if err != nil || len(list) != 2 || list[0].Sum != b || list[0].Size != 2 || list[1].Sum != a {
		t.Fatalf("got %v, %v", list, err) // 3b… before ca…
	}
	type meta struct{ Name string }
	var m meta
	if ok, err := s.Meta(a, &m); ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, name := range []string{"first", "second"} {
		if err := s.SetMeta(a, meta{name}); err != nil {
			t.Fatal(err)
		}
		if ok, err := s.Meta(a, &m); !ok || err != nil || m.Name != name {
			t.Fatal(ok, err, m)
		}
	}
	if err := errors.Join(s.Remove(a), s.Remove(a)); err != nil {
		t.Fatal(err)
	}
	if ok, _ := s.Meta(a, &m); ok {
		t.Error("meta outlived its blob")
	}
	if list, _ := s.List(); len(list) != 1 {
		t.Errorf("got %v", list)
	}
}

// TestKilled: a process that is killed in the middle leaves nothing that is
// ever found, and its lock; what can be resumed stays for a while.
func TestKilled(t *testing.T) {
	s := open(t)
	cmd := child(t, "half", s.Dir())
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("child said %q", line)
	}
	if _, err := Open(s.Dir()); err != nil { // must not clean what is in use
		t.Fatal(err)
	}
	if got := fmt.Sprint(left(t, s)); got != "[.part .tmp]" && got != "[.tmp .part]" {
		t.Fatalf("while the child lives: %v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	told := false
	if _, err := s.Lock(ctx, "tmp", func() { told = true }); !errors.Is(err, context.DeadlineExceeded) || !told {
		t.Fatalf("the child's lock: %v, told %v", err, told)
	}
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()

	if s, err = Open(s.Dir()); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(left(t, s)); got != "[.part]" {
		t.Errorf("after the kill: %v", got)
	}
	if list, _ := s.List(); len(list) != 0 {
		t.Errorf("found %v", list)
	}
	w, err := lock(t, s, "part").Resume()
	if err != nil || w.Size() != int64(len("half of ")) {
		t.Fatalf("resume: %v at %d", err, w.Size())
	}
	io.WriteString(w, "it")
	if _, _, err := w.Commit(sha256.Sum256([]byte("half of it")), 10); err != nil {
		t.Error(err)
	}
}

func TestOldPartsAreCleared(t *testing.T) {
	s := open(t)
	l, _ := s.Lock(t.Context(), "k", nil)
	w, err := l.Resume()
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, "x")
	if err := errors.Join(w.SetNote("etag"), w.Suspend()); err != nil {
		t.Fatal(err)
	}
	l.Unlock()
	if err := s.clean(time.Now().Add(keepParts - time.Hour)); err != nil || len(left(t, s)) != 2 {
		t.Fatalf("%v, left %v", err, left(t, s))
	}
	if err := s.clean(time.Now().Add(keepParts + time.Hour)); err != nil || len(left(t, s)) != 0 {
		t.Fatalf("%v, left %v", err, left(t, s))
	}
}

func TestResume(t *testing.T) {
	s := open(t)
	l := lock(t, s, "k")
	w, err := l.Resume()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Suspend(); err != nil || len(left(t, s)) != 0 {
		t.Fatalf("nothing was kept as %v, %v", left(t, s), err)
	}
	if w, err = l.Resume(); err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, "first ")
	if err := errors.Join(w.SetNote("v1"), w.Suspend(), w.Suspend()); err != nil {
		t.Fatal(err)
	}
	w.Abort() // nothing after Suspend
	if w, err = l.Resume(); err != nil || w.Note() != "v1" || w.Size() != 6 {
		t.Fatalf("%v: note %q, size %d", err, w.Note(), w.Size())
	}
	if err := w.Cut(7); err == nil {
		t.Fatal("cut to more than there is")
	}
	if err := w.Cut(2); err != nil || w.Size() != 2 {
		t.Fatal(err)
	}
	io.WriteString(w, "nally")
	want := Sum(sha256.Sum256([]byte("finally")))
	path, _, err := w.Commit(want, 7)
	got, _ := os.ReadFile(path)
	if err != nil || string(got) != "finally" || len(left(t, s)) != 0 {
		t.Fatalf("%v: %q, left %v", err, got, left(t, s))
	}
}

// TestManyProcesses: one makes the blob, the others wait and find it.
func TestManyProcesses(t *testing.T) {
	s := open(t)
	var all [4]bytes.Buffer
	var cmds []*exec.Cmd
	for i := range all {
		cmd := child(t, "race", s.Dir())
		cmd.Stdout = &all[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	made := 0
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %s", err, &all[i])
		}
		made += strings.Count(all[i].String(), "made")
	}
	if made != 1 {
		t.Errorf("%d made it", made)
	}
}

func TestDiskFull(t *testing.T) {
	s := open(t)
	var space *SpaceError
	if err := s.Space(1 << 60); !errors.As(err, &space) || !strings.Contains(err.Error(), "MESHNET_HOME") {
		t.Errorf("a huge need: %v", err)
	}
	if err := s.Space(1); err != nil {
		t.Errorf("one byte: %v", err)
	}
	// /dev/full is as near as a test comes to a full disk.
	w := create(t, s, "k", "x")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatalf("this test needs /dev/full: %v", err)
	}
	real := w.file
	w.file = full
	_, err = w.Write([]byte("more"))
	if !errors.As(err, &space) || space.Need != 4 {
		t.Errorf("got %v", err)
	}
	w.file = real
	w.Abort()
	full.Close()
	if !isDiskFull(fmt.Errorf("x: %w", unix.EDQUOT)) {
		t.Error("a quota is a full disk too")
	}
}

func TestHome(t *testing.T) {
	for _, tc := range []struct{ meshnet, xdg, home, want string }{
		{"/a/b", "/x", "/h", "/a/b"},
		{"", "/x", "/h", "/x/meshnet"},
		{"", "relative", "/h", "/h/.local/share/meshnet"},
		{"", "", "/h", "/h/.local/share/meshnet"},
		{"", "", "", "set MESHNET_HOME"},
	} {
		t.Setenv("MESHNET_HOME", tc.meshnet)
		t.Setenv("XDG_DATA_HOME", tc.xdg)
		t.Setenv("HOME", tc.home)
		got, err := Home()
		if err != nil {
			got = err.Error()
		}
		if got != tc.want && !(err != nil && strings.Contains(got, tc.want)) {
			t.Errorf("%+v: got %q", tc, got)
		}
	}
}

func TestOpenWhereNotAllowed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(file, "blobs")); err == nil || !strings.Contains(err.Error(), "MESHNET_HOME") {
		t.Errorf("got %v", err)
	}
}

func TestParseSumAndBytes(t *testing.T) {
	if _, err := ParseSum("../../etc/passwd"); err == nil {
		t.Error("a path is no hash")
	}
	if sum, err := ParseSum(strings.Repeat("0a", 32)); err != nil || sum[31] != 10 {
		t.Error(sum, err)
	}
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 98362432: "98.4 MB", 999_999: "1.0 MB", 1117320768: "1.1 GB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}
