package chat

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/meshnet/meshnet/shard/token"
)

// guard marks, before rendering, each place in a message where a control token
// would begin, by a character that occurs nowhere else; after rendering the marks
// are taken out and say where the tokenizer must see text. Searching the rendered
// text for the messages would not do: a message may be a control token and nothing
// else, and a template may trim or repeat it.
type guard struct {
	marker string
	t      *token.Tokenizer
	// beginnings of control tokens, all of them but the whole
	begun   map[string]bool
	longest int
}

// The markers to choose from: a private use plane, so that a template that trims
// or splits on white space or punctuation leaves them.
const firstMarker, lastMarker = 0xF0000, 0xF00FF

func newGuard(template string, msgs []Message, t *token.Tokenizer) (*guard, error) {
	for r := rune(firstMarker); r <= lastMarker; r++ {
		free := !strings.ContainsRune(template, r)
		for _, m := range msgs {
			free = free && !strings.ContainsRune(m.Content, r)
		}
		if free {
			g := &guard{marker: string(r), t: t, begun: map[string]bool{}}
			for _, c := range t.ControlTexts() {
				for n := 1; n < len(c); n++ {
					g.begun[c[:n]] = true
				}
				g.longest = max(g.longest, len(c))
			}
			return g, nil
		}
	}
	return nil, fmt.Errorf("%w: they use every private character from U+%X to U+%X", ErrMessages, firstMarker, lastMarker)
}

// mark puts the marker before each control token's text in content, and before an
// ending that only the template's next characters would complete.
func (g *guard) mark(content string) string {
	var b strings.Builder
	trimmed := strings.TrimRight(content, " \t\r\n")
	for i := 0; i < len(content); {
		tail := trimmed[min(i, len(trimmed)):]
		if g.t.BeginsControl(content[i:]) || g.begins(content[i:]) || g.begins(tail) {
			b.WriteString(g.marker)
		}
		_, n := utf8.DecodeRuneInString(content[i:])
		b.WriteString(content[i : i+n])
		i += n
	}
	return b.String()
}

// begins says whether tail is the beginning of a control token.
func (g *guard) begins(tail string) bool { return len(tail) < g.longest && g.begun[tail] }

// unmark takes the markers out of text and returns where they stood, ascending.
func (g *guard) unmark(text string) (string, []int) {
	parts := strings.Split(text, g.marker)
	var guards []int
	at := 0
	for _, p := range parts[:len(parts)-1] {
		at += len(p)
		guards = append(guards, at)
	}
	return strings.Join(parts, ""), guards
}
