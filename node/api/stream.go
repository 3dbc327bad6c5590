package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"
)

// stream is one answer as server-sent events. It begins with the first thing
// that is sent, so that what fails before that is still an HTTP error. Safe for
// two goroutines: the one that generates and the one that keeps the line alive.
type stream struct {
	w    http.ResponseWriter
	ctl  *http.ResponseController
	tick time.Duration

	mu      sync.Mutex
	started bool // the status line is out
	begun   bool // the shape's first event is out
	ended   bool
	err     error // of the first write that failed
	sent    chan struct{}
}

func newStream(w http.ResponseWriter, heartbeat time.Duration) *stream {
	return &stream{w: w, ctl: http.NewResponseController(w), tick: heartbeat, sent: make(chan struct{}, 1)}
}

// keepAlive sends a comment after every silence of a heartbeat until ctx ends.
// cancel is called when the client can't be written to any more.
func (s *stream) keepAlive(ctx context.Context, cancel func()) {
	t := time.NewTimer(s.tick)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.sent:
		case <-t.C:
			if s.comment("still working") != nil {
				cancel()
				return
			}
		}
		t.Reset(s.tick)
	}
}

// begin sends the shape's first event once. Only the generating goroutine calls it.
func (s *stream) begin(sh shape) {
	if s.begun {
		return
	}
	s.begun = true
	if ev := sh.first(); ev != nil {
		s.event(ev)
	}
}

// event sends v as one data event.
func (s *stream) event(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.write("data: " + string(b) + "\n\n")
}

// comment sends words that clients pass over and people see in curl.
func (s *stream) comment(text string) error {
	return s.write(": " + strings.Join(strings.Fields(text), " ") + "\n\n")
}

func (s *stream) write(frame string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || s.ended {
		return s.err
	}
	s.ctl.SetWriteDeadline(time.Now().Add(writeTimeout))
	if !s.started {
		s.started = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // nginx holds events back otherwise
		s.w.WriteHeader(http.StatusOK)
	}
	if _, err := s.w.Write([]byte(frame)); err != nil {
		s.err = err
		return err
	}
	if s.err = s.ctl.Flush(); s.err != nil {
		return s.err
	}
	select {
	case s.sent <- struct{}{}:
	default:
	}
	return nil
}

// fail tells the client that the answer ends unfinished.
func (s *stream) fail(e *apiError) {
	s.mu.Lock()
	started := s.started
	if !started {
		s.ended = true
	}
	s.mu.Unlock()
	if !started {
		writeError(s.w, e)
		return
	}
	s.event(e.body())
}

// broken says that the client can't be written to any more.
func (s *stream) broken() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

// done ends a finished answer.
func (s *stream) done() { s.write("data: [DONE]\n\n") }
