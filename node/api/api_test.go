package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hi = `"messages":[{"role":"user","content":"Hi"}]`

// TestRefused lists what a client may get wrong; each is one clear error in
// OpenAI's shape that names the thing.
func TestRefused(t *testing.T) {
	chat, text := "/v1/chat/completions", "/v1/completions"
	for name, c := range map[string]struct {
		path, body string
		status     int
		says       string
	}{
		"broken UTF-8":      {chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", 400, "not valid UTF-8"},
		"broken JSON":       {chat, `{"messages":[`, 400, "not a JSON object"},
		"empty body":        {chat, ``, 400, "not a JSON object"},
		"an array":          {chat, `[]`, 400, "not a JSON object"},
		"something after":   {chat, `{` + hi + `} {}`, 400, "after the JSON object"},
		"wrong type":        {chat, `{` + hi + `,"temperature":"hot"}`, 400, "temperature"},
		"no messages":       {chat, `{}`, 400, "messages is empty"},
		"unknown role":      {chat, `{"messages":[{"role":"wizard","content":"x"}]}`, 400, `"wizard"`},
		"an image":          {chat, `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, `"image_url"`},
		"unknown model":     {chat, `{"model":"gpt-9",` + hi + `}`, 404, `"gpt-9" is not served here; this server has "smol"`},
		"two answers":       {chat, `{"n":2,` + hi + `}`, 400, "n is 2"},
		"tools":             {chat, `{"tools":[{}],` + hi + `}`, 400, "tools"},
		"JSON mode":         {chat, `{"response_format":{"type":"json_object"},` + hi + `}`, 400, "json_object"},
		"no tokens":         {chat, `{"max_tokens":0,` + hi + `}`, 400, "max_tokens is 0"},
		"bias of a word":    {chat, `{"logit_bias":{"word":1},` + hi + `}`, 400, `"word"`},
		"bias out of range": {chat, `{"logit_bias":{"1":101},` + hi + `}`, 400, "-100 to 100"},
		"top without":       {chat, `{"top_logprobs":2,` + hi + `}`, 400, "logprobs: true"},
		"empty stop":        {chat, `{"stop":["a",""],` + hi + `}`, 400, "stop string is empty"},
		"no prompt":         {text, `{}`, 400, "prompt is missing"},
		"two prompts":       {text, `{"prompt":["a","b"]}`, 400, "one text"},
		"echo":              {text, `{"prompt":"a","echo":true}`, 400, "echo"},
		"too long a body":   {chat, `{"pad":"` + strings.Repeat("x", maxBody) + `"}`, 413, "longer than 4194304 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newServer(t, "finish stop", nil)
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, post(c.path, c.body))
			var got struct {
				Error struct{ Message, Type string }
			}
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatalf("not JSON: %v: %s", err, w.Body)
			}
			if w.Code != c.status || !strings.Contains(got.Error.Message, c.says) || got.Error.Type != "invalid_request_error" {
				t.Errorf("%d %s: want %d and %q", w.Code, w.Body, c.status, c.says)
			}
		})
	}
}

// TestFailures: what a failed answer means in HTTP.
func TestFailures(t *testing.T) {
	for script, want := range map[string]int{"fail gap": 503, "fail long": 400, "fail internal": 500} {
		s, _ := newServer(t, script, nil)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, post("/v1/chat/completions", `{`+hi+`}`))
		if w.Code != want || strings.Contains(w.Body.String(), "finish_reason") {
			t.Errorf("%s: %d %s, want %d", script, w.Code, w.Body, want)
		}
	}
}

// TestGuard: who gets in. A web page must not reach a loopback API.
func TestGuard(t *testing.T) {
	for name, c := range map[string]struct {
		host, origin, site, key string
		wantKey                 string
		path                    string
		status                  int
	}{
		"localhost":                {host: "localhost:8080", status: 200},
		"an IPv4 address":          {host: "127.0.0.1:8080", status: 200},
		"an IPv6 address":          {host: "[::1]:8080", status: 200},
		"a name of its own":        {host: "mesh.example:8080", status: 200},
		"rebound name":             {host: "evil.example:8080", status: 403},
		"no host":                  {host: "", status: 403},
		"same origin":              {host: "localhost:8080", origin: "http://localhost:8080", status: 200},
		"another origin":           {host: "localhost:8080", origin: "https://evil.example", status: 403},
		"another port":             {host: "localhost:8080", origin: "http://localhost:3000", status: 403},
		"a sandboxed page":         {host: "localhost:8080", origin: "null", status: 403},
		"cross-site by the header": {host: "localhost:8080", site: "cross-site", status: 403},
		"right key":                {host: "localhost:8080", wantKey: "k", key: "Bearer k", status: 200},
		"wrong key":                {host: "localhost:8080", wantKey: "k", key: "Bearer kk", status: 401},
		"key without scheme":       {host: "localhost:8080", wantKey: "k", key: "k", status: 401},
		"no key":                   {host: "localhost:8080", wantKey: "k", status: 401},
		"status needs it":          {host: "localhost:8080", wantKey: "k", path: "/status", status: 401},
		"metrics need it":          {host: "localhost:8080", wantKey: "k", path: "/metrics", status: 401},
		"health does not":          {host: "localhost:8080", wantKey: "k", path: "/healthz", status: 200},
		"unknown path":             {host: "localhost:8080", path: "/v2", status: 404},
		"wrong method":             {host: "localhost:8080", path: "/v1/completions", status: 405},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newServer(t, "", func(cfg *Config) { cfg.APIKey, cfg.Hosts = c.wantKey, []string{"mesh.example"} })
			if c.path == "" {
				c.path = "/v1/models"
			}
			r := httptest.NewRequest("GET", c.path, nil)
			r.Host = c.host
			for name, v := range map[string]string{"Origin": c.origin, "Sec-Fetch-Site": c.site, "Authorization": c.key} {
				if v != "" {
					r.Header.Set(name, v)
				}
			}
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, r)
			if w.Code != c.status {
				t.Errorf("%d %s, want %d", w.Code, w.Body, c.status)
			}
		})
	}
}

func TestCheckExposure(t *testing.T) {
	for addr, ok := range map[string]bool{
		"127.0.0.1:8080": true, "localhost:0": true, "[::1]:80": true, "127.9.9.9:1": true,
		"0.0.0.0:8080": false, ":8080": false, "192.168.1.2:80": false, "[::]:80": false, "host:80": false, "8080": false,
	} {
		if err := CheckExposure(addr, ""); (err == nil) != ok {
			t.Errorf("%q: %v", addr, err)
		}
		if err := CheckExposure(addr, "key"); (err == nil) != (addr != "8080") {
			t.Errorf("%q with a key: %v", addr, err)
		}
	}
}

// live runs s on a real socket until the test ends.
func live(t *testing.T, s *Server) (url string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	stopped := false
	stop = func() error {
		cancel()
		if stopped {
			return nil
		}
		stopped = true
		return <-done
	}
	t.Cleanup(func() { stop(); http.DefaultClient.CloseIdleConnections() })
	return "http://" + l.Addr().String(), stop
}

func openStream(t *testing.T, ctx context.Context, url string) *http.Response {
	t.Helper()
	req, _ := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat/completions", strings.NewReader(`{"stream":true,`+hi+`}`))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// TestClientGoes: generation ends when nobody listens any more, streamed or not.
func TestClientGoes(t *testing.T) {
	for _, body := range []string{`{"stream":true,` + hi + `}`, `{` + hi + `}`} {
		s, f := newServer(t, "text \"a\"\nhang", nil)
		url, _ := live(t, s)
		ctx, leave := context.WithCancel(context.Background())
		req, _ := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat/completions", strings.NewReader(body))
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		<-f.asked
		leave()
		<-answered
		select {
		case <-f.gone:
		case <-time.After(5 * time.Second):
			t.Fatal("the engine still works for a client that is gone")
		}
	}
}

// TestHeartbeat: a comment comes in silence, and the answer can go on after it.
func TestHeartbeat(t *testing.T) {
	s, _ := newServer(t, "hang", func(c *Config) { c.Heartbeat = 10 * time.Millisecond })
	url, _ := live(t, s)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	line, err := bufio.NewReader(openStream(t, ctx, url).Body).ReadString('\n')
	if err != nil || line != ": still working\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// TestTimeout: a request that takes too long ends with an error event.
func TestTimeout(t *testing.T) {
	s, _ := newServer(t, "text \"a\"\nhang", func(c *Config) { c.Timeout = 50 * time.Millisecond })
	url, _ := live(t, s)
	b, err := io.ReadAll(openStream(t, context.Background(), url).Body)
	if got := string(b); err != nil || !strings.Contains(got, `"code":"timeout"`) || strings.Contains(got, "[DONE]") || strings.Contains(got, `"stop"`) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestFull: what fits neither among the active nor the queue is told to come back.
func TestFull(t *testing.T) {
	s, f := newServer(t, "text \"a\"\nhang", func(c *Config) { c.Active, c.Queued = 1, 1 })
	url, _ := live(t, s)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	openStream(t, ctx, url)
	<-f.asked
	waiting := make(chan struct{})
	go func() { // this one waits in the queue
		defer close(waiting)
		req, _ := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat/completions", strings.NewReader(`{`+hi+`}`))
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, queued := s.gate.counts(); queued == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the second request does not wait")
		}
	}
	resp := openStream(t, ctx, url)
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	leave()
	<-waiting
}

// TestStop: when the server stops, an open answer ends with an error event.
func TestStop(t *testing.T) {
	s, f := newServer(t, "text \"a\"\nhang", func(c *Config) { c.Grace = 20 * time.Millisecond })
	url, stop := live(t, s)
	resp := openStream(t, context.Background(), url)
	<-f.asked
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	b, _ := io.ReadAll(resp.Body)
	if got := string(b); !strings.Contains(got, `"code":"shutting_down"`) || strings.Contains(got, "[DONE]") {
		t.Errorf("%q", got)
	}
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// TestReady: ready only after a forward; not again after a failed request.
func TestReady(t *testing.T) {
	now := time.Unix(1700000000, 0)
	outcome := errors.New("nobody offers layers [10:20)")
	probes := 0
	s, _ := newServer(t, "fail gap", func(c *Config) {
		c.Now = func() time.Time { return now }
		c.Ready = func(context.Context) error { probes++; return outcome }
	})
	h := s.Handler()
	get := func() int {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "/readyz", nil)
		r.Host = "localhost"
		h.ServeHTTP(w, r)
		return w.Code
	}
	step := func(what string, code, wantProbes int) {
		t.Helper()
		if got := get(); got != code || probes != wantProbes {
			t.Errorf("%s: %d after %d probes, want %d after %d", what, got, probes, code, wantProbes)
		}
	}
	step("no route yet", 503, 1)
	step("asked again at once", 503, 1)
	now, outcome = now.Add(3*time.Second), nil
	step("route there", 200, 2)
	now = now.Add(20 * time.Second)
	step("remembered", 200, 2)
	now = now.Add(20 * time.Second)
	step("looked at again after a while", 200, 3)
	h.ServeHTTP(httptest.NewRecorder(), post("/v1/chat/completions", `{`+hi+`}`))
	step("after a failed request", 503, 3)
	now = now.Add(3 * time.Second)
	step("probed again", 200, 4)
}

// TestMetrics: the figures are there under their documented names.
func TestMetrics(t *testing.T) {
	s, _ := newServer(t, "text \"a\"\nfinish stop", nil)
	h := s.Handler()
	h.ServeHTTP(httptest.NewRecorder(), post("/v1/chat/completions", `{`+hi+`}`))
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Host = "localhost"
	h.ServeHTTP(w, r)
	for _, want := range []string{
		`meshnet_api_requests_total{kind="chat",status="200"} 1`, "meshnet_head_prompt_tokens_total 3", "meshnet_head_generated_tokens_total 1",
		"meshnet_api_active_requests 0", "meshnet_api_queued_requests 0", "meshnet_head_first_token_seconds_count 1",
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("no line %q", want)
		}
	}
}
