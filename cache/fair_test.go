package cache

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestFairShares: an owner that admits session on session evicts its own, not the one
// of another owner that is at work, by number and by bytes.
func TestFairShares(t *testing.T) {
	for _, tc := range []struct {
		name     string
		sessions int
		bytes    int64 // of the store
		each     int64 // of the greedy owner's sessions
	}{
		{"entries", 4, 1 << 20, 10},
		{"bytes", 1000, 1000, 240},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &clock{time.Unix(1000, 0)}
			s, err := New(Config{TTL: 600 * time.Second, MaxSessions: tc.sessions, MaxBytes: tc.bytes, Now: c.Now})
			if err != nil {
				t.Fatal(err)
			}
			admit := func(k Key, owner string, bytes int64) error {
				_, err := s.Admit(k, owner, bytes, func() (State, error) { return &fakeState{}, nil })
				return err
			}
			use := func(k Key, owner string) error {
				e, err := s.Acquire(k, owner)
				if err == nil {
					e.Release()
				}
				return err
			}
			modest := key('m', 0, 8)
			if err := admit(modest, "modest", 200); err != nil {
				t.Fatal(err)
			}
			for i := range 40 {
				if err := admit(key(byte(i), 0, 8), "greedy", tc.each); err != nil {
					t.Fatalf("the greedy owner's own room is refused: %v", err)
				}
				for j := range i + 1 { // whatever it has left is newer than the modest one's
					_ = use(key(byte(j), 0, 8), "greedy")
				}
				if err := use(modest, "modest"); err != nil {
					t.Fatalf("after %d sessions of another: %v", i+1, err)
				}
				c.now = c.now.Add(time.Second)
				for j := range i + 1 {
					_ = use(key(byte(j), 0, 8), "greedy")
				}
			}
			// Who rests does not block the others.
			c.now = c.now.Add(time.Minute)
			for i := range 4 {
				if err := admit(key(byte(100+i), 0, 8), "greedy", tc.each); err != nil {
					t.Error(err)
				}
			}
			if err := use(modest, "modest"); !errors.As(err, new(*MissError)) {
				t.Errorf("an idle session kept its place: %v", err)
			}
		})
	}
}

// TestNewOwnerGetsRoom: a store that one owner has filled has room for the next.
func TestNewOwnerGetsRoom(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	s, err := New(Config{MaxSessions: 16, MaxBytes: 1600, Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 16 {
		owner := fmt.Sprint("head ", i/8)
		if _, err := s.Admit(key(byte(i), 0, 8), owner, 100, func() (State, error) { return &fakeState{}, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Admit(key(100, 0, 8), "new", 100, func() (State, error) { return &fakeState{}, nil }); err != nil {
		t.Error(err)
	}
}
