package catalog

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
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
