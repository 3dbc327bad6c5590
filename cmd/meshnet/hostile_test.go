package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/meshnet/meshnet/node/head"
)

// TestModelAndTerminal: what a model says can't steer a terminal, also when a
// sequence comes in pieces; a pipe gets every byte of it, as that is data.
func TestModelAndTerminal(t *testing.T) {
	const evil = "a\x1b]52;c;cm0gLXJmIH4=\x07b\u009b2Jc\x1b[8md\u202ee\n"
	for _, clean := range []bool{true, false} {
		var out bytes.Buffer
		w := &writer{out: &out, clean: clean}
		for _, r := range evil { // one delta for each
			if err := w.emit(head.Delta{Text: string(r), IDs: []int32{1}}); err != nil {
				t.Fatal(err)
			}
		}
		w.end()
		want := evil
		if clean {
			want = "a]52;c;cm0gLXJmIH4=b2Jc[8mde\n"
		}
		if out.String() != want {
			t.Errorf("clean %v: %q", clean, out.String())
		}
	}
	r, p, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer p.Close()
	for name, w := range map[string]io.Writer{"pipe": p, "buffer": new(bytes.Buffer)} {
		if isTerminal(w) {
			t.Errorf("a %s counts as a terminal", name)
		}
	}
}

// FuzzPrintable: whatever comes in, nothing that steers a terminal goes out.
func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"plain\n", "\x1b[31m", "\u009b", "\xc2", "\x9b\x1b\x1b", "\u202e", "\x7f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := printable(s)
		bad := func(r rune) bool {
			return r != '\n' && r != '\t' && (r < ' ' || r >= 0x7f && r <= 0x9f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069)
		}
		if strings.ContainsFunc(got, bad) || !utf8.ValidString(got) || printable(got) != got {
			t.Errorf("%q becomes %q", s, got)
		}
	})
}

// TestLogIsLimited: a flood of one message is ten lines a second and a count, and
// other messages are not lost in it.
func TestLogIsLimited(t *testing.T) {
	var out bytes.Buffer
	h := newLimited(slog.NewTextHandler(&out, nil)).WithAttrs([]slog.Attr{slog.String("peer", "x")})
	at := time.Unix(1000, 0)
	say := func(msg string) {
		if err := h.Handle(t.Context(), slog.NewRecord(at, slog.LevelWarn, msg, 0)); err != nil {
			t.Fatal(err)
		}
	}
	for range 100_000 {
		say("refused a stream")
	}
	say("other")
	at = at.Add(time.Second)
	say("refused a stream")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 12 || !strings.Contains(lines[10], "other") || !strings.Contains(lines[11], fmt.Sprint("left_out=", 100_000-10)) {
		t.Errorf("%d lines; the last: %q", len(lines), lines[len(lines)-1])
	}
	for i := range 5000 {
		say(fmt.Sprint("message ", i))
	}
	if n := len(h.(limited).kinds.m); n > 1024 {
		t.Errorf("%d kinds are remembered", n)
	}
}
