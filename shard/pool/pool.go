// Package pool runs a parallel loop over a fixed set of workers, thousands of times a second.
//
// A decode step is a chain of a hundred small loops with a join after each, so what a fork and join cost decides the
// speed, and what the workers do between loops decides what a volunteer's machine is good for meanwhile.
//
// Invariant: Run returns only when every index was handed to fn exactly once and each of those calls has returned.
// Start reading at Run.
package pool

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Bounds of a spin, in pauses of about 0.1 us each (four PAUSE instructions).
	minSpin = 16
	maxSpin = 1500
	// A park that ends sooner than this would have been better spent spinning.
	spinPays = 100 * time.Microsecond
	// Whether the helpers are worth it is judged after this much time in loops.
	judgeAfter = 30 * time.Millisecond
	// A helper that was not worth it rests; longer each time, until a trial succeeds.
	minRest, maxRest = 40 * time.Millisecond, 640 * time.Millisecond
	// Threads share the memory's bandwidth, so that without one of them the rest is faster than before.
	aloneGain = 0.5
	// parkedCaller is added to Pool.pending by a caller that goes to sleep; far above any loop's length.
	parkedCaller = 1 << 48
)

// Pool is a caller and Threads()-1 helper goroutines. Helpers wait for the next loop by spinning for a while and then
// sleeping; each learns for how long spinning pays, so that a quiet machine joins in under a microsecond and a busy or
// idle one is left alone.
//
// Where others hold cores too, a helper that is put off its core within a call holds up everybody for a time slice of
// the system, as long as a whole decode step. Run weighs those waits against what helpers do, rests one after the other
// while they cost more than they bring, and tries again later.
type Pool struct {
	threads int
	mu      sync.Mutex  // held by the Run under way
	fn      func(i int) // of the present loop; written before left, read after a successful claim
	n       int64       // length of the present loop; as fn
	_       [64]byte
	left    atomic.Int64 // indices not yet claimed
	_       [64]byte
	pending atomic.Int64 // indices not yet done, plus parkedCaller while the caller sleeps
	_       [64]byte
	parked  atomic.Int64 // helpers asleep or about to be
	stopped atomic.Bool
	wake    chan struct{} // one token for each helper taken off parked; writer: Run; readers: helpers; closed by Close
	joined  chan struct{} // one token when the last index is done and the caller sleeps
	spin    int           // the caller's own budget
	helpers sync.WaitGroup

	born   time.Time
	limit  atomic.Int32    // helpers below this number work, the others rest; writer: Run
	resume []chan struct{} // one token for a helper that need not rest any more; closed by Close
	judge  judge           // the Run under way's
}

// New starts a pool of the given number of threads, the caller of Run included; 0 or less means GOMAXPROCS. Close ends it.
func New(threads int) *Pool {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	p := &Pool{threads: threads, wake: make(chan struct{}, threads), joined: make(chan struct{}, 1), spin: maxSpin / 4, born: time.Now()}
	p.limit.Store(int32(threads - 1))
	p.judge = judge{helpers: threads - 1, limit: threads - 1, rest: minRest}
	for i := range threads - 1 {
		p.resume = append(p.resume, make(chan struct{}, 1))
		p.helpers.Go(func() { p.help(i) })
	}
	return p
}

// Threads is how many goroutines work on a loop, the caller included.
func (p *Pool) Threads() int { return p.threads }

// Close ends the helpers and waits for them. A Run after Close works on the caller alone. Close is not to be called
// during a Run, nor twice.
func (p *Pool) Close() {
	p.stopped.Store(true)
	close(p.wake)
	for _, c := range p.resume {
		close(c)
	}
	p.helpers.Wait()
}

