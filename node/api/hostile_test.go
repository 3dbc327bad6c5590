package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// wires is a listener in memory, for servers in virtual time.
type wires struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newWires() *wires { return &wires{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (l *wires) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *wires) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *wires) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

func (l *wires) dial() (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case l.conns <- a:
		return b, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// served runs s in a bubble of virtual time, with a client.
func served(t *testing.T, script string, change func(*Config), f func(t *testing.T, l *wires, c *http.Client)) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newServer(t, script, change)
		l := newWires()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Serve(ctx, l) }()
		tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return l.dial() }}
		f(t, l, &http.Client{Transport: tr})
		tr.CloseIdleConnections()
		cancel()
		<-done
	})
}

// TestSlowClients: whoever takes its time with a header, a body or with reading is
// cut off when its time is over, and not before.
func TestSlowClients(t *testing.T) {
	const head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
	for name, tt := range map[string]struct {
		say  string
		most time.Duration
	}{
		"says nothing":            {"", 10 * time.Second},
		"a header without an end": {head, 10 * time.Second},
		"a body without an end":   {head + "\r\n{", 31 * time.Second},
		"does not ask again":      {"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 2*time.Minute + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			served(t, "finish stop", nil, func(t *testing.T, l *wires, _ *http.Client) {
				c, err := l.dial()
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				at := time.Now()
				if _, err := io.WriteString(c, tt.say); err != nil {
					t.Fatal(err)
				}
				drip := make(chan struct{})
				go func() { // a byte now and then, as slow-loris does
					defer close(drip)
					for tt.most < time.Minute && tt.say != "" {
						time.Sleep(3 * time.Second)
						if _, err := c.Write([]byte("x")); err != nil {
							return
						}
					}
				}()
				_, _ = io.Copy(io.Discard, c)
				if d := time.Since(at); d > tt.most || d < 9*time.Second {
					t.Errorf("cut off after %v, want at most %v", d, tt.most)
				}
				c.Close()
				<-drip
			})
		})
	}
}

