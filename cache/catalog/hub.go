package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
)

// DefaultEndpoint is the model hub that hf: means, unless HF_ENDPOINT names a
// mirror of it.
const DefaultEndpoint = "https://huggingface.co"

// Limits of a download. A try that brings bytes begins the count anew.
const (
	maxTries     = 5
	maxWait      = 30 * time.Second
	idleTimeout  = 60 * time.Second // without a byte
	headTimeout  = 30 * time.Second // until the answer's headers
	maxRedirects = 10
)

// Hub downloads files of a model hub. The zero value is HubFromEnv(os.Getenv).
type Hub struct {
	Endpoint  string            // default: HF_ENDPOINT, else DefaultEndpoint
	Token     string            // sent to the endpoint's host only; default HF_TOKEN, if Endpoint is empty
	Transport http.RoundTripper // default: net/http's, with its proxies
	MaxBytes  int64             // the largest file taken; default 1 TiB

	// For tests: how to wait, and how long without a byte. Default: really, 60 s.
	Sleep func(context.Context, time.Duration) error
	Idle  time.Duration
}

// HubFromEnv reads HF_ENDPOINT and HF_TOKEN, as the hub's own tools do.
func HubFromEnv(getenv func(string) string) (Hub, error) {
	h := Hub{Endpoint: strings.TrimRight(getenv("HF_ENDPOINT"), "/"), Token: getenv("HF_TOKEN")}
	if u, err := url.Parse(h.Endpoint); h.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return Hub{}, fmt.Errorf("HF_ENDPOINT=%q: want the address of a hub, such as %s", h.Endpoint, DefaultEndpoint)
	}
	return h, nil
}

func (h Hub) withDefaults() (Hub, error) {
	if h.Endpoint == "" {
		env, err := HubFromEnv(os.Getenv)
		if err != nil {
			return h, err
		}
		h.Endpoint = cmp.Or(env.Endpoint, DefaultEndpoint)
		h.Token = cmp.Or(h.Token, env.Token)
	}
	if h.Transport == nil {
		h.Transport = http.DefaultTransport
		if t, ok := h.Transport.(*http.Transport); ok {
			t = t.Clone()
			t.ResponseHeaderTimeout = headTimeout
			h.Transport = t
		}
	}
	if h.MaxBytes == 0 {
		h.MaxBytes = maxModel
	}
	if h.Idle == 0 {
		h.Idle = idleTimeout
	}
	if h.Sleep == nil {
		h.Sleep = func(ctx context.Context, d time.Duration) error {
			t := time.NewTimer(d)
			defer t.Stop()
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-t.C:
				return nil
			}
		}
	}
	return h, nil
}

var revisionPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// parseHub reads OWNER/REPO/FILE or OWNER/REPO@REVISION/FILE.
func parseHub(text string) (Source, error) {
	bad := fmt.Errorf("bad reference %q: want hf:OWNER/REPO/FILE or hf:OWNER/REPO@REVISION/FILE", "hf:"+text)
	f := strings.SplitN(text, "/", 3)
	if len(f) != 3 {
		return Source{}, bad
	}
	repo, rev, pinned := strings.Cut(f[1], "@")
	if !pinned {
		rev = "main"
	}
	s := Source{Kind: "hf", Repo: f[0] + "/" + repo, Revision: rev, File: f[2]}
	if !repoPattern.MatchString(s.Repo) || !revisionPattern.MatchString(rev) || path.Clean("/"+s.File) != "/"+s.File || s.File == "" {
		return Source{}, bad
	}
	return s, nil
}

// HubError is an answer of the hub that no further try would change.
type HubError struct {
	Status int // HTTP
	File   string
	Detail string
}

func (e *HubError) Error() string {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Sprintf("the hub does not give %s to everybody (HTTP %d): check the spelling; if the model is gated, accept its terms on the hub's page and set HF_TOKEN to your access token", e.File, e.Status)
	case http.StatusNotFound:
		return fmt.Sprintf("the hub has no %s: check owner, repository and file name (upper and lower case differ)", e.File)
	}
	text := fmt.Sprintf("the hub answered HTTP %d for %s", e.Status, e.File)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// target is a file as the hub describes it.
