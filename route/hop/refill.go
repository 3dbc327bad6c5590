package hop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/p2p/wire"
)

// keepRows keeps the hop's output for a hop that may take the next one's place.
func (ss *session) keepRows(past int, x []float32) {
	if ss.kept == nil {
		return
	}
	data, err := payloadFor(x, ss.open.DType)
	if err != nil {
		return // deliver says so
	}
	ss.kept.put(past, data)
}

// resend gives kept rows once more to the next hop, or to the head where that
// forwards or asks for them itself. Nothing is computed.
func (ss *session) resend(it item) {
	q, o := it.ask, ss.open
	if ss.kept == nil {
		ss.tell(wire.Error{Seq: q.Seq, Code: wire.CodeBadFrame, Text: "the last hop gives no rows to others"})
		return
	}
	if int(q.Rows)*ss.kept.row > wire.MaxFrame-wire.MaxHeader {
		ss.tell(wire.Error{Seq: q.Seq, Code: wire.CodeBadFrame, Text: fmt.Sprintf("%d rows are more than a frame holds", q.Rows)})
		return
	}
	data, have := ss.kept.get(int(q.Past), int(q.Rows))
	if data == nil {
		ss.tell(wire.Error{Seq: q.Seq, Code: wire.CodeCacheMiss, Held: uint32(have), Text: fmt.Sprintf("%d rows are kept", have)})
		return
	}
	ss.mu.Lock()
	next, broken := ss.next, ss.broken
	ss.mu.Unlock()
	if broken && !q.Back {
		return // the head knows, and opens another epoch
	}
	ss.srv.count.resent.Add(uint64(q.Rows))
	hidden := uint32(ss.srv.cfg.Hidden)
	if next == nil || q.Back {
		r := &wire.Result{Session: o.Session, Epoch: o.Epoch, Seq: q.Seq, Rows: q.Rows, DType: o.DType, Hidden: hidden, Payload: data}
		_ = ss.head.send(ss.ctx, r, len(data)) // a broken stream is seen by its reader
		return
	}
	a := &wire.Activation{
		Session: o.Session, Epoch: o.Epoch, Seq: q.Seq, Mode: wire.Refill, Past: q.Past, Rows: q.Rows,
		DType: o.DType, Hidden: hidden, Payload: data,
	}
	if q.Deadline > 0 {
		spent := uint32(min(time.Since(it.at).Milliseconds(), int64(q.Deadline)-1))
		a.Deadline = q.Deadline - spent
	}
	_ = next.send(ss.ctx, a, len(data)) // a broken link is reported by its reader
}

// refill appends what the cache lacks of rows that were computed once, for this hop
// alone: they go no further, and the last step and its answer stay what they were.
func (ss *session) refill(it item) {
	a := it.act
	if uint64(a.Past)+uint64(a.Rows) > uint64(ss.open.MaxLen) {
		ss.tell(wire.Error{Seq: a.Seq, Code: wire.CodeTooLong, Text: fmt.Sprintf("%d tokens, %d were declared", a.Past+a.Rows, ss.open.MaxLen)})
		return
	}
	ctx, cancel := context.WithDeadlineCause(ss.ctx, it.deadline(), errLate)
	defer cancel()
	rows, micros, err := ss.lacking(ctx, it)
	if err != nil {
		ss.explain(a, err)
		return
	}
	ss.srv.count.refilled.Add(uint64(rows))
	ss.applied(it, rows, micros)
	r := &wire.Result{Session: ss.open.Session, Epoch: ss.open.Epoch, Seq: a.Seq, DType: ss.open.DType, Hidden: uint32(ss.srv.cfg.Hidden)}
	_ = ss.head.send(ss.ctx, r, 0)
}

// lacking computes those rows that the cache does not hold, and says how many.
func (ss *session) lacking(ctx context.Context, it item) (rows int, micros int64, err error) {
	past, end := int(it.act.Past), int(it.act.Past+it.act.Rows)
	entry, err := ss.pin(past)
	if err != nil {
		return 0, 0, err
	}
	defer entry.Release()
	held := entry.State().Len()
	if held < past {
		return 0, 0, &cache.MissError{Held: held}
	}
	if held >= end {
		return 0, 0, nil
	}
	x := it.x[(held-past)*ss.srv.cfg.Hidden:]
	links := ss.inLinks(held, x)
	micros, err = ss.srv.loop.do(ctx, ss.owner, Work{State: entry.State(), Rows: end - held, X: x}, false)
	if err != nil {
		return 0, 0, err
	}
	if got := entry.State().Len(); got != end {
		entry.Release()
		ss.srv.cfg.Cache.Drop(ss.open.Session)
		return 0, 0, fmt.Errorf("the state holds %d tokens after %d+%d", got, held, end-held)
	}
	ss.counted(held, links, x)
	ss.keepRows(held, x)
	return end - held, micros, nil
}

// pin is the session's entry as it is; a new one where it is gone and nothing of it
// is needed.
func (ss *session) pin(past int) (*cache.Entry, error) {
	store := ss.srv.cfg.Cache
	entry, err := store.Acquire(ss.key(), ss.owner)
	var miss *cache.MissError
	if err == nil || !errors.As(err, &miss) || past > 0 {
		return entry, err
	}
	if _, no := ss.makeRoom(); no != nil {
		return nil, no
	}
	return store.Acquire(ss.key(), ss.owner)
}
