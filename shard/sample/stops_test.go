package sample

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// stopTwin looks at the whole text at once.
func stopTwin(text string, stops []string) (string, bool) {
	end, cut := len(text)+1, len(text)
	for _, stop := range stops {
		i := strings.Index(text, stop)
		if stop == "" || i < 0 {
			continue
		}
		if e := i + len(stop); e < end || e == end && i < cut {
			end, cut = e, i
		}
	}
	return text[:cut], end <= len(text)
}

func TestStops(t *testing.T) {
	tests := []struct {
		text  string
		stops []string
		want  string
		stop  bool
	}{
		{"Hello\nUser: Hi", []string{"\nUser:"}, "Hello", true},
		{"Hello\nUse", []string{"\nUser:"}, "Hello\nUse", false},
		{"aaab", []string{"aab"}, "a", true},
		{"ababac", []string{"abac"}, "ab", true},
		{"xyz", []string{"yz", "xyz", "z"}, "", true}, // all end at z: the longest
		{"xyz", []string{"xyz", "y"}, "x", true},      // y is complete first
		{"ok", []string{"", "k!"}, "ok", false},
		{"日本語終", []string{"語終"}, "日本", true},
		{"", nil, "", false},
	}
	for _, tt := range tests {
		if got, stop := stopTwin(tt.text, tt.stops); got != tt.want || stop != tt.stop {
			t.Fatalf("the twin is wrong for %q %q: %q, %v", tt.text, tt.stops, got, stop)
		}
		for size := 1; size <= max(1, len(tt.text)); size++ {
			checkStops(t, tt.text, tt.stops, func() int { return size })
		}
	}
}

func checkStops(t *testing.T, text string, stops []string, size func() int) {
	t.Helper()
	want, wantStop := stopTwin(text, stops)
	s := NewStops(stops)
	var got strings.Builder
	stopped := false
	for rest := text; rest != ""; {
		n := min(size(), len(rest))
		emit, stop := s.Push(rest[:n])
		got.WriteString(emit)
		if stopped && (emit != "" || !stop) {
			t.Fatalf("after a stop, Push gave %q, %v", emit, stop)
		}
		stopped = stop
		rest = rest[n:]
	}
	got.WriteString(s.Flush())
	if got.String() != want || stopped != wantStop {
		t.Fatalf("%q with stops %q: %q, %v; want %q, %v", text, stops, got.String(), stopped, want, wantStop)
	}
}

func TestStopsRandom(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 5))
		word := func(n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = "aab"[r.IntN(3)]
			}
			return string(b)
		}
		var stops []string
		for range r.IntN(4) {
			stops = append(stops, word(r.IntN(6)))
		}
		checkStops(t, word(r.IntN(40)), stops, func() int { return 1 + r.IntN(7) })
	}
}

// What can't be the beginning of a stop string is not held back.
func TestStopsHoldLittle(t *testing.T) {
	s := NewStops([]string{"\n\n", "END"})
	for _, step := range [][2]string{{"abc", "abc"}, {"E", ""}, {"N", ""}, {"x", "ENx"}, {"y\n", "y"}, {"z", "\nz"}} {
		if emit, stop := s.Push(step[0]); emit != step[1] || stop {
			t.Errorf("Push(%q) = %q, %v; want %q", step[0], emit, stop, step[1])
		}
	}
}