type target struct {
	url  string // at a fixed commit
	etag string // the hash of the file, when it is 64 digits
	size int64
}

// sum is the SHA-256 that the hub states, zero if it states none.
func (t target) sum() blob.Sum {
	sum, err := blob.ParseSum(t.etag)
	if err != nil {
		return blob.Sum{}
	}
	return sum
}

// temporary is an error after which another try makes sense.
type temporary struct {
	error
	after time.Duration // not earlier
}

func (t temporary) Unwrap() error { return t.error }

// client sends the token to the hub's own host only, never beyond a redirect
// to another one, nor from https to http.
func (h Hub) client(follow bool) *http.Client {
	return &http.Client{Transport: h.Transport, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		first := via[0].URL
		sameHost := req.URL.Host == first.Host && req.URL.Scheme == first.Scheme
		switch {
		case len(via) >= maxRedirects:
			return fmt.Errorf("%d redirects", len(via))
		case first.Scheme == "https" && req.URL.Scheme != "https":
			return errors.New("redirect from https to http refused")
		case !sameHost && !follow:
			return http.ErrUseLastResponse
		case !sameHost:
			req.Header.Del("Authorization")
		}
		return nil
	}}
}

func (h Hub) request(ctx context.Context, method, url string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "meshnet")
	req.Header.Set("Accept-Encoding", "identity") // ranges count the bytes of the file
	if h.Token != "" {
		req.Header.Set("Authorization", "Bearer "+h.Token)
	}
	return req, nil
}

// describe asks the hub about a file, without fetching it, and fixes the commit.
func (h Hub) describe(ctx context.Context, s Source) (t target, err error) {
	for try := 0; ; try++ {
		t, err = h.describeOnce(ctx, s)
		var temp temporary
		if !errors.As(err, &temp) || ctx.Err() != nil || try == 2 {
			return t, err
		}
		if err := h.Sleep(ctx, max(temp.after, time.Second<<try)); err != nil {
			return t, err
		}
	}
}

func (h Hub) describeOnce(ctx context.Context, s Source) (target, error) {
	name := s.Repo + "/" + s.File
	address := func(rev string) string {
		return h.Endpoint + "/" + s.Repo + "/resolve/" + rev + "/" + (&url.URL{Path: s.File}).EscapedPath()
	}
	ctx, cancel := context.WithTimeout(ctx, headTimeout)
	defer cancel()
	req, err := h.request(ctx, http.MethodHead, address(s.Revision))
	if err != nil {
		return target{}, fmt.Errorf("ask the hub: %w", err)
	}
	resp, err := h.client(false).Do(req)
	if err != nil {
		return target{}, h.unreachable(err)
	}
	resp.Body.Close()
	if resp.StatusCode >= 400 {
		return target{}, statusError(resp, name)
	}
	t := target{url: address(s.Revision), etag: resp.Header.Get("X-Linked-Etag"), size: -1}
	if t.etag == "" {
		t.etag = resp.Header.Get("ETag")
	}
	t.etag = strings.Trim(strings.TrimPrefix(t.etag, "W/"), `"`)
	if linked := resp.Header.Get("X-Linked-Size"); linked != "" {
		if t.size, err = strconv.ParseInt(linked, 10, 64); err != nil {
			return target{}, fmt.Errorf("the hub says that %s has %q bytes", name, linked)
		}
	} else if resp.StatusCode == http.StatusOK {
		t.size = resp.ContentLength
	}
	if commit := resp.Header.Get("X-Repo-Commit"); commitPattern.MatchString(commit) {
		t.url = address(commit)
	}
	if t.size < 0 {
		return target{}, fmt.Errorf("the hub does not say how large %s is", name)
	}
	return t, nil
}

func (h Hub) unreachable(err error) error {
	host := h.Endpoint
	if u, e := url.Parse(h.Endpoint); e == nil {
		host = u.Host
	}
	return temporary{fmt.Errorf("%s cannot be reached: %w; check the network and HTTPS_PROXY, or set HF_ENDPOINT to a mirror", host, err), 0}
}

func statusError(resp *http.Response, name string) error {
	err := &HubError{Status: resp.StatusCode, File: name}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500 {
		after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return temporary{err, min(time.Duration(max(after, 0))*time.Second, maxWait)}
	}
	return err
}
