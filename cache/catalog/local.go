package catalog

import (
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
)

// Local is a model on this machine.
type Local struct {
	Path         string   // of the GGUF file; never to be written to
	SHA256       [32]byte // of the whole file: the model's identity on a mesh
	Size         int64    // bytes
	Name         string   // for people, and for Resolve
	Title        string
	Chat         bool   // known to be tuned for conversation
	SystemPrompt string // what chat sends unless told otherwise; "": the template's business
	License      string // "" when nobody said
	LicenseURL   string
	LicenseNote  string
	Source       string    // where the bytes came from
	Added        time.Time // when
}

// note is what is kept beside a blob.
type note struct {
	Name        string         `json:"name"`
	Title       string         `json:"title,omitempty"`
	Source      string         `json:"source"`
	Refs        []string       `json:"refs,omitempty"`    // references that mean this blob
	Imports     []importedFile `json:"imports,omitempty"` // files that were it when last seen
	Chat        bool           `json:"chat"`
	License     string         `json:"license,omitempty"`
	LicenseURL  string         `json:"license_url,omitempty"`
	LicenseNote string         `json:"license_note,omitempty"`
	System      string         `json:"system_prompt,omitempty"`
}

// importedFile recognises a file without reading it again.
type importedFile struct {
	Path     string    `json:"path"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
}

func importedAs(path string, info os.FileInfo) importedFile {
	return importedFile{path, info.Size(), info.ModTime().UTC()}
}

// List is every model in the store, by name.
func (c *Catalog) List(store *blob.Store) ([]Local, error) {
	infos, err := store.List()
	if err != nil {
		return nil, err
	}
	var list []Local
	for _, info := range infos {
		l, _, err := c.local(store, info)
		if err != nil {
			return nil, err
		}
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b Local) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// local joins a blob, its note and the list. A blob without a note, which a
// crash between the two leaves, is known by its hash.
func (c *Catalog) local(store *blob.Store, info blob.Info) (Local, note, error) {
	var n note
	if _, err := store.Meta(info.Sum, &n); err != nil {
		return Local{}, n, fmt.Errorf("%w; delete that file to go on without its note", err)
	}
	if m, ok := c.bySum(info.Sum); ok {
		n.describe(m)
	}
	if n.Name == "" {
		n.Name = "sha256-" + hex.EncodeToString(info.Sum[:4])
	}
	path, _ := store.Path(info.Sum)
	return Local{
		Path: path, SHA256: info.Sum, Size: info.Size, Added: info.Added,
		Name: n.Name, Title: n.Title, Chat: n.Chat, SystemPrompt: n.System,
		License: n.License, LicenseURL: n.LicenseURL, LicenseNote: n.LicenseNote, Source: n.Source,
	}, n, nil
}

func (n *note) describe(m *Model) {
	n.Name, n.Title, n.Chat, n.System = m.Name, m.Title, m.Chat, m.System
	n.License, n.LicenseURL, n.LicenseNote = m.License, m.LicenseURL, m.LicenseNote
}

// Lookup finds a model that is already here, by name, reference, hash or the
// first eight or more digits of the hash. It fetches nothing.
func (c *Catalog) Lookup(store *blob.Store, ref string) (Local, bool, error) {
	if m, ok := c.Find(ref); ok && m.SHA256 != (Hash{}) {
		if _, ok := store.Path(blob.Sum(m.SHA256)); !ok {
			return Local{}, false, nil
		}
		ref = m.SHA256.String()
	}
	infos, err := store.List()
	if err != nil {
		return Local{}, false, err
	}
	hash := strings.TrimPrefix(strings.ToLower(ref), "sha256-")
	isHash := len(hash) >= 8 && strings.Trim(hash, "0123456789abcdef") == ""
	var found []Local
	for _, info := range infos {
		l, n, err := c.local(store, info)
		if err != nil {
			return Local{}, false, err
		}
		if l.Name == ref || slices.Contains(n.Refs, ref) {
			return l, true, nil
		}
		if isHash && strings.HasPrefix(hex.EncodeToString(info.Sum[:]), hash) {
			found = append(found, l)
		}
	}
	switch len(found) {
	case 0:
		return Local{}, false, nil
	case 1:
		return found[0], true, nil
	}
	return Local{}, false, fmt.Errorf("%q is the beginning of %d models' hashes: write more of it", ref, len(found))
}

// Remove deletes a model that is here. Processes that have it open keep it.
func (c *Catalog) Remove(store *blob.Store, l Local) error { return store.Remove(l.SHA256) }

// remember writes the note of a blob that has just come, or come again. A name
// that another blob has gets the hash's beginning behind it.
func (c *Catalog) remember(store *blob.Store, sum blob.Sum, change func(*note)) (Local, error) {
	infos, err := store.List()
	if err != nil {
		return Local{}, err
	}
	var n note
	if _, err := store.Meta(sum, &n); err != nil {
		n = note{} // it is written anew below
	}
	change(&n)
	if m, ok := c.bySum(sum); ok {
		n.describe(m)
	}
	var mine blob.Info
	for _, info := range infos {
		if info.Sum == sum {
			mine = info
			continue
		}
		other, on, err := c.local(store, info)
		if err != nil {
			continue
		}
		if other.Name == n.Name {
			n.Name += "-" + hex.EncodeToString(sum[:4])
		}
		// What a reference, or a file, meant before, it means no more.
		refs := slices.DeleteFunc(slices.Clone(on.Refs), func(r string) bool { return slices.Contains(n.Refs, r) })
		imports := slices.DeleteFunc(slices.Clone(on.Imports), func(i importedFile) bool {
			return slices.ContainsFunc(n.Imports, func(j importedFile) bool { return i.Path == j.Path })
		})
		if len(refs) != len(on.Refs) || len(imports) != len(on.Imports) {
			on.Refs, on.Imports = refs, imports
			if err := store.SetMeta(info.Sum, on); err != nil {
				return Local{}, err
			}
		}
	}
	if err := store.SetMeta(sum, n); err != nil {
		return Local{}, err
	}
	l, _, err := c.local(store, mine)
	return l, err
}
