package pool

import (
	"testing"
	"time"
)

// busyCore plays loops of a pool of two threads: alone the caller needs 3 ms for one, with a helper 2 ms (memory is shared), of which
// each does half; while another process has the helper's core, every loop waits for it for stall more. It returns how much of the
// time in loops the helper was in use.
func busyCore(j *judge, now *time.Duration, loops int, stall time.Duration) float64 {
	var used, all time.Duration
	for range loops {
		ran, waited, mine := 3*time.Millisecond, time.Duration(0), 16
		if j.decide(*now) == 1 {
			ran, waited, mine = 2*time.Millisecond+stall, stall, 8
			used += ran
		}
		j.add(ran, waited, 16, mine)
		*now += ran
		all += ran
	}
	return used.Seconds() / all.Seconds()
}

func TestJudge(t *testing.T) {
	j := &judge{helpers: 1, limit: 1, rest: minRest}
	var now time.Duration
	for _, c := range []struct {
		what     string
		stall    time.Duration
		min, max float64
	}{
		{"quiet", 0, 1, 1},
		{"short stalls are cheaper than working alone", 500 * time.Microsecond, 1, 1},
		{"stalls of a time slice", 3 * time.Millisecond, 0, 0.1},
		{"quiet again", 0, 0.8, 1},
	} {
		if used := busyCore(j, &now, 2000, c.stall); used < c.min || used > c.max {
			t.Errorf("%s: the helper works %.0f %% of the time, want %.0f to %.0f", c.what, 100*used, 100*c.min, 100*c.max)
		}
	}
}

// Of many helpers one after the other rests, and all come back.
func TestJudgeMany(t *testing.T) {
	j := &judge{helpers: 7, limit: 7, rest: minRest}
	least := 7
	for i := range 4000 {
		now := time.Duration(i) * time.Millisecond
		limit := j.decide(now)
		if limit < 0 || limit > 7 {
			t.Fatalf("%d helpers of 7", limit)
		}
		least = min(least, limit)
		waited := time.Duration(0)
		if i < 2000 && limit > 5 { // the machine has six cores to spare
			waited = 500 * time.Microsecond
		}
		j.add(time.Millisecond, waited, 8*(limit+1), 8)
		if i == 1999 && least != 5 {
			t.Errorf("at least %d helpers worked, want 5", least)
		}
	}
	if j.limit != 7 {
		t.Errorf("%d helpers work on a quiet machine, want 7", j.limit)
	}
}

// A pool whose helpers rest works, and they come back.
func TestRestingHelpers(t *testing.T) {
	p := New(4)
	defer p.Close()
	for round := range 600 {
		if round%3 == 0 { // as if decided
			p.mu.Lock()
			was := p.judge.limit
			p.judge.limit = (round / 3) % 4
			p.judge.until, p.judge.trial = time.Hour, false
			p.follow(was)
			p.mu.Unlock()
		}
		seen := make([]int, 40)
		p.Run(len(seen), func(i int) { seen[i]++ })
		for i, c := range seen {
			if c != 1 {
				t.Fatalf("round %d: index %d ran %d times", round, i, c)
			}
		}
	}
}
