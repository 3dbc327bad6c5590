package sample

import "strings"

// Stops looks for stop strings in a stream of text that arrives in pieces, cut
// anywhere. It is for one goroutine.
type Stops struct {
	stops   []string
	longest int
	held    string // the end of the text so far that may begin a stop string
	stopped bool
}

// NewStops looks for any of stops; empty strings are ignored.
func NewStops(stops []string) *Stops {
	s := &Stops{}
	for _, stop := range stops {
		if stop != "" {
			s.stops = append(s.stops, stop)
			s.longest = max(s.longest, len(stop))
		}
	}
	return s
}

// Push takes the next piece and returns the text that is now sure to be before any
// stop string, and whether one was completed. The text ends where the first stop string to
// be complete begins (the longest, of those complete at the same byte), however
// the stream was cut. After that Push returns nothing more.
func (s *Stops) Push(text string) (emit string, stopped bool) {
	if s.stopped {
		return "", true
	}
	all := s.held + text
	for end := len(s.held) + 1; end <= len(all); end++ {
		longest := 0
		for _, stop := range s.stops {
			if len(stop) > longest && strings.HasSuffix(all[:end], stop) {
				longest = len(stop)
			}
		}
		if longest > 0 {
			s.held, s.stopped = "", true
			return all[:end-longest], true
		}
	}
	from := len(all)
	for i := max(0, len(all)-s.longest+1); i < len(all); i++ {
		if s.begins(all[i:]) {
			from = i
			break
		}
	}
	s.held = strings.Clone(all[from:])
	return all[:from], false
}

// begins says whether a stop string begins with tail.
func (s *Stops) begins(tail string) bool {
	for _, stop := range s.stops {
		if strings.HasPrefix(stop, tail) {
			return true
		}
	}
	return false
}

// Flush ends the stream: it returns the text that was held back in case.
func (s *Stops) Flush() string {
	out := s.held
	s.held = ""
	return out
}
