package hop

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/p2p/wire"
)

// work applies the inbox's frames in the order of their arrival until the session
// ends. It is the session's one worker: only it touches the cache entry.
func (ss *session) work() {
	var seen uint32 // highest Seq applied in this epoch
	for {
		it, ok := ss.get()
		if !ok {
			return
		}
		switch {
		case it.ask != nil:
			ss.resend(it)
			continue
		case it.attest != nil:
			ss.attest(it.attest)
			continue
		}
		// Credit goes back now, not after computing: the inbox is what it bounds.
		if it.from.taken(it.size, ss.open.Session, ss.open.Epoch) != nil {
			continue // the stream is broken; its reader says so
		}
		a := it.act
		switch {
		case a.Mode == wire.Refill:
			ss.refill(it)
			continue
		case a.Mode != wire.Stateless && ss.saved.x != nil && a.Seq == ss.saved.seq:
			ss.again(it)
		case a.Seq <= seen:
			ss.tell(wire.Error{Seq: a.Seq, Code: wire.CodeBadFrame, Text: fmt.Sprintf("step %d after step %d", a.Seq, seen)})
			continue
		case !ss.apply(it):
			continue // refused: it may come again when what it lacked is here
		}
		seen = max(seen, a.Seq)
	}
}

// get waits for the next item.
func (ss *session) get() (item, bool) {
	for {
		ss.mu.Lock()
		if ss.ended {
			ss.mu.Unlock()
			return item{}, false
		}
		if len(ss.inbox) > 0 {
			it := ss.inbox[0]
			ss.inbox[0] = item{}
			ss.inbox = ss.inbox[1:]
			ss.mu.Unlock()
			return it, true
		}
		ss.mu.Unlock()
		select {
		case <-ss.full:
		case <-ss.ctx.Done():
			return item{}, false
		}
	}
}

// again answers a repeat of the last applied step from memory.
func (ss *session) again(it item) {
	a := it.act
	if a.Past != ss.saved.past || a.Rows != ss.saved.rows {
		ss.tell(wire.Error{Seq: a.Seq, Code: wire.CodeBadFrame, Text: "the step was applied with other rows"})
		return
	}
	ss.srv.count.repeats.Add(1)
	ss.lastSeq.Store(a.Seq) // in this epoch it is new: who has not got so far is to blame
	ss.deliver(it, ss.saved.x)
}

// apply does one step: computes and delivers it, or refuses it with nothing changed.
func (ss *session) apply(it item) bool {
	a := it.act
	switch {
	case a.Past+a.Rows > ss.open.MaxLen:
		ss.tell(wire.Error{Seq: a.Seq, Code: wire.CodeTooLong, Text: fmt.Sprintf("%d tokens, %d were declared", a.Past+a.Rows, ss.open.MaxLen)})
		return false
	case ss.linkBroken():
		return false // the head knows, and opens another epoch
	}
	ctx, cancel := context.WithDeadlineCause(ss.ctx, it.deadline(), errLate)
	defer cancel()
	var micros int64
	var err error
	if a.Mode == wire.Stateless {
		micros, err = ss.stateless(ctx, it)
	} else {
		micros, err = ss.stateful(ctx, it)
	}
	if err != nil {
		ss.explain(a, err)
		return false
	}
	if a.Mode != wire.Stateless {
		ss.keepRows(int(a.Past), it.x)
	}
	ss.applied(it, int(a.Rows), micros)
	ss.lastSeq.Store(a.Seq)
	ss.deliver(it, it.x)
	return true
}

// applied counts a frame.
func (ss *session) applied(it item, rows int, micros int64) {
	ss.frames.Add(1)
	ss.in.Add(uint64(it.wire))
	ss.rows.Add(uint64(rows))
	ss.micros.Add(uint64(micros))
	count := &ss.srv.count
	count.steps.Add(1)
	count.rows.Add(uint64(rows))
	count.micros.Add(uint64(micros))
}

var errLate = errors.New("past the step's deadline")

// deadline is when nobody waits for the answer any more.
func (it item) deadline() time.Time {
	d := time.Duration(it.act.Deadline) * time.Millisecond
	if d == 0 {
		d = math.MaxInt32 * time.Millisecond
	}
	return it.at.Add(d)
}

func (ss *session) linkBroken() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.broken
}

