// Package realmodel gives tests the real model files, fetched by the product's
// own code into the person's data directory (MESHNET_HOME and so on), once.
//
// Invariant: a test that needs the real model and can't have it fails and says
// why, unless MESHNET_OFFLINE=1 was set by hand. Start reading at SmolLM2.
package realmodel

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/meshnet/meshnet/cache/blob"
	"github.com/meshnet/meshnet/cache/catalog"
)

// SmolLM2 is the path of SmolLM2-135M-Instruct (93 MB to fetch), the model of
// the tests. MESHNET_TEST_SMOLLM2 names a copy to use instead.
func SmolLM2(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("MESHNET_TEST_SMOLLM2"); path != "" {
		return path
	}
	if os.Getenv("MESHNET_OFFLINE") == "1" {
		t.Skip("needs SmolLM2, and MESHNET_OFFLINE=1 forbids to fetch it")
	}
	return resolve(t, "smollm2", false)
}

// Qwen05 is the path of Qwen2.5-Coder-0.5B-Instruct. It is large (478 MB to fetch),
// so only those test with it who have it already: `meshnet model pull qwen2.5-coder-0.5b`.
func Qwen05(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("MESHNET_TEST_QWEN05"); path != "" {
		return path
	}
	return resolve(t, "qwen2.5-coder-0.5b", true)
}

func resolve(t testing.TB, name string, onlyHere bool) string {
	t.Helper()
	home, err := blob.Home()
	if err != nil {
		t.Fatal(err)
	}
	store, err := blob.Open(filepath.Join(home, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	models, err := catalog.New()
	if err != nil {
		t.Fatal(err)
	}
	if onlyHere {
		l, ok, err := models.Lookup(store, name)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			t.Skipf("%s is large and not here; `meshnet model pull %s` brings it, and this test with it", name, name)
		}
		return l.Path
	}
	l, err := models.Resolve(t.Context(), name, catalog.Options{Store: store})
	if err != nil {
		t.Fatalf("the tests run on a real model, and %s can't be had: %v\n(MESHNET_OFFLINE=1 leaves these tests out)", name, err)
	}
	return l.Path
}
