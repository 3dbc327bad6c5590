package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// controls is what the socket can do besides showing the status. nil: not on
// this kind of node.
type controls struct {
	evict func(session string) (int, error) // a prefix of the id in hex, or "all"
	drain func()
	pause func(asked bool) // until told otherwise
}

// control is a node's socket for people and scripts on this machine: HTTP over
// HOME/nodes/NAME/control.sock, mode 0600.
type control struct {
	srv  *http.Server
	path string
	temp string // directory of the real socket, if the path is too long for one
	done sync.WaitGroup
}

// maxSocketPath is what fits the kernel's sockaddr_un, with its final zero.
const maxSocketPath = 103

// serveControl starts the node's socket. Passing nodes have none.
func (n *Node) serveControl(status func() Status, c controls) (*control, error) {
	if n.dir == "" {
		return nil, nil
	}
	ctl := &control{path: filepath.Join(n.dir, "control.sock")}
	l, err := ctl.listen()
	if err != nil {
		return nil, fmt.Errorf("open the control socket: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) { reply(w, status()) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("POST /evict", func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Session string }
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&body); err != nil || body.Session == "" {
			http.Error(w, `evict takes {"session":"hex or all"}`, http.StatusBadRequest)
			return
		}
		if c.evict == nil {
			http.Error(w, "this node keeps no sessions of others", http.StatusNotFound)
			return
		}
		dropped, err := c.evict(body.Session)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		reply(w, map[string]int{"evicted": dropped})
	})
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, r *http.Request) {
		if c.drain == nil {
			http.Error(w, "this node serves nothing that could be drained", http.StatusNotFound)
			return
		}
		c.drain()
		reply(w, map[string]bool{"draining": true})
	})
	for path, asked := range map[string]bool{"POST /pause": true, "POST /resume": false} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if c.pause == nil {
				http.Error(w, "this node serves nothing that could be paused", http.StatusNotFound)
				return
			}
			c.pause(asked)
			reply(w, map[string]bool{"pause": asked})
		})
	}
	ctl.srv = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10}
	ctl.done.Go(func() { ctl.srv.Serve(l) })
	return ctl, nil
}

func (c *control) listen() (net.Listener, error) {
	// The identity's lock is ours, so whatever lies there is a dead process'.
	if err := os.Remove(c.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	real := c.path
	if len(c.path) > maxSocketPath {
		dir, err := os.MkdirTemp("", "meshnet-")
		if err != nil {
			return nil, err
		}
		c.temp, real = dir, filepath.Join(dir, "control.sock")
	}
	l, err := net.Listen("unix", real)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(real, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	if real != c.path {
		if err := os.Symlink(real, c.path); err != nil {
			l.Close()
			return nil, err
		}
	}
	return l, nil
}

func (c *control) close() {
	if c == nil {
		return
	}
	c.srv.Close()
	c.done.Wait()
	os.Remove(c.path)
	if c.temp != "" {
		os.RemoveAll(c.temp)
	}
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

// Local asks the nodes that run on this machine under home for their status, in
// order of their names. Dead sockets are passed over.
func Local(ctx context.Context, home string) []Status {
	paths, _ := filepath.Glob(filepath.Join(home, "nodes", "*", "control.sock"))
	found := make([]*Status, len(paths))
	var asking sync.WaitGroup
	for i, path := range paths {
		asking.Go(func() {
			var s Status
			if err := call(ctx, path, "GET", "/status", nil, &s); err == nil {
				found[i] = &s
			}
		})
	}
	asking.Wait()
	var out []Status
	for _, s := range found {
		if s != nil {
			out = append(out, *s)
		}
	}
	slices.SortFunc(out, func(a, b Status) int { return strings.Compare(a.Node.Name, b.Node.Name) })
	return out
}

// call sends one request to a control socket.
func call(ctx context.Context, socket, method, path string, body io.Reader, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if real, err := os.Readlink(socket); err == nil {
		socket = real
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://node"+path, body)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, strings.TrimSpace(string(b)))
	}
	return json.Unmarshal(b, out)
}
