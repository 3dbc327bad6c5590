package token

import "unicode/utf8"

// Decoder turns a stream of ids into text and never cuts a character: bytes that
// may be the beginning of one wait for the next token. Control tokens give nothing.
// A Decoder serves one stream and one goroutine.
type Decoder struct {
	t    *Tokenizer
	held []byte // an incomplete character, at most 3 bytes
}

// NewDecoder begins a stream.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t: t} }

// Push takes the next token and returns the characters that are now complete.
// Bytes that can't be a character come out as U+FFFD, one for each.
func (d *Decoder) Push(id int32) string {
	if d.t.Control(id) {
		return ""
	}
	d.held = append(d.held, d.t.Piece(id)...)
	n := complete(d.held)
	out := valid(d.held[:n])
	d.held = append(d.held[:0], d.held[n:]...)
	return out
}

// Flush ends the stream: what still waits comes out as U+FFFD.
func (d *Decoder) Flush() string {
	out := valid(d.held)
	d.held = d.held[:0]
	return out
}

// complete is the length of b without a character that has only begun at its end.
func complete(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return len(b) - n
			}
			break
		}
	}
	return len(b)
}

// valid is b as text, each byte of no character replaced by U+FFFD.
func valid(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string([]rune(string(b)))
}
