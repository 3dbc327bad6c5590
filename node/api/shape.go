package api

import (
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/meshnet/meshnet/node/head"
)

// envelope is what every object of an answer begins with.
type envelope struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
}

func (s *Server) envelope(prefix string, req head.Request) envelope {
	return envelope{ID: prefix + head.SessionHex(req.Session), Created: s.cfg.Now().Unix(), Model: s.cfg.Model.ID}
}

func (e envelope) as(object string) envelope {
	e.Object = object
	return e
}

// chatShape writes chat.completion and chat.completion.chunk objects.
type chatShape struct {
	envelope
	logprobs bool
}

type chatChunk struct {
	envelope
	Choices []chatChoice `json:"choices"`
	Usage   *usage       `json:"usage,omitempty"`
}

type chatChoice struct {
	Index    int           `json:"index"`
	Delta    *chatDelta    `json:"delta,omitempty"`
	Message  *chatMessage  `json:"message,omitempty"`
	Logprobs *chatLogprobs `json:"logprobs"`
	Finish   *string       `json:"finish_reason"`
}

type chatDelta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type chatMessage struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

type chatLogprobs struct {
	Content []chatToken `json:"content"`
}

type chatToken struct {
	Token   string       `json:"token"`
	Logprob float32      `json:"logprob"`
	Bytes   []int        `json:"bytes"`
	Top     *[]chatToken `json:"top_logprobs,omitempty"`
}

func chatTokens(tokens []head.TokenLogprob, withTop bool) []chatToken {
	out := make([]chatToken, 0, len(tokens))
	for _, t := range tokens {
		ct := chatToken{Token: printable(t.Bytes), Logprob: t.Logprob, Bytes: make([]int, len(t.Bytes))}
		for i, b := range t.Bytes {
			ct.Bytes[i] = int(b)
		}
		if withTop {
			top := chatTokens(t.Top, false)
			ct.Top = &top
		}
		out = append(out, ct)
	}
	return out
}

// printable is the text of a token; bytes that are part of a character become U+FFFD.
func printable(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

func (c *chatShape) chunk(d chatDelta, tokens []head.TokenLogprob, finish *string) any {
	choice := chatChoice{Delta: &d, Finish: finish}
	if c.logprobs && len(tokens) > 0 {
		choice.Logprobs = &chatLogprobs{chatTokens(tokens, true)}
	}
	return chatChunk{envelope: c.as("chat.completion.chunk"), Choices: []chatChoice{choice}}
}

func (c *chatShape) first() any {
	empty := ""
	return c.chunk(chatDelta{"assistant", &empty}, nil, nil)
}

func (c *chatShape) delta(d head.Delta) any { return c.chunk(chatDelta{"", &d.Text}, d.Tokens, nil) }

func (c *chatShape) last(finish string) any { return c.chunk(chatDelta{}, nil, &finish) }

func (c *chatShape) usage(u usage) any {
	return chatChunk{envelope: c.as("chat.completion.chunk"), Choices: []chatChoice{}, Usage: &u}
}

func (c *chatShape) whole(text, finish string, tokens []head.TokenLogprob, u usage) any {
	choice := chatChoice{Message: &chatMessage{Role: "assistant", Content: text}, Finish: &finish}
	if c.logprobs {
		choice.Logprobs = &chatLogprobs{chatTokens(tokens, true)}
	}
	return chatChunk{envelope: c.as("chat.completion"), Choices: []chatChoice{choice}, Usage: &u}
}

// textShape writes text_completion objects.
type textShape struct {
	envelope
	logprobs bool
	offset   int // characters sent so far
}

type textChunk struct {
	envelope
	Choices []textChoice `json:"choices"`
	Usage   *usage       `json:"usage,omitempty"`
}

type textChoice struct {
	Index    int           `json:"index"`
	Text     string        `json:"text"`
	Logprobs *textLogprobs `json:"logprobs"`
	Finish   *string       `json:"finish_reason"`
}

type textLogprobs struct {
	Tokens  []string             `json:"tokens"`
	Values  []float32            `json:"token_logprobs"`
	Top     []map[string]float32 `json:"top_logprobs"`
	Offsets []int                `json:"text_offset"`
}

func (t *textShape) chunk(text string, tokens []head.TokenLogprob, finish *string) textChunk {
	choice := textChoice{Text: text, Finish: finish}
	if t.logprobs && len(tokens) > 0 {
		choice.Logprobs = &textLogprobs{}
		for _, tok := range tokens {
			top := map[string]float32{}
			for _, alt := range tok.Top {
				top[printable(alt.Bytes)] = alt.Logprob
			}
			piece := printable(tok.Bytes)
			l := choice.Logprobs
			l.Tokens, l.Values = append(l.Tokens, piece), append(l.Values, tok.Logprob)
			l.Top, l.Offsets = append(l.Top, top), append(l.Offsets, t.offset)
			t.offset += utf8.RuneCountInString(piece)
		}
	}
	return textChunk{envelope: t.as("text_completion"), Choices: []textChoice{choice}}
}

func (t *textShape) first() any { return nil }

func (t *textShape) delta(d head.Delta) any { return t.chunk(d.Text, d.Tokens, nil) }

func (t *textShape) last(finish string) any { return t.chunk("", nil, &finish) }

func (t *textShape) usage(u usage) any {
	return textChunk{envelope: t.as("text_completion"), Choices: []textChoice{}, Usage: &u}
}

func (t *textShape) whole(text, finish string, tokens []head.TokenLogprob, u usage) any {
	c := t.chunk(text, tokens, &finish)
	c.Usage = &u
	return c
}

type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	Context int    `json:"context_length,omitempty"`
}

func (s *Server) modelObject() modelObject {
	m := s.cfg.Model
	owner := m.Owner
	if owner == "" {
		owner = "meshnet"
	}
	return modelObject{m.ID, "model", m.Created.Unix(), owner, m.Context}
}

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []modelObject{s.modelObject()}})
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	if id := r.PathValue("id"); id != s.cfg.Model.ID {
		_, e := s.request(&common{Model: id})
		writeError(w, e)
		return
	}
	writeJSON(w, http.StatusOK, s.modelObject())
}
