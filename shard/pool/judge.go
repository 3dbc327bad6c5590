package pool

import "time"

// judge decides how many helpers work. It has no clock and starts nothing: times come in.
//
// Invariant: 0 <= limit <= helpers.
type judge struct {
	helpers, limit int
	rest           time.Duration // of the next helper that is not worth it
	until          time.Duration // when the next trial is due, while limit < helpers
	trial          bool          // the present figures are those of a trial

	// Of the loops since the last judgement.
	ran, waited time.Duration
	all, mine   int
}

// add tells of a loop of n indices that took ran, of which the caller ran mine, and at the end of which it slept for waited.
func (j *judge) add(ran, waited time.Duration, n, mine int) {
	j.ran += ran
	j.waited += waited
	j.all += n
	j.mine += mine
}

// decide is the number of helpers from now on.
func (j *judge) decide(now time.Duration) int {
	if j.ran >= judgeAfter {
		if j.limit > 0 && j.worse() {
			j.limit--
			j.until, j.trial = now+j.rest, false
			j.rest = min(2*j.rest, maxRest)
		} else if j.limit > 0 {
			// Halved only: on a busy machine some good times are luck.
			j.rest = max(minRest, j.rest/2)
			if j.trial {
				j.until, j.trial = now, false // the next of them at once
			}
		}
		j.ran, j.waited, j.all, j.mine = 0, 0, 0, 0
	}
	if j.limit < j.helpers && !j.trial && now >= j.until {
		j.limit++
		j.trial = true
		j.ran, j.waited, j.all, j.mine = 0, 0, 0, 0
	}
	return j.limit
}

// worse says that loops would have ended sooner with a helper less: the waits would be gone, its share be the others' work.
func (j *judge) worse() bool {
	share := float64(j.all-j.mine) / float64(j.all) / float64(j.limit)
	if share >= 1 {
		return false // the helper did everything
	}
	lost := float64(j.ran-j.waited) * share / (1 - share) * aloneGain
	return float64(j.waited) > lost
}
