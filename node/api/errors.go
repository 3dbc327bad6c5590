package api

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/route"
)

// apiError is an error in OpenAI's shape.
type apiError struct {
	status  int
	kind    string // "type" in the JSON
	code    string
	param   string
	message string
	retry   time.Duration // Retry-After
	allow   string        // Allow
}

func (e *apiError) Error() string { return e.message }

// body is {"error": {...}} with null for what is not known, as OpenAI's is.
func (e *apiError) body() any {
	orNull := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return map[string]any{"error": map[string]any{
		"message": e.message, "type": e.kind, "param": orNull(e.param), "code": orNull(e.code),
	}}
}

func invalid(param, message string) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "invalid_request_error", param: param, message: message}
}

// fromHead says what a failed Generate means to a client.
func fromHead(err error) *apiError {
	var (
		known *apiError
		long  *head.TooLongError
		gap   *route.GapError
		wrong *head.WrongRowsError
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &long):
		return &apiError{status: http.StatusBadRequest, kind: "invalid_request_error", code: "context_length_exceeded", param: "messages", message: err.Error()}
	case errors.Is(err, head.ErrBadRequest):
		return invalid("", err.Error())
	case errors.As(err, &gap):
		return &apiError{status: http.StatusServiceUnavailable, kind: "server_error", code: "no_route", message: err.Error(), retry: 5 * time.Second}
	case errors.As(err, &wrong):
		return &apiError{status: http.StatusBadGateway, kind: "server_error", code: "wrong_rows", message: err.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		return &apiError{status: http.StatusGatewayTimeout, kind: "server_error", code: "timeout", message: "the answer took too long: " + err.Error()}
	case errors.Is(err, context.Canceled):
		return &apiError{status: http.StatusServiceUnavailable, kind: "server_error", code: "shutting_down", message: "the server is stopping"}
	}
	return &apiError{status: http.StatusInternalServerError, kind: "server_error", message: err.Error()}
}

func writeError(w http.ResponseWriter, e *apiError) {
	if e.retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.retry.Seconds()))))
	}
	if e.allow != "" {
		w.Header().Set("Allow", e.allow)
	}
	writeJSON(w, e.status, e.body())
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil { // our own types: a bug of ours, but the client gets an answer
		status, b = http.StatusInternalServerError, []byte(`{"error":{"message":"the answer could not be written as JSON","type":"server_error","param":null,"code":null}}`)
	}
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // not every writer has one
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}