// Run calls fn(0), …, fn(n-1), in any order, on any of the pool's threads, and returns when all have returned.
// One Run at a time: goroutines that share a pool wait for one another here, and fn must not call Run. What fn wrote is
// visible to the caller afterwards.
func (p *Pool) Run(n int, fn func(i int)) {
	if n <= 1 || p.threads == 1 || p.stopped.Load() {
		for i := range n {
			fn(i)
		}
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	start := time.Since(p.born)
	p.admit(start)
	mine, waited := n, time.Duration(0)
	if p.judge.limit == 0 {
		for i := range n {
			fn(i)
		}
	} else {
		p.fn, p.n = fn, int64(n)
		p.pending.Store(int64(n))
		p.left.Store(int64(n))
		p.rouse(n - 1)
		mine = int(p.work())
		waited = p.join()
		p.fn = nil
	}
	p.judge.add(time.Since(p.born)-start, waited, n, mine)
}

// admit lets as many helpers work as are worth it.
func (p *Pool) admit(now time.Duration) {
	was := p.judge.limit
	if p.judge.decide(now) != was {
		p.follow(was)
	}
}

// follow tells the helpers of a new limit.
func (p *Pool) follow(was int) {
	limit := p.judge.limit
	p.limit.Store(int32(limit))
	for i := was; i < limit; i++ {
		select {
		case p.resume[i] <- struct{}{}:
		default: // a token that it has not taken yet will do
		}
	}
}

// rouse wakes up to n sleeping helpers.
func (p *Pool) rouse(n int) {
	for ; n > 0; n-- {
		for {
			k := p.parked.Load()
			if k == 0 {
				return
			}
			if p.parked.CompareAndSwap(k, k-1) {
				p.wake <- struct{}{}
				break
			}
		}
	}
}

// work claims and runs indices until none is left. Whoever has claimed one holds the loop open: fn and n are those of
// the loop claimed from, however long ago the count was read. It says how many it ran.
func (p *Pool) work() (done int64) {
	for {
		left := p.left.Load()
		if left == 0 {
			break
		}
		if p.left.CompareAndSwap(left, left-1) {
			p.fn(int(p.n - left))
			done++
		}
	}
	if done > 0 && p.pending.Add(-done) == parkedCaller {
		p.joined <- struct{}{}
	}
	return done
}

// join waits until nothing is pending, and says how long it slept.
func (p *Pool) join() time.Duration {
	for i := range p.spin {
		if p.pending.Load() == 0 {
			p.spin = min(maxSpin, max(p.spin, 4*i, minSpin))
			return 0
		}
		pause(4)
	}
	p.spin = max(minSpin, p.spin/2)
	if p.pending.Add(parkedCaller) == parkedCaller {
		return 0 // done in the meantime, and whoever finished saw no sleeper
	}
	start := time.Now()
	<-p.joined
	slept := time.Since(start)
	if slept < spinPays {
		p.spin = min(maxSpin, p.spin*4)
	}
	return slept
}

// help is the life of helper i. Its owner is Close.
func (p *Pool) help(i int) {
	spin := maxSpin / 4
	for !p.stopped.Load() {
		if int32(i) >= p.limit.Load() {
			<-p.resume[i]
			continue
		}
		p.work()
		found := -1
		for i := range spin {
			if p.left.Load() > 0 || p.stopped.Load() {
				found = i
				break
			}
			pause(4)
		}
		if found >= 0 {
			spin = min(maxSpin, max(spin, 4*found, minSpin))
			continue
		}
		spin = max(minSpin, spin/2)
		if p.sleep() < spinPays {
			spin = min(maxSpin, spin*4)
		}
	}
}

// sleep parks a helper until the next loop and says for how long.
func (p *Pool) sleep() time.Duration {
	start := time.Now()
	p.parked.Add(1)
	// A loop that began before parked was raised wakes nobody: look again, and take the mark back unless a waker has.
	for p.left.Load() > 0 {
		k := p.parked.Load()
		if k == 0 {
			break
		}
		if p.parked.CompareAndSwap(k, k-1) {
			return 0
		}
	}
	<-p.wake
	return time.Since(start)
}
