package catalog

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// hub is a model hub with one file: the hub itself, which redirects, and the
// place where the bytes are. cdn decides what the nth request for bytes gets.
type hub struct {
	t         *testing.T
	content   []byte
	etag      string // quoted
	noCommit  bool
	gated     bool                                                                    // wants the token
	direct    bool                                                                    // the hub sends the bytes itself
	cdn       func(n int, w http.ResponseWriter, r *http.Request, f *hub) (done bool) // nil: serve
	headFails int                                                                     // HEADs that get a 503 first

	mu       sync.Mutex
	requests []string // "Range If-Range" of each request for bytes
	secrets  []string // Authorization that the other host saw
	hub, far *httptest.Server
}

func (h *hub) start() *hub {
	h.far = httptest.NewServer(http.HandlerFunc(h.serveBytes))
	h.hub = httptest.NewServer(http.HandlerFunc(h.serveHub))
	h.t.Cleanup(h.far.Close)
	h.t.Cleanup(h.hub.Close)
	return h
}

func (h *hub) serveHub(w http.ResponseWriter, r *http.Request) {
	if h.gated && r.Header.Get("Authorization") != "Bearer secret" {
		http.Error(w, "gated", http.StatusForbidden)
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/own/repo/resolve/")
	rev, file, _ := strings.Cut(rest, "/")
	if !ok || file != "dir/a b.gguf" || rev != "main" && rev != commit {
		http.NotFound(w, r)
		return
	}
	if h.headFails > 0 && r.Method == http.MethodHead {
		h.headFails--
		w.Header().Set("Retry-After", "7")
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	}
	if !h.noCommit {
		w.Header().Set("X-Repo-Commit", commit)
		if r.Method == http.MethodGet && rev != commit {
			h.t.Errorf("bytes asked for at %q, not at the commit", rev)
		}
	}
	w.Header().Set("X-Linked-Etag", h.etag)
	w.Header().Set("X-Linked-Size", fmt.Sprint(len(h.content)))
	if h.direct && r.Method == http.MethodGet {
		h.serveBytes(w, r)
		return
	}
	http.Redirect(w, r, h.far.URL+"/signed", http.StatusFound)
}

func (h *hub) serveBytes(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	n := len(h.requests)
	h.requests = append(h.requests, r.Header.Get("Range")+" "+r.Header.Get("If-Range"))
	if a := r.Header.Get("Authorization"); a != "" {
		h.secrets = append(h.secrets, a)
	}
	h.mu.Unlock()
	if h.cdn != nil && h.cdn(n, w, r, h) {
		return
	}
	w.Header().Set("ETag", `"far-1"`)
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(h.content)))
}

// cut sends the header for all of it, then n bytes from the asked start, then breaks.
func (h *hub) cut(w http.ResponseWriter, r *http.Request, n int) {
	from := 0
	fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
	w.Header().Set("ETag", `"far-1"`)
	w.Header().Set("Content-Length", fmt.Sprint(len(h.content)-from))
	if from > 0 {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(h.content)-1, len(h.content)))
		w.WriteHeader(http.StatusPartialContent)
	}
	w.Write(h.content[from : from+n])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

func (h *hub) client(waits *[]time.Duration) Hub {
	return Hub{Endpoint: h.hub.URL, Transport: &http.Transport{DisableKeepAlives: true}, Idle: 300 * time.Millisecond,
		Sleep: func(_ context.Context, d time.Duration) error { *waits = append(*waits, d); return nil }}
}

