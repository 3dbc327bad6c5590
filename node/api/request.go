package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/shard/chat"
	"github.com/meshnet/meshnet/shard/sample"
)

// common is what both kinds of completion take.
type common struct {
	Model               string             `json:"model"`
	MaxTokens           *int               `json:"max_tokens"`
	MaxCompletionTokens *int               `json:"max_completion_tokens"`
	Temperature         *float32           `json:"temperature"`
	TopP                *float32           `json:"top_p"`
	TopK                *int               `json:"top_k"`
	MinP                *float32           `json:"min_p"`
	RepeatPenalty       *float32           `json:"repeat_penalty"`
	FrequencyPenalty    *float32           `json:"frequency_penalty"`
	PresencePenalty     *float32           `json:"presence_penalty"`
	LogitBias           map[string]float32 `json:"logit_bias"`
	Seed                *int64             `json:"seed"`
	N                   *int               `json:"n"`
	Stop                oneOrMany          `json:"stop"`
	Stream              bool               `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

type chatRequest struct {
	common
	Messages       []message `json:"messages"`
	Logprobs       *bool     `json:"logprobs"`
	TopLogprobs    *int      `json:"top_logprobs"`
	Tools          given     `json:"tools"`
	Functions      given     `json:"functions"`
	Modalities     []string  `json:"modalities"`
	ResponseFormat *struct {
		Type string `json:"type"`
	} `json:"response_format"`
}

type completionRequest struct {
	common
	Prompt   prompt  `json:"prompt"`
	Logprobs *int    `json:"logprobs"`
	BestOf   *int    `json:"best_of"`
	Echo     bool    `json:"echo"`
	Suffix   *string `json:"suffix"`
}

// given says that a field holds an array with something in it, which is not kept.
type given bool

func (g *given) UnmarshalJSON(b []byte) error {
	text := strings.TrimSpace(string(b[:min(len(b), 64)]))
	if text != "null" && text[0] != '[' {
		return &json.UnmarshalTypeError{Value: "value that is no array", Type: reflect.TypeFor[[]any]()}
	}
	*g = text != "null" && strings.TrimSpace(text[1:]) != "]"
	return nil
}

// oneOrMany is a string, an array of strings, or null.
type oneOrMany []string

func (o *oneOrMany) UnmarshalJSON(b []byte) error {
	if b[0] == '"' {
		*o = make(oneOrMany, 1)
		return json.Unmarshal(b, &(*o)[0])
	}
	return json.Unmarshal(b, (*[]string)(o))
}

// message is one turn. Its content is a string or an array of text parts, which become lines.
type message struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
}

type content string

func (c *content) UnmarshalJSON(b []byte) error {
	if b[0] != '[' {
		return json.Unmarshal(b, (*string)(c))
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return err
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		if p.Type != "text" || p.Text == nil {
			return invalid("messages", fmt.Sprintf("content part %d is of type %q: this server takes text only", i, p.Type))
		}
		texts[i] = *p.Text
	}
	*c = content(strings.Join(texts, "\n"))
	return nil
}

// prompt is a text or token ids, alone or as the only element of an array.
type prompt struct {
	text string
	ids  []int32
	set  bool
}

func (p *prompt) UnmarshalJSON(b []byte) error {
	p.set = true
	if json.Unmarshal(b, &p.text) == nil || json.Unmarshal(b, &p.ids) == nil {
		return nil
	}
	var texts []string
	if json.Unmarshal(b, &texts) == nil && len(texts) == 1 {
		p.text = texts[0]
		return nil
	}
	var ids [][]int32
	if json.Unmarshal(b, &ids) == nil && len(ids) == 1 {
		p.ids = ids[0]
		return nil
	}
	return invalid("prompt", "prompt must be one text or one array of token ids")
}

// decode reads the body as one JSON object of valid UTF-8. Fields that we do not
// know are passed over, as clients send many that change nothing.
func (s *Server) decode(w http.ResponseWriter, r *http.Request, v any) *apiError {
	body, err := io.ReadAll(r.Body)
	if err == nil { // else the server takes a client that only listens for one that is gone
		http.NewResponseController(w).SetReadDeadline(time.Time{})
	} else {
		var big *http.MaxBytesError
		if errors.As(err, &big) {
			return &apiError{status: http.StatusRequestEntityTooLarge, kind: "invalid_request_error", code: "request_too_large",
				message: fmt.Sprintf("the body is longer than %d bytes", big.Limit)}
		}
		return invalid("", "the body could not be read: "+err.Error())
	}
	if !utf8.Valid(body) {
		return invalid("", "the body is not valid UTF-8")
	}
	select {
	case s.parsing <- struct{}{}:
		defer func() { <-s.parsing }()
	case <-r.Context().Done():
		return invalid("", "the client is gone")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(v); err != nil {
		var ours *apiError
		var field *json.UnmarshalTypeError
		switch {
		case errors.As(err, &ours):
			return ours
		case errors.As(err, &field) && field.Field != "":
			return invalid(field.Field, fmt.Sprintf("%s: a JSON %s does not belong here", field.Field, field.Value))
		}
		return invalid("", "the body is not a JSON object as expected: "+err.Error())
	}
	if _, err := d.Token(); err != io.EOF {
		return invalid("", "there is something after the JSON object")
	}
	return nil
}

// request turns the common fields into the head's terms.
func (s *Server) request(c *common) (head.Request, *apiError) {
	var none head.Request
	if c.Model != "" && c.Model != s.cfg.Model.ID {
		return none, &apiError{status: http.StatusNotFound, kind: "invalid_request_error", code: "model_not_found", param: "model",
			message: fmt.Sprintf("model %q is not served here; this server has %q", c.Model, s.cfg.Model.ID)}
	}
	if c.N != nil && *c.N != 1 {
		return none, invalid("n", fmt.Sprintf("n is %d: this server gives one answer a request", *c.N))
	}
	if len(c.Stop) > 16 {
		return none, invalid("stop", fmt.Sprintf("%d stop strings: at most 16", len(c.Stop)))
	}
	for _, stop := range c.Stop {
		if stop == "" {
			return none, invalid("stop", "a stop string is empty")
		}
	}
	req := head.Request{Session: s.cfg.NewSession(), Stop: c.Stop}
	for name, limit := range map[string]*int{"max_tokens": c.MaxTokens, "max_completion_tokens": c.MaxCompletionTokens} {
		if limit == nil {
			continue
		}
		if *limit < 1 {
			return none, invalid(name, fmt.Sprintf("%s is %d: at least 1", name, *limit))
		}
		if req.MaxTokens == 0 || *limit < req.MaxTokens {
			req.MaxTokens = *limit
		}
	}
	p := sample.Params{Temperature: or(c.Temperature, 1), TopP: or(c.TopP, 1), TopK: or(c.TopK, 0), MinP: or(c.MinP, 0),
		RepeatPenalty: or(c.RepeatPenalty, 1), FrequencyPenalty: or(c.FrequencyPenalty, 0), PresencePenalty: or(c.PresencePenalty, 0)}
	if c.Seed != nil {
		p.Seed = uint64(*c.Seed)
	} else {
		p.Seed = rand.Uint64()
	}
	if len(c.LogitBias) > 1024 {
		return none, invalid("logit_bias", fmt.Sprintf("logit_bias names %d tokens: at most 1024", len(c.LogitBias)))
	}
	for key, bias := range c.LogitBias {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || bias < -100 || bias > 100 || math.IsNaN(float64(bias)) {
			return none, invalid("logit_bias", fmt.Sprintf("logit_bias %q: %v: token ids with values from -100 to 100", key, bias))
		}
		if p.LogitBias == nil {
			p.LogitBias = map[int32]float32{}
		}
		p.LogitBias[int32(id)] = bias
	}
	if err := p.Validate(); err != nil {
		return none, invalid("", err.Error())
	}
	req.Sampling = p
	return req, nil
}

func or[T any](p *T, def T) T {
	if p == nil {
		return def
	}
	return *p
}

func (s *Server) chatRequest(c *chatRequest) (head.Request, *apiError) {
	req, e := s.request(&c.common)
	if e != nil {
		return req, e
	}
	switch {
	case bool(c.Tools || c.Functions):
		return req, invalid("tools", "tools are not supported by this server")
	case c.ResponseFormat != nil && c.ResponseFormat.Type != "text":
		return req, invalid("response_format", fmt.Sprintf("response_format %q is not supported, only \"text\"", c.ResponseFormat.Type))
	case len(c.Modalities) > 1 || len(c.Modalities) == 1 && c.Modalities[0] != "text":
		return req, invalid("modalities", "this server answers with text only")
	case len(c.Messages) == 0:
		return req, invalid("messages", "messages is empty")
	case len(c.Messages) > maxMessages:
		return req, invalid("messages", fmt.Sprintf("%d messages: at most %d", len(c.Messages), maxMessages))
	}
	for i, m := range c.Messages {
		role := m.Role
		switch role {
		case "system", "user", "assistant":
		case "developer": // the newer name of system
			role = "system"
		default:
			return req, invalid("messages", fmt.Sprintf("messages[%d].role is %q: one of system, developer, user, assistant", i, m.Role))
		}
		req.Messages = append(req.Messages, chat.Message{Role: role, Content: string(m.Content)})
	}
	req.TopLogprobs = or(c.TopLogprobs, 0)
	req.Logprobs = or(c.Logprobs, false)
	if req.TopLogprobs < 0 || req.TopLogprobs > 20 || req.TopLogprobs > 0 && !req.Logprobs {
		return req, invalid("top_logprobs", "top_logprobs is from 0 to 20 and needs logprobs: true")
	}
	return req, nil
}

func (s *Server) completionRequest(c *completionRequest) (head.Request, *apiError) {
	req, e := s.request(&c.common)
	if e != nil {
		return req, e
	}
	switch {
	case !c.Prompt.set || c.Prompt.text == "" && len(c.Prompt.ids) == 0:
		return req, invalid("prompt", "prompt is missing or empty")
	case c.BestOf != nil && *c.BestOf != 1:
		return req, invalid("best_of", "best_of is not supported, only 1")
	case c.Echo:
		return req, invalid("echo", "echo is not supported")
	case c.Suffix != nil && *c.Suffix != "":
		return req, invalid("suffix", "suffix is not supported")
	}
	req.Text, req.IDs = c.Prompt.text, c.Prompt.ids
	if c.Logprobs != nil {
		req.Logprobs, req.TopLogprobs = true, *c.Logprobs
		if req.TopLogprobs < 0 || req.TopLogprobs > 20 {
			return req, invalid("logprobs", "logprobs is from 0 to 20")
		}
	}
	return req, nil
}
