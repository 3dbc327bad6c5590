package head

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop"
)

// localChunk bounds the engine's scratch memory; the bits do not depend on it.
const localChunk = 512

// Local serves sessions from one engine over all layers in this process: the
// undisturbed run that every mesh run must equal.
type Local struct {
	mu        sync.Mutex // the engine's threads serve one call at a time
	engine    hop.Engine
	embed     Embedder
	layers    int
	hidden    int
	cache     wire.CacheType
	stateless bool
}

// NewLocal returns a source of local backends whose sessions keep their states as
// cache (0: wire.DefaultCacheType). The engine must hold all layers.
func NewLocal(engine hop.Engine, embed Embedder, layers, hidden int, cache wire.CacheType, stateless bool) *Local {
	if cache == 0 {
		cache = wire.DefaultCacheType
	}
	return &Local{engine: engine, embed: embed, layers: layers, hidden: hidden, cache: cache, stateless: stateless}
}

// Backend returns the Backend of one request.
func (l *Local) Backend() Backend { return &LocalBackend{l: l} }

// LocalBackend is one session of Local.
type LocalBackend struct {
	l      *Local
	id     wire.SessionID
	maxLen int
	state  cache.State
	hits   int
}

// Begin implements Backend.
func (b *LocalBackend) Begin(_ context.Context, id wire.SessionID, maxLen int, _ Notify) error {
	b.id, b.maxLen = id, maxLen
	return b.reset()
}

func (b *LocalBackend) reset() error {
	if b.state != nil {
		b.state.Close()
		b.state = nil
	}
	st, err := b.l.engine.NewState(0, b.l.layers, b.l.cache)
	if err != nil {
		return fmt.Errorf("begin a local session: %w", err)
	}
	b.state = st
	return nil
}

// Forward implements Backend.
func (b *LocalBackend) Forward(ctx context.Context, ids []int32, past, want int) ([]float32, error) {
	if b.state == nil {
		return nil, errors.New("forward: the session was not begun or is closed")
	}
	if past < 0 || past >= len(ids) || want < 0 || want > len(ids)-past || len(ids) > b.maxLen {
		return nil, fmt.Errorf("forward: %d tokens of at most %d, %d past, %d wanted", len(ids), b.maxLen, past, want)
	}
	if b.l.stateless {
		past = 0
	}
	if past > 0 && b.state.Len() >= past {
		b.hits++
	}
	if b.state.Len() < past || b.state.Len() > past && !b.state.Truncate(past) {
		past = 0
		if err := b.reset(); err != nil {
			return nil, err
		}
	}
	out := make([]float32, 0, want*b.l.hidden)
	for from := past; from < len(ids); {
		to := min(from+localChunk, len(ids))
		x := make([]float32, (to-from)*b.l.hidden)
		if err := b.chunk(ctx, ids[from:to], x); err != nil {
			return nil, fmt.Errorf("forward tokens %d to %d: %w", from, to-1, err)
		}
		if first := len(ids) - want; to > first {
			out = append(out, x[max(0, first-from)*b.l.hidden:]...)
		}
		from = to
	}
	return out, nil
}

func (b *LocalBackend) chunk(ctx context.Context, ids []int32, x []float32) error {
	b.l.mu.Lock()
	defer b.l.mu.Unlock()
	if err := b.l.embed.Embed(ids, x); err != nil {
		return err
	}
	return b.l.engine.Forward(ctx, []hop.Work{{State: b.state, Rows: len(ids), X: x}})
}

// Settle implements Backend.
func (b *LocalBackend) Settle(context.Context) error { return nil }

// Stats implements Backend.
func (b *LocalBackend) Stats() BackendStats { return BackendStats{Session: b.id, Hits: b.hits} }

// Close implements Backend.
func (b *LocalBackend) Close() {
	if b.state != nil {
		b.state.Close()
		b.state = nil
	}
}
