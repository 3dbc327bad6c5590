package chat

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// layout decides which white space of a template is text, as Jinja does with
// trim_blocks and lstrip_blocks, and returns a template without any: every text is a
// string in a tag of its own, {{ 'text' }}. The engine's own rules are not Jinja's where
// two tags touch ("a {{ b }}{%- if c %}" loses a space), and a prompt with other
// white space is a prompt that the model was not trained on. It also writes strings
// with the escapes that the engine knows, and a nested "}}" so that it does not end a tag.
func layout(source string) (string, error) {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	l := layouter{src: strings.TrimSuffix(source, "\n"), lineStart: true}
	for l.pos < len(l.src) {
		if err := l.next(); err != nil {
			return "", err
		}
	}
	return l.out.String(), nil
}

type layouter struct {
	src       string
	pos       int
	lineStart bool // what stands before pos ends with a newline that a tag has swallowed, or is nothing
	out       strings.Builder
}

var (
	rawBegin = regexp.MustCompile(`^\s*raw\s*(-%}\s*|%})`)
	rawEnd   = regexp.MustCompile(`{%([-+]?)\s*endraw\s*(\+%}|-%}\s*|%}\n?)`)
)

// next writes the text up to the next tag and the tag.
func (l *layouter) next() error {
	at := l.pos
	for at < len(l.src) && !(l.src[at] == '{' && at+1 < len(l.src) && strings.IndexByte("{%#", l.src[at+1]) >= 0) {
		at++
	}
	text := l.src[l.pos:at]
	if at == len(l.src) {
		l.text(text)
		l.pos = at
		return nil
	}
	kind := l.src[at+1]
	l.pos = at + 2
	sign := l.sign()
	l.text(l.trim(text, sign, kind != '{'))
	switch {
	case kind == '#':
		return l.comment(at)
	case kind == '%' && rawBegin.MatchString(l.src[l.pos:]):
		return l.raw(at)
	}
	return l.tag(at, kind)
}

// sign takes the - or + after the beginning of a tag.
func (l *layouter) sign() byte {
	if l.pos < len(l.src) && (l.src[l.pos] == '-' || l.src[l.pos] == '+') {
		l.pos++
		return l.src[l.pos-1]
	}
	return 0
}

// trim takes off the end of text what a tag after it swallows: with -, all white
// space; without a sign, a block or comment that is the first thing on its line
// takes its indentation.
func (l *layouter) trim(text string, sign byte, block bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, unicode.IsSpace)
	case sign == '+' || !block:
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if (line > 0 || l.lineStart) && strings.TrimSpace(text[line:]) == "" {
		return text[:line]
	}
	return text
}

func (l *layouter) text(text string) {
	if text != "" {
		l.out.WriteString("{{ ")
		l.quote(text)
		l.out.WriteString(" }}")
	}
}

func (l *layouter) quote(text string) {
	l.out.WriteByte('\'')
	l.out.WriteString(strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(text))
	l.out.WriteByte('\'')
}

// end moves behind a tag's end, and what white space it swallows: all if strip, else
// one newline if newline.
func (l *layouter) end(pos int, strip, newline bool) {
	l.pos = pos
	switch rest := l.src[pos:]; {
	case strip:
		l.pos = len(l.src) - len(strings.TrimLeftFunc(rest, unicode.IsSpace))
	case newline && strings.HasPrefix(rest, "\n"):
		l.pos++
	}
	l.lineStart = l.pos > pos && l.src[l.pos-1] == '\n'
}

func (l *layouter) comment(at int) error {
	n := strings.Index(l.src[l.pos:], "#}")
	if n < 0 {
		return l.unfinished("comment", at)
	}
	var last byte
	if n > 0 {
		last = l.src[l.pos+n-1]
	}
	l.end(l.pos+n+2, last == '-', last != '+')
	return nil
}

func (l *layouter) raw(at int) error {
	l.pos += len(rawBegin.FindString(l.src[l.pos:]))
	m := rawEnd.FindStringSubmatchIndex(l.src[l.pos:])
	if m == nil {
		return l.unfinished("raw block", at)
	}
	body, found := l.src[l.pos:l.pos+m[0]], l.src[l.pos+m[0]:l.pos+m[1]]
	var sign byte
	if m[3] > m[2] {
		sign = l.src[l.pos+m[2]]
	}
	l.lineStart = false
	l.text(l.trim(body, sign, true))
	l.pos += m[1]
	l.lineStart = strings.HasSuffix(found, "\n")
	return nil
}

// tag copies an expression or statement.
func (l *layouter) tag(at int, kind byte) error {
	open, closing := "{{ ", "}}"
	if kind == '%' {
		open, closing = "{% ", "%}"
	}
	l.out.WriteString(open)
	depth := 0
	for l.pos < len(l.src) {
		rest := l.src[l.pos:]
		if depth == 0 {
			sign := byte(0)
			if rest[0] == '-' || rest[0] == '+' && kind == '%' {
				sign = rest[0]
				rest = rest[1:]
			}
			if strings.HasPrefix(rest, closing) {
				l.out.WriteString(" " + closing)
				l.end(len(l.src)-len(rest)+2, sign == '-', sign == 0 && kind == '%')
				return nil
			}
		}
		switch c := l.src[l.pos]; c {
		case '\'', '"':
			if !l.str(c) {
				return l.unfinished("string", l.pos)
			}
			continue
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth = max(depth-1, 0)
			if c == '}' {
				l.out.WriteByte(' ') // "}}" would end the tag for the engine
			}
		}
		l.out.WriteByte(l.src[l.pos])
		l.pos++
	}
	return l.unfinished("tag", at)
}

// str copies a string with Python's escapes resolved.
func (l *layouter) str(quote byte) bool {
	var b strings.Builder
	for i := l.pos + 1; i < len(l.src); i++ {
		switch c := l.src[i]; {
		case c == quote:
			l.quote(b.String())
			l.pos = i + 1
			return true
		case c == '\\' && i+1 < len(l.src):
			n := escape(&b, l.src[i:])
			i += n - 1
		default:
			b.WriteByte(c)
		}
	}
	return false
}

// escape resolves the escape sequence at the start of s and returns its length. An
// unknown one stands for itself.
func escape(b *strings.Builder, s string) int {
	simple := map[byte]string{'n': "\n", 't': "\t", 'r': "\r", '\\': "\\", '\'': "'", '"': "\"", '\n': "",
		'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v"}
	if text, ok := simple[s[1]]; ok {
		b.WriteString(text)
		return 2
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[1]]
	if digits > 0 && len(s) >= 2+digits {
		if v, err := strconv.ParseUint(s[2:2+digits], 16, 32); err == nil && v <= unicode.MaxRune {
			b.WriteRune(rune(v))
			return 2 + digits
		}
	}
	_, n := utf8.DecodeRuneInString(s[1:])
	b.WriteString(s[:1+n])
	return 1 + n
}

func (l *layouter) unfinished(what string, at int) error {
	return fmt.Errorf("the %s that begins in line %d does not end", what, 1+strings.Count(l.src[:at], "\n"))
}
