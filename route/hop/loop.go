package hop

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxBatch is how many sessions share one Forward.
const maxBatch = 64

var errStopped = errors.New("the peer is stopping")

// job is one step of one session on its way through the engine.
type job struct {
	owner  string          // whose session
	ctx    context.Context // ended: not computed any more if it has not begun
	work   Work
	micros int64 // its share of the computing
	err    error
	done   chan struct{}
}

// loop feeds the engine from one goroutine: all decodes that wait go together and
// first, then one chunk of a prefill, then decodes again.
//
// Whoever waits is a session's worker with its one job, so the queues are bounded by
// the number of sessions. Prefills take turns by head: one with eight long prompts
// gets no more of the engine than one with a single one.
type loop struct {
	engine   Engine
	waiting  atomic.Int64 // jobs that wait or are computed
	decodes  chan *job
	prefills turns
	quit     chan struct{} // closed by stop
	done     chan struct{} // closed when run has ended
}

func newLoop(e Engine) *loop {
	l := &loop{engine: e, decodes: make(chan *job), prefills: turns{more: make(chan struct{}, 1), by: map[string]*share{}}, quit: make(chan struct{}), done: make(chan struct{})}
	go l.run()
	return l
}

// stop ends the loop after the step that it computes. Call it once.
func (l *loop) stop() {
	close(l.quit)
	<-l.done
}

// do computes one job and returns when its state is no longer in use.
func (l *loop) do(ctx context.Context, owner string, w Work, decode bool) (micros int64, err error) {
	j := &job{owner: owner, ctx: ctx, work: w, done: make(chan struct{})}
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	if decode {
		select {
		case l.decodes <- j:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-l.quit:
			return 0, errStopped
		}
		<-j.done
		return j.micros, j.err
	}
	l.prefills.add(j)
	select {
	case <-j.done:
		return j.micros, j.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-l.quit:
		err = errStopped
	}
	if l.prefills.withdraw(j) {
		return 0, err
	}
	<-j.done // it is being computed: the state is in use
	return j.micros, j.err
}

// turns is a queue of fair shares (start-time fair queueing, in rows): the next job is
// of the owner that has had the least, where who comes back from idleness counts as
// having had what the others have.
type turns struct {
	more chan struct{} // capacity 1: something was added; for the loop

	mu  sync.Mutex
	by  map[string]*share
	now uint64 // where the job that was taken last began
}

// share is an owner's jobs in their order, and where the first of them begins: at the
// sum of the rows before it.
type share struct {
	jobs  []*job
	begin uint64
}

func (t *turns) add(j *job) {
	t.mu.Lock()
	s := t.by[j.owner]
	if s == nil {
		s = &share{}
		t.by[j.owner] = s
	}
	if len(s.jobs) == 0 {
		s.begin = max(s.begin, t.now)
	}
	s.jobs = append(s.jobs, j)
	t.mu.Unlock()
	t.wake()
}

func (t *turns) wake() {
	select {
	case t.more <- struct{}{}:
	default:
	}
}

// take is the next job, nil if there is none.
func (t *turns) take() *job {
	t.mu.Lock()
	defer t.mu.Unlock()
	var next *share
	waiting, who := 0, ""
	for owner, s := range t.by {
		waiting += len(s.jobs)
		switch {
		case len(s.jobs) == 0 && s.begin <= t.now:
			delete(t.by, owner) // as good as new
		case len(s.jobs) > 0 && (next == nil || s.begin < next.begin || s.begin == next.begin && owner < who):
			next, who = s, owner
		}
	}
	if next == nil {
		return nil
	}
	j := next.jobs[0]
	next.jobs = next.jobs[1:]
	t.now = next.begin
	next.begin += uint64(j.work.Rows)
	if waiting > 1 {
		t.wake()
	}
	return j
}

// withdraw takes a job out that was not taken yet.
func (t *turns) withdraw(j *job) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.by[j.owner]
	if s == nil {
		return false
	}
	i := slices.Index(s.jobs, j)
	if i < 0 {
		return false
	}
	s.jobs = slices.Delete(s.jobs, i, i+1)
	return true
}

func (l *loop) run() {
	defer close(l.done)
	for {
		var batch []*job
		var bulk *job
		select {
		case j := <-l.decodes:
			batch = append(batch, j)
		case <-l.prefills.more:
			bulk = l.prefills.take()
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
			bulk = l.prefills.take()
		}
		if bulk != nil {
			l.forward([]*job{bulk})
		}
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
