// Package house holds the rules of the house as a test: which package may
// import which, and why. Start reading at rules.
package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/meshnet/meshnet/"

// rule forbids imports, each given as a path prefix.
type rule struct {
	from   string   // packages it binds; "" is all
	except []string // packages it does not
	ours   []string // packages of this module not to be imported
	others []string // packages of other modules or the standard library
	tests  bool     // binds _test.go files too
	why    string
}

var rules = []rule{
	{from: "shard", ours: []string{"p2p", "route", "node", "testnet", "cmd"}, why: "compute must run on one machine, without a network"},
	{from: "route", ours: []string{"shard", "node", "cmd"}, tests: true, why: "routing decides over offers; it never looks into a model"},
	{from: "route", others: []string{"math/rand", "crypto/rand", "net", "os", "sync"}, except: []string{"route/hop"}, why: "decisions are pure: no clock, goroutine, random source or I/O; what they need arrives in events"},
	{from: "cache", ours: []string{"p2p", "route", "node", "cmd"}, why: "the cache treats model state as opaque and serves whoever asks"},
	{from: "p2p", ours: []string{"shard", "route", "node", "cache", "cmd"}, tests: true, why: "p2p is the vocabulary of the network; it knows nothing of models"},
	{from: "", others: []string{"github.com/libp2p"}, except: []string{"p2p/host", "testnet"}, tests: true, why: "p2p/host is the one door to libp2p: protocol, routing and head tests compile without it"},
	{from: "", ours: []string{"node"}, except: []string{"node", "cmd", "testnet"}, tests: true, why: "only cmd and testnet start whole nodes"},
}

func has(path string, prefixes []string) bool {
	for _, p := range prefixes {
		if path == p || strings.HasPrefix(path, p+"/") {
			return true
		}
	}
	return false
}

// broken says which rule forbids file in pkg to import imp.
func broken(pkg, file, imp string) (rule, bool) {
	for _, r := range rules {
		if r.from != "" && !has(pkg, []string{r.from}) || has(pkg, r.except) || strings.HasSuffix(file, "_test.go") && !r.tests {
			continue
		}
		if target, ours := strings.CutPrefix(imp, module); ours && has(target, r.ours) || !ours && has(imp, r.others) {
			return r, true
		}
	}
	return rule{}, false
}

func TestImportDirection(t *testing.T) {
	root := filepath.Join("..", "..")
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && rel != "." || d.Name() == "zz_deps" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		files++
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(filepath.Dir(rel))
		for _, s := range f.Imports {
			imp, _ := strconv.Unquote(s.Path.Value)
			if r, bad := broken(pkg, rel, imp); bad {
				t.Errorf("%s imports %s\n\tnot allowed: %s", rel, imp, r.why)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 20 {
		t.Fatalf("looked at %d files only: run this test inside the repository", files)
	}
}

// TestRulesBite shows that each rule can fail.
func TestRulesBite(t *testing.T) {
	for _, c := range []struct {
		pkg, file, imp string
		bad            bool
	}{
		{"shard/tensor", "a.go", module + "p2p/wire", true},
		{"shard", "a.go", module + "cache", false},
		{"route", "a.go", module + "shard", true},
		{"route", "a_test.go", module + "shard/model", true},
		{"route", "a.go", "math/rand", true},
		{"route", "a.go", "math", false},
		{"route/hop", "a.go", "crypto/rand", false},
		{"cache", "a.go", module + "node/head", true},
		{"p2p/wire", "a.go", module + "route", true},
		{"node", "a.go", "github.com/libp2p/go-libp2p", true},
		{"p2p/host", "a.go", "github.com/libp2p/go-libp2p/core/peer", false},
		{"testnet/relay", "a.go", "github.com/libp2p/go-libp2p", false},
		{"cache/blob", "a.go", module + "node", true},
		{"cmd/meshnet", "a.go", module + "node", false},
		{"node/api", "a.go", module + "node/head", false},
	} {
		if r, bad := broken(c.pkg, c.file, c.imp); bad != c.bad {
			t.Errorf("%s importing %s: forbidden %v, want %v (%s)", c.pkg, c.imp, bad, c.bad, r.why)
		}
	}
}

var testName = regexp.MustCompile(`\b((?:Test|Fuzz)[A-Z]\w+)`)

// TestThreatModel: every test that the threat model names exists, and it names every
// fuzz target.
func TestThreatModel(t *testing.T) {
	root := filepath.Join("..", "..")
	doc, err := os.ReadFile(filepath.Join(root, "docs", "threat-model.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range testName.FindAllString(string(doc), -1) {
		named[m] = true
	}
	declared := map[string]bool{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && testName.MatchString(fn.Name.Name) {
				declared[fn.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range named {
		if !declared[name] {
			t.Errorf("docs/threat-model.md names %s, which does not exist", name)
		}
	}
	for name := range declared {
		if strings.HasPrefix(name, "Fuzz") && !named[name] {
			t.Errorf("docs/threat-model.md does not name %s", name)
		}
	}
	if len(named) < 50 {
		t.Errorf("only %d tests are named", len(named))
	}
}
