// Package chat turns a conversation into the token ids that a model was trained to
// see, by the Jinja template in its file.
//
// A template is a stranger's program: it runs in a child process with limits
// (child.go). Invariant: what a person wrote never becomes a control token, only
// the template's own text does. Start reading at Encode.
package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/token"
)

var (
	// ErrMessages: the conversation is at fault, or the template refuses it.
	ErrMessages = errors.New("bad messages")
	// ErrTemplate: the template is at fault: it does not parse, fails, or needs
	// more time or memory than a template may.
	ErrTemplate = errors.New("bad chat template")
)

const (
	maxMessages = 4096
	maxContent  = 4 << 20 // bytes of all messages together
	maxTemplate = 1 << 20
)

// Message is one turn. Role is "system" (or "developer", the same), "user",
// "assistant" or "tool".
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// UnmarshalJSON takes content as OpenAI's clients send it: a string, null, or a
// list of text parts, which are joined by newlines. Other parts are an error.
func (m *Message) UnmarshalJSON(data []byte) error {
	var raw struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return fmt.Errorf("%w: %w", ErrMessages, err)
	}
	*m = Message{Role: raw.Role}
	if len(raw.Content) == 0 || string(raw.Content) == "null" {
		return nil
	}
	if json.Unmarshal(raw.Content, &m.Content) == nil {
		return nil
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if err := json.Unmarshal(raw.Content, &parts); err != nil {
		return fmt.Errorf("%w: content is neither text nor a list of parts", ErrMessages)
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		if p.Type != "text" || p.Text == nil {
			return fmt.Errorf("%w: content part %d has type %q; only \"text\" is supported", ErrMessages, i, p.Type)
		}
		texts[i] = *p.Text
	}
	m.Content = strings.Join(texts, "\n")
	return nil
}

// check returns msgs with roles as templates know them.
func check(msgs []Message) ([]Message, error) {
	if len(msgs) == 0 || len(msgs) > maxMessages {
		return nil, fmt.Errorf("%w: %d messages, not 1 to %d", ErrMessages, len(msgs), maxMessages)
	}
	out := make([]Message, len(msgs))
	size := 0
	for i, m := range msgs {
		switch m.Role {
		case "system", "user", "assistant", "tool":
		case "developer":
			m.Role = "system"
		default:
			return nil, fmt.Errorf("%w: message %d has role %q; use system, user, assistant or tool", ErrMessages, i, m.Role)
		}
		if !utf8.ValidString(m.Content) {
			return nil, fmt.Errorf("%w: the content of message %d is not valid UTF-8", ErrMessages, i)
		}
		if size += len(m.Content); size > maxContent {
			return nil, fmt.Errorf("%w: more than %d bytes of text", ErrMessages, maxContent)
		}
		out[i] = m
	}
	return out, nil
}

// Template is a model's chat template and what it needs to know of the vocabulary.
type Template struct {
	Source   string
	BOS, EOS string
	// Note is a word for the user, "" when the file has a template of its own.
	Note string
	// Stop holds strings that end a turn and that are no token of the vocabulary.
	Stop []string
}

// ChatML is the template for files that have none.
const ChatML = `{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}` +
	`{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// FromModel returns the template of a model file, or ChatML when it has none.
func FromModel(f *gguf.File, t *token.Tokenizer) Template {
	source, _ := f.String("tokenizer.chat_template")
	return newTemplate(source, t)
}

func newTemplate(source string, t *token.Tokenizer) Template {
	tmpl := Template{Source: source}
	if id, ok := t.BOS(); ok {
		tmpl.BOS = t.Text(id)
	}
	if id, ok := t.EOS(); ok {
		tmpl.EOS = t.Text(id)
	}
	if strings.TrimSpace(source) != "" {
		return tmpl
	}
	tmpl.Source = ChatML
	tmpl.Note = "the model file has no chat template; using ChatML"
	for _, text := range t.ControlTexts() {
		if text == "<|im_end|>" {
			return tmpl
		}
	}
	tmpl.Note += ", which its vocabulary does not know either: this is a base model, made to continue text and not to chat"
	tmpl.Stop = []string{"<|im_end|>", "<|im_start|>"}
	return tmpl
}

// Render returns the text of a conversation by template. With
// addGenerationPrompt it ends where the assistant's answer begins. The text of the
// messages is in it as it is: use Encode to make ids of a conversation.
func Render(ctx context.Context, template, bos, eos string, msgs []Message, addGenerationPrompt bool, r Runner) (string, error) {
	msgs, err := check(msgs)
	if err != nil {
		return "", fmt.Errorf("render chat: %w", err)
	}
	text, err := render(ctx, r, request{template, bos, eos, msgs, addGenerationPrompt})
	if err != nil {
		return "", fmt.Errorf("render chat: %w", err)
	}
	return text, nil
}

// Prompt is a rendered conversation.
type Prompt struct {
	Text string
	IDs  []int32 // BOS included where the model wants it
}

// Encode renders a conversation and returns its ids. Control tokens that the
// template writes become control tokens; in the messages the same text stays text.
// Messages come in the model's normal form (token.Tokenizer.Normalize).
func Encode(ctx context.Context, r Runner, t *token.Tokenizer, tmpl Template, msgs []Message, addGenerationPrompt bool) (Prompt, error) {
	msgs, err := check(msgs)
	if err != nil {
		return Prompt{}, fmt.Errorf("encode chat: %w", err)
	}
	for i := range msgs {
		msgs[i].Content = t.Normalize(msgs[i].Content)
	}
	g, err := newGuard(tmpl.Source, msgs, t)
	if err != nil {
		return Prompt{}, fmt.Errorf("encode chat: %w", err)
	}
	for i := range msgs {
		msgs[i].Content = g.mark(msgs[i].Content)
	}
	text, err := render(ctx, r, request{tmpl.Source, tmpl.BOS, tmpl.EOS, msgs, addGenerationPrompt})
	if err != nil {
		return Prompt{}, fmt.Errorf("encode chat: %w", err)
	}
	text, guards := g.unmark(text)
	ids, err := t.EncodeGuarded(text, guards)
	if err != nil {
		return Prompt{}, fmt.Errorf("encode chat: %w", err)
	}
	if bos, ok := t.BOS(); ok && t.AddBOS() && (len(ids) == 0 || ids[0] != bos) {
		ids = append([]int32{bos}, ids...)
	}
	return Prompt{Text: text, IDs: ids}, nil
}