// TestClientThatDoesNotRead: an answer that nobody takes off the wire ends, and its
// place is free again.
func TestClientThatDoesNotRead(t *testing.T) {
	script := strings.Repeat("text \""+strings.Repeat("x", 1000)+"\"\n", 100) + "finish stop"
	served(t, script, func(c *Config) {
		c.Active, c.Queued = 1, 1
		c.Heartbeat = time.Hour // a comment would wait for a lock, and time stands still for that
	}, func(t *testing.T, l *wires, client *http.Client) {
		c, err := l.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		body := `{"stream":true,` + hi + `}`
		fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		synctest.Wait()
		at := time.Now()
		resp, err := client.Post("http://localhost/v1/chat/completions", "", strings.NewReader(`{`+hi+`}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if d := time.Since(at); resp.StatusCode != 200 || d > time.Minute {
			t.Errorf("the next request: %d after %v", resp.StatusCode, d)
		}
	})
}

// TestNextRequest: the time limits of one request are not those of the connection's next.
func TestNextRequest(t *testing.T) {
	served(t, "text \"a\"\nfinish stop", nil, func(t *testing.T, l *wires, _ *http.Client) {
		c, err := l.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		r := bufio.NewReader(c)
		ask := func(method, path, body string) {
			t.Helper()
			fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("%s %s: %v", path, body, err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		}
		for _, body := range []string{`{"stream":true,` + hi + `}`, `{` + hi + `}`} {
			ask("POST", "/v1/chat/completions", body)
			time.Sleep(time.Minute)
			ask("GET", "/healthz", "")
		}
	})
}

// TestSixtyAtOnce: 8 are answered at a time, 32 wait, the others hear when to come back.
func TestSixtyAtOnce(t *testing.T) {
	served(t, "text \"a\"\nsleep 10s\nfinish stop", nil, func(t *testing.T, _ *wires, client *http.Client) {
		var ok, later, other atomic.Int64
		var all sync.WaitGroup
		at := time.Now()
		for range 60 {
			all.Go(func() {
				resp, err := client.Post("http://localhost/v1/chat/completions", "", strings.NewReader(`{`+hi+`}`))
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				switch {
				case resp.StatusCode == 200:
					ok.Add(1)
				case resp.StatusCode == 429 && resp.Header.Get("Retry-After") != "":
					later.Add(1)
				default:
					other.Add(1)
				}
			})
		}
		all.Wait()
		if ok.Load() != 40 || later.Load() != 20 || other.Load() != 0 {
			t.Errorf("%d answered, %d told to come back, %d else; want 40, 20, 0", ok.Load(), later.Load(), other.Load())
		}
		if d := time.Since(at); d != 50*time.Second {
			t.Errorf("40 answers of 10 s, 8 at a time, took %v", d)
		}
	})
}

// TestManyBodies: requests whose bodies never come are counted before they are read,
// so what all of them hold is bounded.
func TestManyBodies(t *testing.T) {
	served(t, "finish stop", func(c *Config) {
		c.Active, c.Queued = 1, 1
		c.Heartbeat = time.Hour // a comment would wait for a lock, and time stands still for that
	}, func(t *testing.T, l *wires, client *http.Client) {
		refused := 0
		for range 100 {
			c, err := l.dial()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n")
			_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			line, err := bufio.NewReader(c).ReadString('\n')
			if err == nil && strings.Contains(line, "429") {
				refused++
			}
		}
		if refused != 100-(1+1+maxInside) {
			t.Errorf("%d of 100 are refused, want %d", refused, 100-(1+1+maxInside))
		}
		time.Sleep(bodyTimeout)
		resp, err := client.Post("http://localhost/v1/chat/completions", "", strings.NewReader(`{`+hi+`}`))
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("after they were cut off: %v %v", resp, err)
		}
		resp.Body.Close()
	})
}

// TestManyConnections: the 513th waits until another one goes.
func TestManyConnections(t *testing.T) {
	served(t, "finish stop", nil, func(t *testing.T, l *wires, client *http.Client) {
		for range maxConns {
			c, err := l.dial()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		at := time.Now()
		resp, err := client.Get("http://localhost/healthz")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if d := time.Since(at); d < 9*time.Second || d > 11*time.Second {
			t.Errorf("got in after %v, want when the silent ones are cut off, after 10 s", d)
		}
	})
}

// TestEndlessBody: no more than the limit is read of a body that never ends.
func TestEndlessBody(t *testing.T) {
	served(t, "finish stop", nil, func(t *testing.T, _ *wires, client *http.Client) {
		var sent atomic.Int64
		body := &endless{sent: &sent}
		req, _ := http.NewRequest("POST", "http://localhost/v1/completions", body)
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode != 413 {
				t.Errorf("answered %d", resp.StatusCode)
			}
		}
		if n := sent.Load(); n < maxBody || n > maxBody+2<<20 {
			t.Errorf("%d bytes were taken", n)
		}
	})
}

type endless struct {
	sent *atomic.Int64
	off  bool
}

func (e *endless) Read(p []byte) (int, error) {
	if e.sent.Load() > 64<<20 {
		return 0, errors.New("that is enough")
	}
	for i := range p {
		p[i] = ' '
	}
	if !e.off {
		e.off = true
		p[0] = '{'
	}
	e.sent.Add(int64(len(p)))
	return len(p), nil
}

// TestLargeInMemory: JSON of 4 MiB that is much larger in memory is refused, and the
// memory stays within a bound that is a matter of arithmetic: four bodies are taken apart at a time.
func TestLargeInMemory(t *testing.T) {
	fill := func(head, each, tail string) string {
		return head + strings.TrimSuffix(strings.Repeat(each, (maxBody-len(head)-len(tail))/len(each)), ",") + tail
	}
	for name, body := range map[string]string{
		"messages":   fill(`{"messages":[`, `{"role":"user","content":""},`, `]}`),
		"tools":      fill(`{`+hi+`,"tools":[`, `[],`, `]}`),
		"no field":   fill(`{`+hi+`,"x":[`, `[],`, `]}`),
		"deep":       fill(`{`+hi+`,"x":`, `[`, ``),
		"stop":       fill(`{`+hi+`,"stop":[`, `"",`, `]}`),
		"logit_bias": `{` + hi + `,"logit_bias":{` + many(300_000) + `}}`,
		"parts":      fill(`{"messages":[{"role":"user","content":[`, `{"type":"text"},`, `]}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newServer(t, "finish stop", nil)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, post("/v1/chat/completions", body))
			runtime.ReadMemStats(&after)
			took := (after.TotalAlloc - before.TotalAlloc) >> 20
			t.Logf("%d MiB of allocations for %d KiB: %d", took, len(body)>>10, w.Code)
			if w.Code != 400 && name != "no field" || took > 512 {
				t.Errorf("%d %.200s, %d MiB", w.Code, w.Body, took)
			}
		})
	}
}

func many(n int) string {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `"%d":1,`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}