// stateful applies the step to the session's cache entry.
func (ss *session) stateful(ctx context.Context, it item) (int64, error) {
	a, store := it.act, ss.srv.cfg.Cache
	entry, err := ss.seek(int(a.Past))
	if err != nil {
		return 0, err
	}
	defer entry.Release()
	// Whatever happens now, the answer to an earlier step is no longer the last one.
	ss.saved = saved{}
	links := ss.inLinks(int(a.Past), it.x)
	micros, err := ss.srv.loop.do(ctx, ss.owner, Work{State: entry.State(), Rows: int(a.Rows), X: it.x}, a.Mode == wire.Decode)
	if err != nil {
		return 0, err
	}
	if got := entry.State().Len(); got != int(a.Past+a.Rows) {
		entry.Release()
		store.Drop(ss.open.Session)
		return 0, fmt.Errorf("the state holds %d tokens after %d+%d", got, a.Past, a.Rows)
	}
	ss.counted(int(a.Past), links, it.x)
	ss.saved = saved{seq: a.Seq, past: a.Past, rows: a.Rows, x: it.x}
	return micros, nil
}

// seek pins the session's entry with exactly past tokens. A step from the very
// start needs nothing that is held, so it gets a new entry where the old is gone or
// can't be cut.
func (ss *session) seek(past int) (*cache.Entry, error) {
	store := ss.srv.cfg.Cache
	for fresh := false; ; fresh = true {
		entry, err := store.Acquire(ss.key(), ss.owner)
		if err == nil {
			if err = entry.Seek(past); err == nil {
				return entry, nil
			}
			entry.Release()
		}
		var miss *cache.MissError
		if !errors.As(err, &miss) || past > 0 || fresh {
			return nil, err
		}
		store.Drop(ss.open.Session)
		if _, no := ss.makeRoom(); no != nil {
			return nil, no
		}
	}
}

// stateless computes on a state of its own that is thrown away.
func (ss *session) stateless(ctx context.Context, it item) (int64, error) {
	st, err := ss.srv.cfg.Engine.NewState(int(ss.open.Start), int(ss.open.End), ss.open.CacheType)
	if err != nil {
		return 0, err
	}
	defer st.Close()
	return ss.srv.loop.do(ctx, ss.owner, Work{State: st, Rows: int(it.act.Rows), X: it.x}, false)
}

func (r *refusal) Error() string { return r.code.String() + ": " + r.text }

// explain tells the head why a step was not applied.
func (ss *session) explain(a *wire.Activation, err error) {
	if ss.ctx.Err() != nil {
		return
	}
	e := wire.Error{Seq: a.Seq, Code: wire.CodeInternal, Text: err.Error()}
	var miss *cache.MissError
	var no *refusal
	switch {
	case errors.As(err, &miss):
		e.Code, e.Held = wire.CodeCacheMiss, uint32(max(miss.Held, 0))
		ss.srv.log.Info("cache miss", "session", short(ss.open.Session), "past", a.Past, "held", miss.Held)
	case errors.As(err, &no):
		e.Code, e.Retry, e.Text = no.code, uint32(no.retry.Milliseconds()), no.text
	case errors.Is(err, errLate):
		e.Code = wire.CodeDeadline
	case errors.Is(err, errStopped):
		e.Code = wire.CodeDraining
	}
	ss.tell(e)
}

// deliver sends a step's rows to the next hop, or to the head.
func (ss *session) deliver(it item, x []float32) {
	a, o := it.act, ss.open
	hidden := ss.srv.cfg.Hidden
	ss.mu.Lock()
	next := ss.next
	ss.mu.Unlock()
	if next != nil {
		payload, err := payloadFor(x, o.DType)
		if err != nil {
			ss.tell(wire.Error{Seq: a.Seq, Code: wire.CodeInternal, Text: err.Error()})
			return
		}
		f := *a
		f.DType, f.Payload = o.DType, payload
		if a.Deadline > 0 {
			f.Deadline = uint32(max(1, time.Until(it.deadline()).Milliseconds()))
		}
		_ = next.send(ss.ctx, &f, len(payload)) // a broken link is reported by its reader
		return
	}
	rows := int(a.Rows)
	if int(o.End) == ss.srv.cfg.Layers {
		rows = int(min(a.Want, a.Rows)) // nobody but the head, for what it wants
	}
	payload, err := payloadFor(x[len(x)-rows*hidden:], o.DType)
	if err != nil {
		ss.tell(wire.Error{Seq: a.Seq, Code: wire.CodeInternal, Text: err.Error()})
		return
	}
	r := &wire.Result{Session: o.Session, Epoch: o.Epoch, Seq: a.Seq, Rows: uint32(rows), DType: o.DType, Hidden: uint32(hidden), Payload: payload}
	_ = ss.head.send(ss.ctx, r, len(payload)) // a broken stream is seen by its reader
}
