package hop

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// maxBatch is how many sessions share one Forward.
const maxBatch = 64

var errStopped = errors.New("the peer is stopping")

// job is one step of one session on its way through the engine.
type job struct {
	ctx    context.Context // ended: not computed any more if it has not begun
	work   Work
	micros int64 // its share of the computing
	err    error
	done   chan struct{}
}

// loop feeds the engine from one goroutine: all decodes that wait go together and
// first, then one chunk of a prefill, then decodes again.
//
// The channels have no buffer: whoever waits is a session's worker with its one
// job, so the queue is bounded by the number of sessions.
type loop struct {
	engine   Engine
	waiting  atomic.Int64 // jobs that wait or are computed
	decodes  chan *job
	prefills chan *job
	quit     chan struct{} // closed by stop
	done     chan struct{} // closed when run has ended
}

func newLoop(e Engine) *loop {
	l := &loop{engine: e, decodes: make(chan *job), prefills: make(chan *job), quit: make(chan struct{}), done: make(chan struct{})}
	go l.run()
	return l
}

// stop ends the loop after the step that it computes. Call it once.
func (l *loop) stop() {
	close(l.quit)
	<-l.done
}

// do computes one job and returns when its state is no longer in use.
func (l *loop) do(ctx context.Context, w Work, decode bool) (micros int64, err error) {
	j := &job{ctx: ctx, work: w, done: make(chan struct{})}
	queue := l.prefills
	if decode {
		queue = l.decodes
	}
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	select {
	case queue <- j:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-l.quit:
		return 0, errStopped
	}
	<-j.done
	return j.micros, j.err
}

func (l *loop) run() {
	defer close(l.done)
	for {
		var batch []*job
		var bulk *job
		select {
		case j := <-l.decodes:
			batch = append(batch, j)
		case bulk = <-l.prefills:
		case <-l.quit:
			return
		}
		for more := true; more && len(batch) < maxBatch; {
			select {
			case j := <-l.decodes:
				batch = append(batch, j)
			default:
				more = false
			}
		}
		l.forward(batch)
		if bulk == nil {
			select {
			case bulk = <-l.prefills:
			default:
				continue
			}
		}
		l.forward([]*job{bulk})
	}
}

// forward computes a batch and answers every job of it.
func (l *loop) forward(batch []*job) {
	var live []*job
	var works []Work
	rows := 0
	for _, j := range batch {
		if j.ctx.Err() != nil {
			j.err = context.Cause(j.ctx)
			close(j.done)
			continue
		}
		live, works, rows = append(live, j), append(works, j.work), rows+j.work.Rows
	}
	if len(live) == 0 {
		return
	}
	var input [][]float32
	if len(live) > 1 {
		for _, w := range works {
			input = append(input, append([]float32(nil), w.X...))
		}
	}
	// Alone, a step may be cut off when nobody waits any more; others share a batch.
	ctx := context.Background()
	if len(live) == 1 {
		ctx = live[0].ctx
	}
	start := time.Now()
	err := l.engine.Forward(ctx, works)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	micros := time.Since(start).Microseconds()
	if err != nil && len(live) > 1 {
		// One bad item must not fail its neighbours: each alone.
		for i, j := range live {
			copy(j.work.X, input[i])
			l.forward([]*job{j})
		}
		return
	}
	for _, j := range live {
		j.err, j.micros = err, micros*int64(j.work.Rows)/int64(rows)
		close(j.done)
	}
}
