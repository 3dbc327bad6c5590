// Package hoptest is for tests of the activation protocol: an engine whose answer
// tells whether anything was mixed up on the way, and small meshes in memory.
//
// Invariant: a row of Engine's output depends on its layer, its position and every
// row before it, so a cache that holds one wrong row, or too many, or those of
// another session, shows in all later answers. Start reading at Engine.
package hoptest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop"
)

// mix is a step of SplitMix64.
func mix(a, b uint64) uint64 {
	z := a ^ b*0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// row fills dst with values in [-1, 1) that stand for h.
func row(dst []float32, h uint64) {
	for j := range dst {
		dst[j] = float32(int32(mix(h, uint64(j))>>40)-1<<23) / (1 << 23)
	}
}

// digest reads a row.
func digest(x []float32) uint64 {
	h := uint64(len(x))
	for _, v := range x {
		h = mix(h, uint64(int64(float64(v)*(1<<23))))
	}
	return h
}

// Embed is the embedding of ids: len(ids) x hidden into dst.
func Embed(ids []int32, dst []float32) {
	n := len(dst) / len(ids)
	for i, id := range ids {
		row(dst[i*n:(i+1)*n], mix(1, uint64(id)))
	}
}

// Embedder is Embed with the signature that heads want.
type Embedder struct{}

// Embed implements head.Embedder.
func (Embedder) Embed(ids []int32, dst []float32) error {
	Embed(ids, dst)
	return nil
}

// Expect is what an undisturbed run of all layers answers for the last want of
// ids, computed layer by layer over the whole text and without any state.
func Expect(ids []int32, layers, hidden, want int) []float32 {
	x := make([]float32, len(ids)*hidden)
	Embed(ids, x)
	for l := range layers {
		chain := mix(2, uint64(l))
		for p := range ids {
			r := x[p*hidden : (p+1)*hidden]
			chain = mix(chain, mix(uint64(p), digest(r)))
			row(r, chain)
		}
	}
	return x[(len(ids)-want)*hidden:]
}

// Engine computes the oracle's layers. Each row takes RowTime.
type Engine struct {
	Hidden  int
	RowTime time.Duration
	Caches  wire.CacheTypes // that it keeps; 0: all
	Rigid   bool            // states can't be cut except to nothing, as recurrent ones
	// Before, if set, is called with every batch and may fail or delay it.
	Before func(batch []hop.Work) error

	mu    sync.Mutex
	open  int
	batch int
	rows  int
}

// Open is the number of states that were made and not closed.
func (e *Engine) Open() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.open
}

// MaxBatch is the largest number of items in one Forward so far.
func (e *Engine) MaxBatch() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.batch
}

// Rows is the number of rows that were computed to the end, of all sessions.
func (e *Engine) Rows() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rows
}

// State is the oracle's memory: for each layer one chain value a position.
type State struct {
	engine *Engine
	start  int
	chains [][]uint64 // layers x (positions + 1)
	closed bool
}

// CacheTypes implements hop.Engine.
func (e *Engine) CacheTypes() wire.CacheTypes {
	if e.Caches == 0 {
		return wire.AllCacheTypes
	}
	return e.Caches
}

// NewState implements hop.Engine. States of another type than the default answer
// otherwise, as they do in earnest.
func (e *Engine) NewState(start, end int, t wire.CacheType) (cache.State, error) {
	e.mu.Lock()
	e.open++
	e.mu.Unlock()
	s := &State{engine: e, start: start, chains: make([][]uint64, end-start)}
	for i := range s.chains {
		s.chains[i] = []uint64{mix(2, uint64(start+i)) ^ uint64(t-wire.DefaultCacheType)}
	}
	return s, nil
}

// StateBytes implements hop.Engine.
func (e *Engine) StateBytes(start, end int, t wire.CacheType, maxLen int) int64 {
	size := map[wire.CacheType]int64{wire.CacheF32: 16, wire.CacheF16: 8, wire.CacheQ8: 4}[t]
	return int64(end-start) * int64(maxLen) * size
}

// Forward implements hop.Engine.
func (e *Engine) Forward(ctx context.Context, batch []hop.Work) error {
	e.mu.Lock()
	e.batch = max(e.batch, len(batch))
	e.mu.Unlock()
	if e.Before != nil {
		if err := e.Before(batch); err != nil {
			return err
		}
	}
	rows := 0
	for _, w := range batch {
		s := w.State.(*State)
		if s.closed {
			panic("forward on a closed state")
		}
		if len(w.X) != w.Rows*e.Hidden {
			return fmt.Errorf("%d values for %d rows", len(w.X), w.Rows)
		}
		rows += w.Rows
	}
	if e.RowTime > 0 {
		t := time.NewTimer(time.Duration(rows) * e.RowTime)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, w := range batch {
		w.State.(*State).apply(w.X, w.Rows, e.Hidden)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rows += rows
	return nil
}

func (s *State) apply(x []float32, rows, hidden int) {
	for r := range rows {
		v := x[r*hidden : (r+1)*hidden]
		for i := range s.chains {
			c := s.chains[i]
			p := len(c) - 1
			s.chains[i] = append(c, mix(c[p], mix(uint64(p), digest(v))))
			row(v, s.chains[i][p+1])
		}
	}
}

// Start is the first layer that the state is of.
func (s *State) Start() int { return s.start }

// Len implements cache.State.
func (s *State) Len() int { return len(s.chains[0]) - 1 }

// Bytes implements cache.State.
func (s *State) Bytes() int64 { return int64(len(s.chains)) * int64(s.Len()) * 8 }

// Truncate implements cache.State.
func (s *State) Truncate(n int) bool {
	if n < 0 || n > s.Len() || s.engine.Rigid && n > 0 && n < s.Len() {
		return false
	}
	for i := range s.chains {
		s.chains[i] = s.chains[i][:n+1]
	}
	return true
}

// Close implements cache.State.
func (s *State) Close() {
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	if s.closed {
		panic("state closed twice")
	}
	s.closed = true
	s.engine.open--
}