func TestHubDownload(t *testing.T) {
	content := weights(100_000)
	sha := `"` + hashOf(content).String() + `"`
	for _, tc := range []struct {
		name     string
		hub      *hub
		requests []string // what is asked for, in order; nil: not checked
		waits    string   // between tries
		err      string   // "": success
	}{
		{name: "plain", requests: []string{" "}},
		{name: "the hub sends the bytes itself", hub: &hub{direct: true}, requests: []string{" "}},
		{name: "the connection drops twice", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			if n < 2 {
				h.cut(w, r, 30_000)
			}
			return false
		}}, requests: []string{" ", `bytes=30000- "far-1"`, `bytes=60000- "far-1"`}, waits: "[1s 1s]"},
		{name: "drops without a byte: waits grow, then it gives up", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			panic(http.ErrAbortHandler)
		}}, waits: "[1s 2s 4s 8s]", err: "gave up after 5 tries"},
		{name: "short body without a length", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			if n == 0 {
				w.Write(h.content[:5000])
				w.(http.Flusher).Flush()
			}
			return n == 0
		}}, requests: []string{" ", "bytes=5000- "}},
		{name: "ranges unknown: 200 instead of 206", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			if n == 0 {
				h.cut(w, r, 30_000)
			}
			w.Write(h.content)
			return true
		}}, requests: []string{" ", `bytes=30000- "far-1"`}},
		{name: "another range than asked for: from the start", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			switch n {
			case 0:
				h.cut(w, r, 30_000)
			case 1:
				w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(h.content)-1, len(h.content)))
				w.WriteHeader(http.StatusPartialContent)
				w.Write(h.content)
				return true
			}
			return false
		}}, requests: []string{" ", `bytes=30000- "far-1"`, " "}},
		{name: "another total", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			switch n {
			case 0:
				h.cut(w, r, 30_000)
			case 1:
				w.Header().Set("Content-Range", "bytes 30000-99999/200000")
				w.WriteHeader(http.StatusPartialContent)
				return true
			}
			return false
		}}, requests: []string{" ", `bytes=30000- "far-1"`, " "}},
		{name: "416: from the start", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			switch n {
			case 0:
				h.cut(w, r, 30_000)
			case 1:
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				return true
			}
			return false
		}}, requests: []string{" ", `bytes=30000- "far-1"`, " "}},
		{name: "the far file changes: If-Range brings all of it", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			if n == 0 {
				h.cut(w, r, 30_000)
			}
			w.Header().Set("ETag", `"far-2"`)
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(h.content)))
			return true
		}}, requests: []string{" ", `bytes=30000- "far-1"`}},
		{name: "the signed link expires: 403, resolved again", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			switch n {
			case 0:
				h.cut(w, r, 30_000)
			case 1:
				http.Error(w, "expired", http.StatusForbidden)
				return true
			}
			return false
		}}, requests: []string{" ", `bytes=30000- "far-1"`, `bytes=30000- "far-1"`}},
		{name: "silence", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			if n == 0 {
				w.Write(h.content[:30_000])
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}
			return n == 0
		}}, requests: []string{" ", "bytes=30000- "}},
		{name: "too many requests", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			if n == 0 {
				w.Header().Set("Retry-After", "17")
				w.WriteHeader(http.StatusTooManyRequests)
			}
			return n == 0
		}}, waits: "[17s]"},
		{name: "the hub is busy at first", hub: &hub{headFails: 2}, waits: "[7s 7s]"},
		{name: "the hub stays busy", hub: &hub{headFails: 9}, waits: "[7s 7s]", err: "HTTP 503"},
		{name: "the bytes are others", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			b := append([]byte{}, h.content...)
			b[50_000] ^= 1
			w.Write(b)
			return true
		}}, err: "damaged on the way"},
		{name: "a page instead of the file", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			w.Write([]byte("<html>please log in</html>" + strings.Repeat(" ", 99_974)))
			return true
		}}, err: `not a GGUF file: it begins with "<htm"`},
		{name: "longer than it said", hub: &hub{cdn: func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
			w.Write(h.content)
			w.(http.Flusher).Flush()
			w.Write(h.content)
			return true
		}}, err: "100001 bytes came instead of 100000"},
		{name: "gated", hub: &hub{gated: true}, err: "HF_TOKEN"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := tc.hub
			if h == nil {
				h = &hub{}
			}
			h.t, h.content, h.etag = t, content, sha
			h.start()
			var waits []time.Duration
			s := openStore(t)
			const ref = "hf:own/repo/dir/a b.gguf"
			l, err := listOf(Model{}).Resolve(t.Context(), ref, Options{Store: s, Hub: h.client(&waits)})
			if tc.requests != nil && fmt.Sprint(h.requests) != fmt.Sprint(tc.requests) {
				t.Errorf("asked for %q, want %q", h.requests, tc.requests)
			}
			if tc.waits != "" && fmt.Sprint(waits) != tc.waits {
				t.Errorf("waits %v, want %s", waits, tc.waits)
			}
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want %q", err, tc.err)
				}
				nothingHere(t, s)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			isFile(t, l, content)
			if l.Name != "a-b" || l.Source != ref {
				t.Errorf("name %q, source %q", l.Name, l.Source)
			}
			n := len(h.requests)
			if other, err := listOf(Model{}).Resolve(t.Context(), "hf:own/repo@main/dir/a b.gguf", Options{Store: s, Hub: h.client(&waits)}); err != nil || other != l || len(h.requests) != n {
				t.Errorf("by another reference: %v, %v, %d more requests", other, err, len(h.requests)-n)
			}
			h.hub.Close() // the second time needs no network
			if again, err := listOf(Model{}).Resolve(t.Context(), ref, Options{Store: s}); err != nil || again != l {
				t.Errorf("again: %v, %v", again, err)
			}
		})
	}
}

