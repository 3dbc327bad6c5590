package head

import (
	"context"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/shard"
)

// Engine is a shard's engine as the activation protocol sees it: a state that
// nobody looks into.
func Engine(e *shard.Engine) hop.Engine { return engine{e} }

type engine struct{ e *shard.Engine }

func (e engine) NewState(start, end int) (cache.State, error) {
	s, err := e.e.NewState(start, end)
	if err != nil {
		return nil, err // never a nil *shard.State in a State that is not nil
	}
	return s, nil
}

func (e engine) StateBytes(start, end, maxLen int) int64 { return e.e.StateBytes(start, end, maxLen) }

func (e engine) Forward(ctx context.Context, batch []hop.Work) error {
	items := make([]shard.Item, len(batch))
	for i, w := range batch {
		items[i] = shard.Item{State: w.State.(*shard.State), Rows: w.Rows, X: w.X}
	}
	return e.e.Forward(ctx, items)
}
