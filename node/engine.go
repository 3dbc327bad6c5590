package node

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/shard"
)

// engine is a shard.Engine as package hop wants it.
type engine struct{ *shard.Engine }

// HopEngine lets a range of layers serve hops and local backends.
func HopEngine(e *shard.Engine) hop.Engine { return engine{e} }

func (engine) CacheTypes() wire.CacheTypes { return cacheTypes() }

// cacheTypes are the engine's: its numbers are those of the wire.
func cacheTypes() (all wire.CacheTypes) {
	for _, t := range shard.CacheTypes() {
		all |= wire.CacheTypesOf(wire.CacheType(t))
	}
	return all
}

func (e engine) StateBytes(start, end int, t wire.CacheType, maxLen int) int64 {
	return e.Engine.StateBytes(start, end, shard.CacheType(t), maxLen)
}

func (e engine) NewState(start, end int, t wire.CacheType) (cache.State, error) {
	s, err := e.Engine.NewState(start, end, shard.CacheType(t))
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (e engine) Forward(ctx context.Context, batch []hop.Work) error {
	items := make([]shard.Item, len(batch))
	for i, w := range batch {
		s, ok := w.State.(*shard.State)
		if !ok {
			return &shard.ItemError{Item: i, Err: fmt.Errorf("state is a %T, not the engine's", w.State)}
		}
		items[i] = shard.Item{State: s, Rows: w.Rows, X: w.X}
	}
	return e.Engine.Forward(ctx, items)
}

// speed is what a peer's offer says of its engine.
type speed struct {
	decode  time.Duration // one row through the whole range
	prefill time.Duration // a row of a chunk through the whole range
}

const (
	measuredDecodes = 5
	measuredChunk   = 64
)

// measure runs real rows through the engine.
func measure(ctx context.Context, e *shard.Engine) (speed, error) {
	start, end := e.Range()
	state, err := e.NewState(start, end, shard.CacheType(wire.DefaultCacheType))
	if err != nil {
		return speed{}, err
	}
	defer state.Close()
	run := func(rows int) (time.Duration, error) {
		x := make([]float32, rows*e.Hidden())
		for i := range x {
			x[i] = float32(i%17-8) / 64 // of the size of an embedding, nothing special
		}
		began := time.Now()
		err := e.Forward(ctx, []shard.Item{{State: state, Rows: rows, X: x}})
		return time.Since(began), err
	}
	if _, err := run(1); err != nil { // touches the memory for the first time
		return speed{}, fmt.Errorf("measure the engine: %w", err)
	}
	chunk, err := run(measuredChunk)
	if err != nil {
		return speed{}, fmt.Errorf("measure the engine: %w", err)
	}
	// The fastest: whatever else runs on the machine makes a step slower, never faster.
	decode := time.Duration(math.MaxInt64)
	for range measuredDecodes {
		took, err := run(1)
		if err != nil {
			return speed{}, fmt.Errorf("measure the engine: %w", err)
		}
		decode = min(decode, took)
	}
	return speed{decode: decode, prefill: chunk / measuredChunk}, nil
}
