package pool

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestEveryIndexOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(threads), func(t *testing.T) {
			p := New(threads)
			defer p.Close()
			if p.Threads() != threads {
				t.Fatalf("Threads() = %d", p.Threads())
			}
			for round := range 3000 {
				n := round % 37
				seen := make([]int32, n) // plain writes: Run must order them
				p.Run(n, func(i int) { seen[i]++ })
				for i, c := range seen {
					if c != 1 {
						t.Fatalf("round %d: index %d of %d ran %d times", round, i, n, c)
					}
				}
			}
		})
	}
}

// A helper that is late, asleep or never scheduled may not hold a loop up nor touch the next one.
func TestLateHelpers(t *testing.T) {
	p := New(4)
	defer p.Close()
	for round := range 300 {
		var sum atomic.Int64
		p.Run(8, func(i int) {
			switch (i + round) % 5 {
			case 0:
				time.Sleep(50 * time.Microsecond)
			case 1:
				runtime.Gosched()
			}
			sum.Add(int64(i))
		})
		if sum.Load() != 28 {
			t.Fatalf("round %d: sum %d before Run returned", round, sum.Load())
		}
		if round%60 == 0 {
			time.Sleep(2 * time.Millisecond) // everybody falls asleep
		}
	}
}

func TestManyPoolsOnBusyMachine(t *testing.T) {
	stop := make(chan struct{})
	var busy atomic.Int64
	go func() {
		for {
			select {
			case <-stop:
				busy.Store(-1)
				return
			default:
				busy.Add(1)
			}
		}
	}()
	done := make(chan bool)
	for range 4 {
		go func() {
			p := New(3)
			ok := true
			for range 500 {
				var c atomic.Int32
				p.Run(5, func(int) { c.Add(1) })
				ok = ok && c.Load() == 5
			}
			p.Close()
			done <- ok
		}()
	}
	for range 4 {
		if !<-done {
			t.Error("a loop returned before all of its calls had")
		}
	}
	close(stop)
	for busy.Load() != -1 {
		time.Sleep(time.Millisecond)
	}
}

func TestCloseEndsHelpers(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, idle := range []time.Duration{0, 3 * time.Millisecond} {
		p := New(6)
		p.Run(20, func(int) {})
		time.Sleep(idle)
		p.Close()
		n := 0
		p.Run(4, func(int) { n++ })
		if n != 4 {
			t.Errorf("Run after Close made %d of 4 calls", n)
		}
	}
}

// Idle helpers sleep: their process's user time does not move.
func TestIdleSleeps(t *testing.T) {
	p := New(2)
	defer p.Close()
	for range 100 {
		p.Run(2, func(int) {})
	}
	deadline := time.Now().Add(5 * time.Second)
	for p.parked.Load() != 1 {
		if time.Now().After(deadline) {
			t.Fatal("the helper still spins")
		}
		time.Sleep(time.Millisecond)
	}
}

func BenchmarkForkJoin(b *testing.B) {
	p := New(2)
	defer p.Close()
	for b.Loop() {
		p.Run(2, func(int) {})
	}
}

// Goroutines that share a pool, as an engine and a head do, take turns.
func TestRunsOfSeveralGoroutines(t *testing.T) {
	p := New(2)
	defer p.Close()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 2000 {
				var sum atomic.Int64
				p.Run(8, func(i int) { sum.Add(int64(i)) })
				if sum.Load() != 28 {
					t.Errorf("the indices of a loop add up to %d, want 28", sum.Load())
					return
				}
			}
		})
	}
	wg.Wait()
}
