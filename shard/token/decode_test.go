package token

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestDecoder(t *testing.T) {
	tok := smallBPE(t, "gpt-2", []string{"\xf0 \x9f", "\x98 \x80", "\x80 a"}, extra{"<|x|>", control}, extra{"<u>", defined})
	find := func(piece string) int32 {
		for id := range tok.Size() {
			if string(tok.Piece(int32(id))) == piece {
				return int32(id)
			}
		}
		t.Fatalf("no token %q", piece)
		return 0
	}
	tests := []struct {
		name   string
		pieces []string
		want   []string // after each token, then after Flush
	}{
		{"a character of four bytes in two tokens", []string{"\xf0\x9f", "\x98\x80"}, []string{"", "😀", ""}},
		{"byte by byte", []string{"\xc3", "\xa9"}, []string{"", "é", ""}},
		{"text before an incomplete one goes out", []string{"a", "\xc3"}, []string{"a", "", "\ufffd"}},
		{"cut off", []string{"\xf0\x9f", "\x98"}, []string{"", "", "\ufffd\ufffd\ufffd"}},
		{"broken in the middle", []string{"\xf0", "a"}, []string{"", "\ufffda", ""}},
		{"a continuation alone", []string{"\x80"}, []string{"\ufffd", ""}},
		{"never a beginning", []string{"\xff", "b"}, []string{"\ufffd", "b", ""}},
		{"control tokens give nothing and do not break a character", []string{"\xc3", "<|x|>", "\xa9"}, []string{"", "", "é", ""}},
		{"user-defined tokens are text", []string{"<u>"}, []string{"<u>", ""}},
	}
	for _, tt := range tests {
		d := tok.NewDecoder()
		for i, p := range tt.pieces {
			if got := d.Push(find(p)); got != tt.want[i] {
				t.Errorf("%s: token %d gives %q, want %q", tt.name, i, got, tt.want[i])
			}
		}
		if got := d.Flush(); got != tt.want[len(tt.pieces)] {
			t.Errorf("%s: the end gives %q, want %q", tt.name, got, tt.want[len(tt.pieces)])
		}
	}
	d := tok.NewDecoder()
	if got := d.Push(-1) + d.Push(1<<30) + d.Flush(); got != "" {
		t.Errorf("ids outside the vocabulary give %q", got)
	}
}

// Any bytes: what comes out, put together, is the text with each bad byte replaced,
// and no piece is cut within a character.
func TestDecoderRandom(t *testing.T) {
	tok := smallBPE(t, "gpt-2", nil)
	r := rand.New(rand.NewPCG(41, 0))
	for range 3000 {
		var b []byte
		for range r.IntN(20) {
			switch r.IntN(3) {
			case 0:
				b = append(b, byte(r.Uint32()))
			default:
				b = utf8.AppendRune(b, []rune("aé日😀\ufffd")[r.IntN(5)])
			}
		}
		d := tok.NewDecoder()
		var out strings.Builder
		for _, c := range b {
			piece := d.Push(int32(c)) // token ids are the bytes
			if !utf8.ValidString(piece) {
				t.Fatalf("%q gave the piece %q", b, piece)
			}
			out.WriteString(piece)
		}
		out.WriteString(d.Flush())
		var want strings.Builder
		for _, c := range string(b) { // ranges over a string by the same rule
			want.WriteRune(c)
		}
		if out.String() != want.String() {
			t.Fatalf("%q streamed gives %q, want %q", b, out.String(), want.String())
		}
	}
}