func TestHubTokenStaysAtTheHub(t *testing.T) {
	h := (&hub{t: t, content: weights(1000), etag: `"x"`, gated: true}).start()
	var waits []time.Duration
	client := h.client(&waits)
	client.Token = "secret"
	s := openStore(t)
	if _, err := listOf(Model{}).Resolve(t.Context(), "hf:own/repo/dir/a b.gguf", Options{Store: s, Hub: client}); err != nil {
		t.Fatal(err)
	}
	if len(h.requests) != 1 || len(h.secrets) != 0 {
		t.Errorf("%d requests, the other host saw %q", len(h.requests), h.secrets)
	}
}

// TestHubResumes: a download that was stopped goes on in a later run, unless
// the hub's file has changed meanwhile.
func TestHubResumes(t *testing.T) {
	old, changed := weights(100_000), weights(90_000)
	for _, tc := range []struct {
		name    string
		content []byte
		second  string
	}{
		{"the same file", old, "bytes=30000- "},
		{"another file", changed, " "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := (&hub{t: t, content: old, etag: `"` + hashOf(old).String() + `"`}).start()
			ctx, stop := context.WithCancelCause(t.Context())
			quit := errors.New("ctrl-c")
			s := openStore(t)
			h.cdn = func(n int, w http.ResponseWriter, r *http.Request, h *hub) bool {
				if n == 0 {
					w.Header().Set("Content-Length", fmt.Sprint(len(h.content)))
					w.Write(h.content[:30_000])
					w.(http.Flusher).Flush()
					if !written(r.Context(), s, 30_000) {
						t.Error("what came was not written")
					}
					stop(quit)
					<-r.Context().Done()
				}
				return n == 0
			}
			var waits []time.Duration
			client := h.client(&waits)
			client.Idle = 0
			o := Options{Store: s, Hub: client}
			const ref = "hf:own/repo@main/dir/a b.gguf"
			if _, err := listOf(Model{}).Resolve(ctx, ref, o); !errors.Is(err, quit) {
				t.Fatalf("stopped: %v", err)
			}
			nothingHere(t, s)
			h.content, h.etag = tc.content, `"`+hashOf(tc.content).String()+`"`
			l, err := listOf(Model{}).Resolve(t.Context(), ref, o)
			if err != nil {
				t.Fatal(err)
			}
			isFile(t, l, tc.content)
			if len(h.requests) != 2 || h.requests[1] != tc.second {
				t.Errorf("asked for %q, want %q", h.requests, tc.second)
			}
		})
	}
}

