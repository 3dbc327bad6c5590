package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/meshnet/meshnet/node/head"
)

// shape writes one kind of completion: chat or plain text.
type shape interface {
	first() any // the event before the first piece, or nil
	delta(d head.Delta) any
	last(finish string) any
	usage(u usage) any
	whole(text, finish string, tokens []head.TokenLogprob, u usage) any
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	if !s.enter(w, "chat") {
		return
	}
	defer s.leave()
	var body chatRequest
	if e := s.decode(w, r, &body); e != nil {
		s.refuse(w, "chat", e)
		return
	}
	req, e := s.chatRequest(&body)
	if e != nil {
		s.refuse(w, "chat", e)
		return
	}
	s.complete(w, r, "chat", &body.common, req, &chatShape{s.envelope("chatcmpl-", req), req.Logprobs})
}

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	if !s.enter(w, "text") {
		return
	}
	defer s.leave()
	var body completionRequest
	if e := s.decode(w, r, &body); e != nil {
		s.refuse(w, "text", e)
		return
	}
	req, e := s.completionRequest(&body)
	if e != nil {
		s.refuse(w, "text", e)
		return
	}
	s.complete(w, r, "text", &body.common, req, &textShape{envelope: s.envelope("cmpl-", req), logprobs: req.Logprobs})
}

// enter counts a request in before its body is read, or refuses it.
func (s *Server) enter(w http.ResponseWriter, kind string) bool {
	select {
	case s.inside <- struct{}{}:
		return true
	default:
		w.Header().Set("Connection", "close") // at once, and without reading the body
		s.refuse(w, kind, s.tooMany())
		return false
	}
}

func (s *Server) leave() { <-s.inside }

func (s *Server) tooMany() *apiError {
	return &apiError{status: http.StatusTooManyRequests, kind: "rate_limit_error", code: "too_many_requests", retry: 5 * time.Second,
		message: fmt.Sprintf("%d requests run and %d wait already: come back later", s.cfg.Active, s.cfg.Queued)}
}

func (s *Server) refuse(w http.ResponseWriter, kind string, e *apiError) {
	s.metrics.requests.WithLabelValues(kind, fmt.Sprint(e.status)).Inc()
	writeError(w, e)
}

// complete answers one request that was understood: wait for a turn, generate,
// and write the pieces as they come or the whole at the end.
func (s *Server) complete(w http.ResponseWriter, r *http.Request, kind string, c *common, req head.Request, sh shape) {
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.Timeout)
	defer cancel()
	w.Header().Set("X-Meshnet-Session", head.SessionHex(req.Session))
	req.Whole = !c.Stream
	withUsage := c.StreamOptions != nil && c.StreamOptions.IncludeUsage

	var out *stream
	if c.Stream {
		out = newStream(w, s.cfg.Heartbeat)
		var keeper sync.WaitGroup
		defer keeper.Wait()
		kept, stop := context.WithCancel(ctx)
		defer stop()
		keeper.Go(func() { out.keepAlive(kept, cancel) })
	}
	full, err := s.gate.enter(ctx, func() {})
	if full {
		err = s.tooMany()
	}
	var res head.Result
	var logprobs []head.TokenLogprob
	if err == nil {
		res, err = func() (head.Result, error) {
			defer s.gate.leave()
			return s.cfg.Engine.Generate(ctx, req, func(d head.Delta) error {
				if d.Again {
					logprobs = nil
				}
				if out == nil {
					logprobs = append(logprobs, d.Tokens...)
					return nil
				}
				return sendDelta(out, sh, d)
			})
		}()
		s.metrics.observe(&res)
	}
	s.conclude(w, r, out, kind, req, err)
	if err != nil {
		return
	}
	u := usage{len(res.PromptIDs), len(res.IDs), len(res.PromptIDs) + len(res.IDs)}
	if out == nil {
		writeJSON(w, http.StatusOK, sh.whole(res.Text, res.FinishReason, logprobs, u))
		return
	}
	out.begin(sh) // an answer without a piece begins too
	out.event(sh.last(res.FinishReason))
	if withUsage {
		out.event(sh.usage(u))
	}
	out.done()
}

func sendDelta(out *stream, sh shape, d head.Delta) error {
	if d.Note != nil {
		return out.comment(d.Note.Text)
	}
	if d.Text == "" && len(d.Tokens) == 0 {
		return nil
	}
	out.begin(sh)
	return out.event(sh.delta(d))
}

// conclude counts the outcome and, for a failure, tells the client.
func (s *Server) conclude(w http.ResponseWriter, r *http.Request, out *stream, kind string, req head.Request, err error) {
	if err == nil {
		s.ready.note(nil)
		s.metrics.requests.WithLabelValues(kind, "200").Inc()
		return
	}
	stopping := errors.Is(context.Cause(r.Context()), errStopping)
	if out.broken() || r.Context().Err() != nil && !stopping { // nobody listens; 499 is nginx' number for it
		s.metrics.requests.WithLabelValues(kind, "499").Inc()
		return
	}
	e := fromHead(err)
	s.metrics.requests.WithLabelValues(kind, fmt.Sprint(e.status)).Inc()
	if e.status >= 500 && !stopping {
		s.ready.note(err)
		s.cfg.Logger.Warn("request failed", "session", head.SessionHex(req.Session), "status", e.status, "err", err)
	}
	if out != nil {
		out.fail(e)
		return
	}
	writeError(w, e)
}
