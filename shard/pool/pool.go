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
	// parkedCaller is added to Pool.pending by a caller that goes to sleep; far above any loop's length.
	parkedCaller = 1 << 48
)

// Pool is a caller and Threads()-1 helper goroutines. Helpers wait for the next loop by spinning for a while and then
// sleeping; each learns for how long spinning pays, so that a quiet machine joins in under a microsecond and a busy or
// idle one is left alone.
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
}

// New starts a pool of the given number of threads, the caller of Run included; 0 or less means GOMAXPROCS. Close ends it.
func New(threads int) *Pool {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	p := &Pool{threads: threads, wake: make(chan struct{}, threads), joined: make(chan struct{}, 1), spin: maxSpin / 4}
	for range threads - 1 {
		p.helpers.Go(p.help)
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
	p.fn, p.n = fn, int64(n)
	p.pending.Store(int64(n))
	p.left.Store(int64(n))
	p.rouse(n - 1)
	p.work()
	p.join()
	p.fn = nil
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
// the loop claimed from, however long ago the count was read.
func (p *Pool) work() {
	done := int64(0)
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
}

// join waits until nothing is pending.
func (p *Pool) join() {
	for i := range p.spin {
		if p.pending.Load() == 0 {
			p.spin = min(maxSpin, max(p.spin, 4*i, minSpin))
			return
		}
		pause(4)
	}
	p.spin = max(minSpin, p.spin/2)
	if p.pending.Add(parkedCaller) == parkedCaller {
		return // done in the meantime, and whoever finished saw no sleeper
	}
	start := time.Now()
	<-p.joined
	if time.Since(start) < spinPays {
		p.spin = min(maxSpin, p.spin*4)
	}
}

// help is a helper's life. Its owner is Close.
func (p *Pool) help() {
	spin := maxSpin / 4
	for !p.stopped.Load() {
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
