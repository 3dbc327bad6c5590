// Package probe measures what a machine's cores can do at most: read memory, and multiply. A kernel's speed says little
// until it stands beside these.
//
// Invariant: nothing here is about the engine; a limit is what a loop of the bare instructions reaches, on as many threads as the
// pool has. Start reading at New.
package probe

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/meshnet/meshnet/shard/pool"
)

// streams is how many places a thread reads from in turns: with one, memory is not at its limit.
const streams = 4

// piece is what one assembly call reads of each stream: some 20 us, as assembly cannot be stopped for the collector.
const piece = 256 << 10

// loop is a loop of bare instructions.
type loop struct {
	how string
	ops float64 // operations of one round: a multiplication and an addition are two
	run func(rounds int)
}

// rounds of a loop in one call: a few microseconds.
const rounds = 1000

// Probe measures on the threads of a pool. It holds memory to read from until Close.
type Probe struct {
	pool *pool.Pool
	data []byte
	free func()
	part int // bytes of a stream
}

// New takes about bytes of memory, which should be several times the last cache.
func New(p *pool.Pool, bytes int) (*Probe, error) {
	pr := &Probe{pool: p}
	pr.part = max(1, bytes/(p.Threads()*streams*piece)) * piece
	n := pr.part * p.Threads() * streams
	var err error
	if pr.data, pr.free, err = alloc(n); err != nil {
		return nil, fmt.Errorf("probe this machine's memory: %w", err)
	}
	p.Run(p.Threads()*streams, func(i int) { // untouched memory would be one page of zeros
		for b := pr.data[i*pr.part:][:pr.part]; len(b) > 0; b = b[64:] {
			b[0] = 1
		}
	})
	return pr, nil
}

// Close gives the memory back. The probe must not be used afterwards.
func (pr *Probe) Close() { pr.free() }

// Read is the most bytes a second that the threads read from memory together, seen within about d.
func (pr *Probe) Read(d time.Duration) float64 {
	return best(d, func() float64 {
		pr.pool.Run(pr.pool.Threads(), func(i int) {
			at := pr.data[i*streams*pr.part:]
			for off := 0; off < pr.part; off += piece {
				invokeRead(&at[off], piece, pr.part)
			}
		})
		return float64(len(pr.data))
	})
}

// Int8 is the most operations a second in dot products of int8 (a multiplication and an addition are two), and which
// instruction made them.
func (pr *Probe) Int8(d time.Duration) (ops float64, how string) { return pr.measure(int8Loop(), d) }

// Float is the same in float32.
func (pr *Probe) Float(d time.Duration) (ops float64, how string) { return pr.measure(floatLoop(), d) }

func (pr *Probe) measure(l loop, d time.Duration) (float64, string) {
	const calls = 100
	n := pr.pool.Threads()
	return best(d, func() float64 {
		pr.pool.Run(n, func(int) {
			for range calls {
				invoke(l)
			}
		})
		return float64(n) * calls * rounds * l.ops
	}), l.how
}

// best repeats fn for about d, at least three times, and returns the highest rate of what it says it did.
func best(d time.Duration, fn func() float64) float64 {
	top := 0.0
	begun := time.Now()
	for i := 0; i < 3 || time.Since(begun) < d; i++ {
		start := time.Now()
		done := fn()
		top = max(top, done/time.Since(start).Seconds())
	}
	return top
}

// The calls are not inlined: their prologue is where a loop of assembly calls can be stopped for the collector.
//
//go:noinline
func invoke(l loop) { l.run(rounds) }

//go:noinline
func invokeRead(p *byte, n, stride int) { read(p, n, stride) }

// readGo reads n bytes of each of four streams.
func readGo(p *byte, n, stride int) {
	var s [streams][]uint64
	for i := range s {
		s[i] = unsafe.Slice((*uint64)(unsafe.Add(unsafe.Pointer(p), i*stride)), n/8)
	}
	a, b, c, d := s[0], s[1], s[2], s[3]
	sum := uint64(0)
	for i := range a {
		sum += a[i] + b[i] + c[i] + d[i]
	}
	keep(sum)
}

// dotGo multiplies in eight independent sums.
func dotGo(n int) {
	var s [8]int32
	x, y := int32(n&3), int32(3)
	for range n {
		for i := range s {
			s[i] += x * y
		}
		x++
	}
	keep(uint64(s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7]))
}

func floatGo(n int) {
	var s [8]float32
	x, y := float32(n&3), float32(3)
	for range n {
		for i := range s {
			s[i] += x * y
		}
		x++
	}
	keep(uint64(s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7]))
}

// keep keeps a result from being optimized away.
//
//go:noinline
func keep(uint64) {}
