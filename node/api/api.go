// Package api is the head's HTTP surface: OpenAI's completions, health, status
// and metrics.
//
// Invariant: an answer that was not finished never looks finished. A failure
// before the first byte is an error status, a failure after it an error event,
// and finish_reason is only ever what the model or a limit decided.
// Start reading at Server.Handler, then at chat in chat.go.
package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/prometheus/client_golang/prometheus"
)

// Engine is what the API needs of a head.
type Engine interface {
	// Generate answers one request, calling emit from its own goroutine.
	Generate(ctx context.Context, req head.Request, emit func(head.Delta) error) (head.Result, error)
}

// Model is what /v1/models shows.
type Model struct {
	ID      string
	Owner   string // who publishes the weights, or empty
	Created time.Time
	Context int // tokens
}

// Config is what a Server is made of. Zero limits take the defaults.
type Config struct {
	Engine Engine
	Model  Model
	// Ready runs one real forward through the whole route. It may be slow: the
	// server asks it once at a time and remembers a success for half a minute, or until a request fails.
	Ready func(ctx context.Context) error
	// Status is what /status shows, any JSON.
	Status func(ctx context.Context) (any, error)

	APIKey string   // asked of every /v1, /status and /metrics request if not empty
	Hosts  []string // names that a Host header may carry besides localhost and IP addresses

	Registry *prometheus.Registry // nil: a new one
	Logger   *slog.Logger         // nil: none

	Active    int           // requests that generate at the same time (8)
	Queued    int           // requests that wait for their turn (32)
	Heartbeat time.Duration // between SSE comments in silence (15 s)
	Timeout   time.Duration // of one request (10 min)
	Grace     time.Duration // for running requests when the server stops (30 s, as volunteers have)

	Now        func() time.Time      // nil: time.Now
	NewSession func() wire.SessionID // nil: random
}

const (
	maxBody      = 4 << 20
	maxHeader    = 64 << 10
	bodyTimeout  = 30 * time.Second // for a request's body to come
	maxConns     = 512              // connections; the next ones wait in the kernel
	maxInside    = 24               // requests that are read, beside those that generate or wait: their bodies are held
	maxParsing   = 4                // bodies that are taken apart at a time: JSON can be 20 times as large in memory
	maxMessages  = 2048
	writeTimeout = 30 * time.Second // for one write to a client that does not read
)

var errStopping = errors.New("the server is stopping")

// Server serves the API.
type Server struct {
	cfg     Config
	inside  chan struct{} // completions from before their body is read
	parsing chan struct{}
	gate    *gate
	ready   *readiness
	metrics *metrics
}

// New checks cfg and makes a Server. It listens to nothing yet.
func New(cfg Config) (*Server, error) {
	if cfg.Engine == nil || cfg.Model.ID == "" {
		return nil, errors.New("api: an engine and a model id are needed")
	}
	setDefault(&cfg.Active, 8)
	setDefault(&cfg.Queued, 32)
	setDefault(&cfg.Heartbeat, 15*time.Second)
	setDefault(&cfg.Timeout, 10*time.Minute)
	setDefault(&cfg.Grace, 30*time.Second)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.NewSession == nil {
		cfg.NewSession = func() (id wire.SessionID) {
			rand.Read(id[:])
			return id
		}
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	s := &Server{cfg: cfg, inside: make(chan struct{}, cfg.Active+cfg.Queued+maxInside), parsing: make(chan struct{}, maxParsing), gate: newGate(cfg.Active, cfg.Queued), ready: newReadiness(cfg.Ready, cfg.Now)}
	m, err := newMetrics(cfg.Registry, s.gate)
	if err != nil {
		return nil, err
	}
	s.metrics = m
	return s, nil
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Handler is the whole surface with its checks.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /v1/models/{id...}", s.model)
	mux.HandleFunc("POST /v1/chat/completions", s.chat)
	mux.HandleFunc("POST /v1/completions", s.completions)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /status", s.status)
	mux.Handle("GET /metrics", s.metrics.handler())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, s.unknownPath(mux, r))
	})
	return s.guard(mux)
}

// unknownPath tells a wrong method from a wrong path.
func (s *Server) unknownPath(mux *http.ServeMux, r *http.Request) *apiError {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); method != r.Method && pattern != "/" {
			return &apiError{status: http.StatusMethodNotAllowed, kind: "invalid_request_error", allow: method,
				message: fmt.Sprintf("%s takes %s, not %s", r.URL.Path, method, r.Method)}
		}
	}
	return &apiError{status: http.StatusNotFound, kind: "invalid_request_error", code: "unknown_url",
		message: fmt.Sprintf("no such path: %q. There are /v1/models, /v1/chat/completions, /v1/completions, /healthz, /readyz, /status and /metrics", r.URL.Path)}
}

// Serve answers on l until ctx ends, then lets running requests end within
// the grace and cuts off the rest. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	base, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	srv := &http.Server{
		Handler:           s.Handler(),
		MaxHeaderBytes:    maxHeader,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(limitConns(l, maxConns)) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve the API on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	grace, done := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Grace)
	defer done()
	err := srv.Shutdown(grace)
	cut(errStopping)
	if err != nil { // some request still ran: its context is cut now, give it a moment to say so
		last, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer done()
		err = srv.Shutdown(last)
		srv.Close()
	}
	<-failed
	return err
}
