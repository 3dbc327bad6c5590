package shard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/meshnet/meshnet/shard/model"
)

// maxPass is how many rows go through the layers together: enough to use each
// weight many times, few enough for the activations to stay near.
const maxPass = 512

// Engine holds the weights of layers [start, end). Its methods may be called
// from several goroutines; they take turns.
type Engine struct {
	model      *model.Info
	start, end int
	layers     []*layer
	loader     *loader

	mu   sync.Mutex
	pass pass
}

// LoadRange maps and packs layers [start, end), and nothing else of the file.
// Close frees them.
func (m *Model) LoadRange(start, end int, o Options) (*Engine, error) {
	if start < 0 || end <= start || end > m.info.Layers {
		return nil, fmt.Errorf("load layers [%d, %d): the model has layers [0, %d)", start, end, m.info.Layers)
	}
	var total int64
	for _, n := range m.info.LayerBytes[start:end] {
		total += n
	}
	l, err := newLoader(m, o, total)
	if err != nil {
		return nil, fmt.Errorf("load layers [%d, %d): %w", start, end, err)
	}
	e := &Engine{model: m.info, start: start, end: end, loader: l}
	for i := start; i < end; i++ {
		l.part(fmt.Sprintf("layer-%d", i))
		ly, err := l.layer(&m.info.Plan[i], i)
		if err != nil {
			l.free()
			return nil, fmt.Errorf("load layer %d: %w", i, err)
		}
		e.layers = append(e.layers, ly)
	}
	if err := l.load(); err != nil {
		l.free()
		return nil, fmt.Errorf("load layers [%d, %d): %w", start, end, err)
	}
	e.pass.init(m.info, l)
	e.pass.addAngles(m.info.Plan[start:end])
	return e, nil
}

// Range is the layers that the engine holds.
func (e *Engine) Range() (start, end int) { return e.start, e.end }

// Hidden is the number of values of a row.
func (e *Engine) Hidden() int { return e.model.Hidden }

// Bytes is the memory that the weights take.
func (e *Engine) Bytes() int64 { return e.loader.bytes() }

// CPU names the kernel set in use.
func (e *Engine) CPU() string { return e.loader.cpu }

// Close frees the weights, after which the engine must not be used.
func (e *Engine) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.loader.free()
	e.layers = nil
}

func (e *Engine) checkRange(start, end int) error {
	if start < e.start || end > e.end || start >= end {
		return fmt.Errorf("layers [%d, %d) are not inside the loaded range [%d, %d)", start, end, e.start, e.end)
	}
	return nil
}

// Item is one session's share of a batch: Rows rows of Hidden values at the
// positions that follow State.Len(). X comes in as the input of the state's
// first layer and goes out as the output of its last.
type Item struct {
	State *State
	Rows  int
	X     []float32
}

// ItemError says which item of a batch made Forward fail.
type ItemError struct {
	Item int
	Err  error
}

func (e *ItemError) Error() string { return fmt.Sprintf("batch item %d: %v", e.Item, e.Err) }
func (e *ItemError) Unwrap() error { return e.Err }

// ErrNotFinite is wrapped when an item's rows hold NaN or infinity.
var ErrNotFinite = errors.New("not finite")

// Forward applies to each item's rows the layers of its state and appends the
// rows to the state. Items may have different ranges; no state may come twice.
//
// An error leaves every state as it was, and what the X then hold is undefined.
// It is an *ItemError when one item is at fault, and ctx's when that ends, which
// is looked at between layers.
func (e *Engine) Forward(ctx context.Context, batch []Item) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.layers == nil {
		return errors.New("the engine is closed")
	}
	if err := e.check(batch); err != nil {
		return err
	}
	kept := make([]int, len(batch))
	for i, it := range batch {
		kept[i] = len(it.State.chunks)
		it.State.reserve(it.State.length + it.Rows)
	}
	err := e.forward(ctx, batch)
	for i, it := range batch {
		if err == nil {
			it.State.length += it.Rows
		} else {
			it.State.drop(kept[i])
		}
	}
	return err
}

func (e *Engine) forward(ctx context.Context, batch []Item) error {
	p := &e.pass
	defer p.begin()
	item, row := 0, 0 // of the next row
	for item < len(batch) {
		p.begin()
		for item < len(batch) && len(p.all) < maxPass {
			it := batch[item]
			n := min(it.Rows-row, maxPass-len(p.all))
			for i := range n {
				h := e.model.Hidden
				p.all = append(p.all, rowRef{it.State, it.State.length + row + i, it.X[(row+i)*h : (row+i+1)*h]})
			}
			if row += n; row == it.Rows {
				item, row = item+1, 0
			}
		}
		if err := e.run(ctx, p); err != nil {
			return err
		}
	}
	for i, it := range batch {
		if at := notFinite(it.X[:it.Rows*e.model.Hidden]); at >= 0 {
			return &ItemError{i, fmt.Errorf("the output of layers [%d, %d) is %w at row %d", it.State.start, it.State.end, ErrNotFinite, at/e.model.Hidden)}
		}
	}
	return nil
}

// run takes the rows of one pass through the layers. The rows that a layer
// works on lie together in p.x; they are gathered anew where a range begins or
// ends.
func (e *Engine) run(ctx context.Context, p *pass) error {
	for i, ly := range e.layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		p.gather(e.start + i)
		if len(p.rows) > 0 {
			ly.forward(p)
		}
	}
	p.scatter()
	return nil
}

func (e *Engine) check(batch []Item) error {
	seen := make(map[*State]bool, len(batch))
	for i, it := range batch {
		if err := e.checkItem(it, seen); err != nil {
			return &ItemError{i, err}
		}
	}
	return nil
}

func (e *Engine) checkItem(it Item, seen map[*State]bool) error {
	s := it.State
	switch {
	case s == nil || s.engine != e:
		return errors.New("its state is not of this engine")
	case s.closed:
		return errors.New("its state is closed")
	case seen[s]:
		return errors.New("its state is in the batch twice")
	case it.Rows < 1:
		return fmt.Errorf("%d rows", it.Rows)
	case it.Rows > e.model.Context-s.length:
		return fmt.Errorf("%d rows after %d are beyond the model's context of %d", it.Rows, s.length, e.model.Context)
	case len(it.X) != it.Rows*e.model.Hidden:
		return fmt.Errorf("%d values, want %d rows of %d", len(it.X), it.Rows, e.model.Hidden)
	}
	seen[s] = true
	if at := notFinite(it.X); at >= 0 {
		return fmt.Errorf("input is %w at row %d, value %d", ErrNotFinite, at/e.model.Hidden, at%e.model.Hidden)
	}
	return nil
}

func finite(x float32) bool { return math.Float32bits(x)&0x7f800000 != 0x7f800000 }

// notFinite is the index of the first NaN or infinity, or -1.
func notFinite(x []float32) int {
	for i, v := range x {
		if !finite(v) {
			return i
		}
	}
	return -1
}
