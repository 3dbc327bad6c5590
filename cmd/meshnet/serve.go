package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/meshnet/meshnet/node"
	"github.com/meshnet/meshnet/node/api"
)

// serveCmd is the OpenAI-compatible API of a head peer.
type serveCmd struct {
	modelFlag
	Host     string   `help:"Address of the API." default:"127.0.0.1" env:"MESHNET_API_HOST" placeholder:"IP"`
	Port     uint16   `help:"Port of the API; 0 picks a free one." default:"8080" env:"MESHNET_API_PORT" placeholder:"PORT"`
	APIKey   string   `help:"Key that clients must send; needed on any address but loopback." name:"api-key" env:"MESHNET_API_KEY" placeholder:"KEY"`
	HostName []string `help:"Name by which clients call this server, besides localhost and IP addresses (repeatable)." placeholder:"NAME"`
	cacheFlag
	standbyFlag
	verifyFlag
	netFlags
}

// Help is shown by --help.
func (serveCmd) Help() string {
	return `Examples:
  meshnet serve --model smollm2
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"smollm2","messages":[{"role":"user","content":"Why is the sky blue?"}],"stream":true}'

Paths: /v1/models, /v1/chat/completions, /v1/completions, /healthz, /readyz, /status, /metrics.`
}

// Run serves until it is stopped.
func (s *serveCmd) Run(a *app) error {
	s.tie(a)
	addr := net.JoinHostPort(s.Host, strconv.Itoa(int(s.Port)))
	if err := api.CheckExposure(addr, s.APIKey); err != nil {
		return fail(exitUsage, err)
	}
	l, err := net.Listen("tcp", addr) // before anything slow: a busy port should not take a download to notice
	if err != nil {
		return fail(exitInUse, fmt.Errorf("listen for the API: %w; give another --port, or 0 for any free one", err))
	}
	defer l.Close()
	w, err := a.openModel(s.Model)
	if err != nil {
		return err
	}
	defer w.model.Close()
	h, err := a.openHead(w, &s.netFlags, s.cache(), s.Standby, s.verifyFlag)
	if err != nil {
		return err
	}
	err = s.serve(a, w, h, l)
	return errors.Join(err, h.Close())
}

func (s *serveCmd) serve(a *app, w *weights, h *node.HeadPeer, l net.Listener) error {
	srv, err := api.New(api.Config{
		Engine: h.Head, Model: api.Model{ID: w.Name, Created: w.Added, Context: h.MaxLen()}, Ready: h.Probe,
		Status: func(context.Context) (any, error) { return h.Status(), nil },
		APIKey: s.APIKey, Hosts: s.HostName, Registry: h.Node().Registry(), Logger: a.log,
	})
	if err != nil {
		return err
	}
	url := "http://" + l.Addr().String()
	if a.json {
		printJSON(a.stdout, map[string]any{"url": url + "/v1", "model": w.Name, "peer": h.Node().Self(), "addrs": h.Node().Addrs()})
	} else {
		fmt.Fprintf(a.stderr, "OpenAI API for %s at %s/v1 (status: %s/status)\n", w.Name, url, url)
		if note := h.Note(); note != "" {
			fmt.Fprintln(a.stderr, printable(note))
		}
	}
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.watchRoute(ctx, a, h)
	}()
	err = srv.Serve(ctx, l)
	cancel()
	<-watched
	return err
}

// watchRoute tells the person when the first route stands.
func (s *serveCmd) watchRoute(ctx context.Context, a *app, h *node.HeadPeer) {
	patience, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := h.WaitRoute(patience)
	if err != nil && ctx.Err() == nil && !a.json {
		fmt.Fprintf(a.stderr, "waiting for peers: %v\n", err)
		r, err = h.WaitRoute(ctx)
	}
	if err == nil && !a.json {
		fmt.Fprintf(a.stderr, "route: %s, %.1f ms a token predicted\n", r, float64(r.PredictedMicros())/1000)
	}
}
