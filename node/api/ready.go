package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// readiness remembers for a while whether the last forward through the route went well.
// Probes run one at a time and at most one in probePause.
type readiness struct {
	probe func(context.Context) error
	now   func() time.Time
	turn  chan struct{} // holds one token: whoever has it may probe

	mu   sync.Mutex
	ok   bool
	last time.Time
	err  error
}

const (
	probePause   = 2 * time.Second  // after a failure
	probeAgain   = 30 * time.Second // after a success: peers may have gone without anybody asking
	probeTimeout = 30 * time.Second
)

func newReadiness(probe func(context.Context) error, now func() time.Time) *readiness {
	r := &readiness{probe: probe, now: now, turn: make(chan struct{}, 1), err: errors.New("no forward has run yet")}
	r.turn <- struct{}{}
	return r
}

// note takes the outcome of a real request.
func (r *readiness) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ok, r.err, r.last = err == nil, err, r.now()
}

func (r *readiness) known() (ok, fresh bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last.IsZero() {
		return false, false, r.err
	}
	age := r.now().Sub(r.last)
	return r.ok && age < probeAgain, age < probePause, r.err
}

// check says nil if the route works, probing it if that isn't known.
func (r *readiness) check(ctx context.Context) error {
	if ok, fresh, err := r.known(); ok || fresh {
		return err
	}
	select {
	case <-r.turn:
		defer func() { r.turn <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if ok, fresh, err := r.known(); ok || fresh {
		return err
	}
	if r.probe == nil {
		r.note(nil)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := r.probe(ctx)
	if ctx.Err() == nil || err == nil {
		r.note(err)
	}
	return err
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	if err := s.ready.check(r.Context()); err != nil {
		writeError(w, &apiError{status: http.StatusServiceUnavailable, kind: "server_error", code: "not_ready", retry: probePause,
			message: fmt.Sprintf("not ready: %v", err)})
		return
	}
	fmt.Fprintln(w, "ready")
}

func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Status == nil {
		writeJSON(w, http.StatusOK, map[string]any{"model": s.cfg.Model.ID})
		return
	}
	v, err := s.cfg.Status(r.Context())
	if err != nil {
		writeError(w, &apiError{status: http.StatusInternalServerError, kind: "server_error", message: "status: " + err.Error()})
		return
	}
	writeJSON(w, http.StatusOK, v)
}
