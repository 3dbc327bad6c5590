package token

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// A pass cuts text into pieces: every byte is in one piece, in order.
type pass func(text string, yield func(piece string) error) error

// scan makes a pass of a function that measures the first piece of a text, at
// least one byte of it.
func scan(first func(string) int) pass {
	return func(text string, yield func(string) error) error {
		for len(text) > 0 {
			n := first(text)
			if err := yield(text[:n]); err != nil {
				return err
			}
			text = text[n:]
		}
		return nil
	}
}

// regex makes a pass of a pattern: its matches and what lies between them.
func regex(pattern string) pass {
	re := regexp2.MustCompile(pattern)
	re.MatchTimeout = 10 * time.Second
	return func(text string, yield func(string) error) error {
		found, err := re.FindAllStringIndex(text, -1)
		if err != nil {
			return fmt.Errorf("split text into words: %w", err)
		}
		at := 0
		for _, m := range found {
			for _, piece := range [2]string{text[at:m[0]], text[m[0]:m[1]]} {
				if piece == "" {
					continue
				}
				if err := yield(piece); err != nil {
					return err
				}
			}
			at = m[1]
		}
		if at < len(text) {
			return yield(text[at:])
		}
		return nil
	}
}

func isLetter(r rune) bool { return unicode.Is(unicode.L, r) }
func isNumber(r rune) bool { return unicode.Is(unicode.N, r) }
func isMark(r rune) bool   { return unicode.Is(unicode.M, r) }

// isOther: [^\s\p{L}\p{N}]. A byte that is not UTF-8 is one.
func isOther(r rune) bool { return !unicode.IsSpace(r) && !isLetter(r) && !isNumber(r) }

func isNewline(r rune) bool { return r == '\r' || r == '\n' }

// run is the number of bytes at the start of s whose characters satisfy is.
func run(s string, is func(rune) bool) int {
	i := 0
	for i < len(s) {
		r, n := utf8.DecodeRuneInString(s[i:])
		if !is(r) {
			break
		}
		i += n
	}
	return i
}

// digits: \p{N}{1,most} and the text between.
func digits(most int) pass {
	return scan(func(s string) int {
		if n := numbers(s, most); n > 0 {
			return n
		}
		return run(s, func(r rune) bool { return !isNumber(r) })
	})
}

func numbers(s string, most int) int {
	count := 0
	return run(s, func(r rune) bool {
		count++
		return count <= most && isNumber(r)
	})
}

// contraction measures 's, 't, 're, 've, 'm, 'll or 'd at the start of s.
func contraction(s string, fold bool) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	for _, c := range [...]string{"s", "t", "re", "ve", "m", "ll", "d"} {
		if len(s) > len(c) && (s[1:1+len(c)] == c || fold && strings.EqualFold(s[1:1+len(c)], c)) {
			return 1 + len(c)
		}
	}
	if fold && strings.HasPrefix(s[1:], "ſ") { // folds to s
		return 1 + len("ſ")
	}
	return 0
}

// spaces measures \s+(?!\S)|\s+ : white space, but one character of it is left for
// the word that follows.
func spaces(s string) int {
	n := run(s, unicode.IsSpace)
	if n == len(s) {
		return n
	}
	_, last := utf8.DecodeLastRuneInString(s[:n])
	if n > last {
		return n - last
	}
	return n
}

// gpt2: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func gpt2(s string) int {
	if n := contraction(s, false); n > 0 {
		return n
	}
	lead := 0
	if s[0] == ' ' {
		lead = 1
	}
	for _, is := range [...]func(rune) bool{isLetter, isNumber, isOther} {
		if n := run(s[lead:], is); n > 0 {
			return lead + n
		}
	}
	return spaces(s)
}

// cl100k, with at most so many digits in a piece, and marks counted as letters or not:
// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,most}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func cl100k(most int, marks bool) pass {
	word, other := isLetter, isOther
	if marks {
		word = func(r rune) bool { return isLetter(r) || isMark(r) }
		other = func(r rune) bool { return isOther(r) && !isMark(r) }
	}
	return scan(func(s string) int {
		if n := contraction(s, true); n > 0 {
			return n
		}
		r, size := utf8.DecodeRuneInString(s)
		if !isNewline(r) && !isLetter(r) && !isNumber(r) {
			if n := run(s[size:], word); n > 0 {
				return size + n
			}
		}
		if n := run(s, word); n > 0 {
			return n
		}
		if n := numbers(s, most); n > 0 {
			return n
		}
		lead := 0
		if s[0] == ' ' {
			lead = 1
		}
		if n := run(s[lead:], other); n > 0 {
			n += lead
			return n + run(s[n:], isNewline)
		}
		if n := strings.LastIndexAny(s[:run(s, unicode.IsSpace)], "\r\n"); n >= 0 {
			return n + 1
		}
		return spaces(s)
	})
}