// written waits until so many bytes of a download are in the store, or ctx ends.
func written(ctx context.Context, s *blob.Store, n int64) bool {
	for ctx.Err() == nil {
		parts, _ := filepath.Glob(filepath.Join(s.Dir(), "tmp", "*"))
		for _, p := range parts {
			if i, err := os.Stat(p); err == nil && i.Size() >= n {
				return true
			}
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// TestHubKnown: for a model of the list the list's hash is the judge, before
// anything is transferred where the hub says what it has.
func TestHubKnown(t *testing.T) {
	content := weights(5000)
	source := Source{Kind: "hf", Repo: "own/repo", Revision: commit, File: "dir/a b.gguf"}
	for _, tc := range []struct {
		name, etag string
		size       int64
		hash       Hash
		err        string
		requests   int
	}{
		{"right", `"` + hashOf(content).String() + `"`, 5000, hashOf(content), "", 1},
		{"right, the hub names no hash", `"abc"`, 5000, hashOf(content), "", 1},
		{"the hub has another", `"` + hashOf(content).String() + `"`, 5000, Hash{9}, "another file", 0},
		{"the hub has another size", `"abc"`, 5001, hashOf(content), "5000 bytes came instead of 5001", 0},
		{"found out at the end", `"abc"`, 5000, Hash{9}, "nothing of it was kept", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := (&hub{t: t, content: content, etag: tc.etag}).start()
			var waits []time.Duration
			s := openStore(t)
			m := Model{Name: "m", System: "Be kind.", License: "L", Size: tc.size, SHA256: tc.hash, Sources: []Source{source}}
			l, err := listOf(m).Resolve(t.Context(), "m", Options{Store: s, Hub: h.client(&waits)})
			if len(h.requests) != tc.requests {
				t.Errorf("%d requests", len(h.requests))
			}
			if tc.err != "" {
				var failed *PullError
				if !errors.As(err, &failed) || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v", err)
				}
				nothingHere(t, s)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			isFile(t, l, content)
			if l.Name != "m" || l.SystemPrompt != "Be kind." || l.License != "L" || l.Source != source.String() {
				t.Errorf("got %+v", l)
			}
		})
	}
}

func TestHubRefusals(t *testing.T) {
	h := (&hub{t: t, content: weights(5000), etag: `"x"`}).start()
	var waits []time.Duration
	client := h.client(&waits)
	client.MaxBytes = 4999
	for _, tc := range []struct{ ref, err string }{
		{"hf:own/repo/dir/a b.gguf", "more than the 5.0 kB that are allowed"},
		{"hf:own/repo/other.gguf", "the hub has no own/repo/other.gguf"},
		{"hf:own/repo", "want hf:OWNER/REPO/FILE"},
		{"hf:own/repo/", "want hf:OWNER/REPO/FILE"},
		{"hf:own/repo/../../x", "want hf:OWNER/REPO/FILE"},
		{"hf:own/re po/x", "want hf:OWNER/REPO/FILE"},
		{"hf:own/repo@/x", "want hf:OWNER/REPO/FILE"},
	} {
		if _, err := listOf(Model{}).Resolve(t.Context(), tc.ref, Options{Store: openStore(t), Hub: client}); err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: got %v, want %q", tc.ref, err, tc.err)
		}
	}
	h.hub.Close()
	_, err := listOf(Model{}).Resolve(t.Context(), "hf:own/repo/x", Options{Store: openStore(t), Hub: client})
	if err == nil || !strings.Contains(err.Error(), "cannot be reached") || !strings.Contains(err.Error(), "HF_ENDPOINT") {
		t.Errorf("no hub: %v", err)
	}
	var full *blob.SpaceError
	huge := (&hub{t: t, content: weights(5), etag: `"x"`}).start()
	big := huge.client(&waits)
	big.Transport = hugeFile{big.Transport}
	if _, err = listOf(Model{}).Resolve(t.Context(), "hf:own/repo/dir/a b.gguf", Options{Store: openStore(t), Hub: big}); !errors.As(err, &full) {
		t.Errorf("a file larger than the disk: %v", err)
	}
}

// hugeFile lets the hub claim almost a tebibyte.
type hugeFile struct{ http.RoundTripper }

func (f hugeFile) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := f.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Header.Set("X-Linked-Size", fmt.Sprint(int64(maxModel-1)))
	}
	return resp, err
}

func TestHubFromEnv(t *testing.T) {
	env := func(m map[string]string) func(string) string { return func(k string) string { return m[k] } }
	h, err := HubFromEnv(env(map[string]string{"HF_ENDPOINT": "https://mirror.example/", "HF_TOKEN": "t"}))
	if err != nil || h.Endpoint != "https://mirror.example" || h.Token != "t" {
		t.Errorf("got %+v, %v", h, err)
	}
	if _, err := HubFromEnv(env(map[string]string{"HF_ENDPOINT": "mirror.example"})); err == nil || !strings.Contains(err.Error(), "HF_ENDPOINT") {
		t.Errorf("got %v", err)
	}
}

func TestContentRange(t *testing.T) {
	for in, want := range map[string]string{
		"bytes 0-9/10": "0 10", "bytes 5-9/10": "5 10", "bytes 5-9/*": "bad", "bytes 9-5/10": "bad", "bytes 0-10/10": "bad",
		"": "bad", "items 0-9/10": "bad", "bytes -1-9/10": "bad", "bytes 0-9": "bad", "bytes 0-99999999999999999999/10": "bad",
	} {
		got := "bad"
		if from, total, ok := contentRange(in); ok {
			got = fmt.Sprint(from, " ", total)
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}
