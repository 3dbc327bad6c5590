package head

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/route/hop"
)

// StandbyMode says for which hops a second holder of their layers is filled while
// they serve.
type StandbyMode uint8

// Modes.
const (
	StandbyNone    StandbyMode = iota
	StandbyLeaving             // of those that leave: nobody waits when they go
	StandbyAll                 // of all: a loss costs a few rows, and the mesh computes everything twice
)

const (
	// maxStandbys bounds what a head's sessions hold of one peer as standbys of hops
	// that stay: half of what a peer gives a head, so that sessions find a place there.
	maxStandbys = 4
	// standbyLag is how many rows a standby may be behind before it is given more, and
	// standbyPause how long: several rows at once cost it little more than one.
	standbyLag   = 8
	standbyPause = 250 * time.Millisecond
	// standbyStep bounds the wait for rows of the hop before, and for a refill.
	standbyStep = 10 * time.Second
	// After a failure another peer is tried a second later, and the same one after that
	// time doubled each time.
	standbyFirst = time.Second
	standbyMost  = time.Minute
)

// StandbyStat is a peer that is kept warm for a hop.
type StandbyStat struct {
	Peer       string
	Start, End int
	Rows       int // that it holds
	Behind     int // rows that it lacks
}

// standbys fills second holders of a session's layers in the background: with the
// rows that the hop before keeps, or the embeddings, as refills. One goroutine a hop
// chooses a peer, fills it and follows; what goes wrong there ends that peer's being a
// standby, and is nobody's fault: the rows come from a third one.
//
// Lock order: mu, then Mesh.mu.
type standbys struct {
	b      *MeshBackend
	all    bool
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	circuit *hop.Circuit
	hops    []route.Hop // of circuit
	epoch   uint32
	ids     []int32 // tokens that all hops have applied
	cuts    int     // how often some were taken back
	spans   map[[2]int]*standby
	avoid   map[p2p.PeerID]avoided
}

// standby is the one of a hop.
type standby struct {
	span   [2]int
	cancel context.CancelFunc
	wake   chan struct{} // capacity 1: something of the session changed

	// Under standbys.mu:
	peer   p2p.PeerID // "" while there is none
	held   int        // rows that it has
	right  int        // of them those that are of present tokens
	hurry  bool       // the hop leaves
	barren uint32     // the epoch in which the hop before does not keep enough
}

// avoided is a peer that was of no use.
type avoided struct {
	times int
	until time.Time
}

// newStandbys is nil where there are none; all methods then do nothing.
func newStandbys(b *MeshBackend) *standbys {
	if b.stateless || b.m.cfg.Standby == StandbyNone {
		return nil
	}
	s := &standbys{b: b, all: b.m.cfg.Standby == StandbyAll, spans: map[[2]int]*standby{}, avoid: map[p2p.PeerID]avoided{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// stood tells of a new circuit. Standbys of its spans stay.
func (s *standbys) stood(c *hop.Circuit, hops []route.Hop, epoch uint32) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.circuit, s.hops, s.epoch = c, hops, epoch
	for span, st := range s.spans {
		if s.index(span) < 0 {
			st.cancel()
			delete(s.spans, span)
		}
	}
	for _, h := range hops {
		span := [2]int{h.Start, h.End}
		if s.spans[span] == nil {
			ctx, cancel := context.WithCancel(s.ctx)
			st := &standby{span: span, cancel: cancel, wake: make(chan struct{}, 1)}
			s.spans[span] = st
			s.wg.Go(func() { s.keep(ctx, st) })
		}
	}
	s.stir()
}

// index is the hop of a span, or -1. The lock is held.
func (s *standbys) index(span [2]int) int {
	return slices.IndexFunc(s.hops, func(h route.Hop) bool { return h.Start == span[0] && h.End == span[1] })
}

// stir wakes all. The lock is held.
func (s *standbys) stir() {
	for _, st := range s.spans {
		select {
		case st.wake <- struct{}{}:
		default:
		}
	}
}

// begun tells before a step that only the first past tokens count from now on.
func (s *standbys) begun(past int) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if past >= len(s.ids) {
		return
	}
	s.cuts++
	s.ids = slices.Clone(s.ids[:past]) // the old ones may be being read
	for _, st := range s.spans {
		st.right = min(st.right, past)
	}
}

// answered tells after a step that all hops have applied these tokens.
func (s *standbys) answered(ids []int32) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids = append(s.ids, ids[min(len(s.ids), len(ids)):]...)
	s.stir()
}

// close ends all standbys and waits for them.
func (s *standbys) close() {
	if s == nil {
		return
	}
	s.cancel()
	s.wg.Wait()
}

// stats are the standbys in the order of their layers.
func (s *standbys) stats() []StandbyStat {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []StandbyStat
	for _, span := range slices.SortedFunc(maps.Keys(s.spans), func(a, b [2]int) int { return a[0] - b[0] }) {
		if st := s.spans[span]; st.peer != "" {
			out = append(out, StandbyStat{Peer: string(st.peer), Start: span[0], End: span[1], Rows: st.right, Behind: max(len(s.ids)-st.right, 0)})
		}
	}
	return out
}

// keep has some peer stand by for a span until ctx ends.
func (s *standbys) keep(ctx context.Context, st *standby) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		h, epoch, wanted := s.choose(st)
		if h.Peer.ID != "" {
			err := s.serve(ctx, st, h, epoch)
			s.over(st, err)
			if ctx.Err() != nil {
				return
			}
			if !errors.Is(err, errTaken) {
				s.b.log.Info("a standby is lost", "peer", h.Peer.ID.Short(), "start", h.Start, "end", h.End, "err", err)
			}
		}
		if wanted { // somebody else a little later
			t.Reset(standbyFirst)
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-st.wake:
		case <-ctx.Done():
			return
		}
	}
}

// choose finds who could stand by, if anybody is wanted, and counts it in; over counts
// it out. Without a peer in h there is nobody.
func (s *standbys) choose(st *standby) (h route.Hop, epoch uint32, wanted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.index(st.span)
	if i < 0 || len(s.ids) == 0 || st.barren == s.epoch {
		return h, 0, false
	}
	m := s.b.m
	m.mu.Lock()
	defer m.mu.Unlock()
	leaves := s.b.session.Leaves(s.hops[i].Peer.ID)
	if !s.all && !leaves || s.b.session.Epoch() != s.epoch {
		return h, 0, false
	}
	h, _ = s.b.session.Standby(time.Since(m.start), i, func(id p2p.PeerID) bool {
		for _, other := range s.spans {
			if other.peer == id {
				return true
			}
		}
		return !leaves && m.standing[id] >= maxStandbys || time.Now().Before(s.avoid[id].until)
	})
	if h.Peer.ID != "" {
		m.standing[h.Peer.ID]++
		st.peer, st.held, st.right, st.hurry = h.Peer.ID, 0, 0, leaves
	}
	return h, s.epoch, true
}

// over ends a peer's standing by: it is not asked again for a while.
func (s *standbys) over(st *standby, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(err, errTaken) {
		a := s.avoid[st.peer]
		a.until = time.Now().Add(min(standbyFirst<<min(a.times, 10), standbyMost))
		a.times++
		s.avoid[st.peer] = a
	}
	s.b.step(route.Warm{Peer: st.peer, Start: st.span[0], End: st.span[1]})
	m := s.b.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.standing[st.peer]--; m.standing[st.peer] == 0 {
		delete(m.standing, st.peer)
	}
	st.peer, st.held, st.right = "", 0, 0
}

var (
	errTaken  = errors.New("the standby is a hop now")
	errLeaves = errors.New("the standby leaves")
	errBarren = errors.New("the hop before keeps too little")
)

// serve opens a session on a peer and feeds it until something fails or ctx ends.
func (s *standbys) serve(ctx context.Context, st *standby, h route.Hop, epoch uint32) error {
	cfg := s.b.m.cfg
	s.b.m.address(&h)
	c, err := cfg.Client.Open(ctx, 0, hop.OpenRequest{
		Session: s.b.id, Epoch: epoch, Route: route.Route{Hops: []route.Hop{h}}, Model: cfg.Model, Hidden: cfg.Hidden,
		MaxLen: s.b.maxLen, DType: cfg.DType, Cache: cfg.Cache,
	})
	if err != nil {
		return err
	}
	defer c.Close()
	s.mu.Lock()
	st.held = c.Held()[0] // from when it was a hop of this session; not believed
	s.mu.Unlock()
	for seq := uint32(1); ; seq++ {
		f, err := s.more(ctx, st)
		if err != nil {
			return err
		}
		if len(c.Leaving()) > 0 { // it waits for us
			return errLeaves
		}
		x, err := s.rows(ctx, st, f)
		if err != nil {
			return err
		}
		if x == nil {
			continue
		}
		step := hop.Step{Seq: seq, Mode: wire.Refill, Past: f.past, Rows: f.rows, Chunk: f.rows, X: x, Deadline: standbyStep}
		if f.cut { // a refill would leave there what is no more
			step.Mode, step.Want = wire.Prefill, f.rows
		}
		if _, err := c.Step(ctx, step); err != nil {
			return err
		}
		s.fed(st, f)
	}
}

// feed is what a standby is to be given next.
type feed struct {
	circuit    *hop.Circuit
	epoch      uint32
	hop        int     // whose place it would take
	past, rows int     // rows 0: nothing now
	ids        []int32 // of these rows
	behind     int     // rows that it lacks
	cut        bool    // it holds more than past, and that is wrong
	cuts       int     // standbys.cuts
}

func (s *standbys) next(st *standby) (f feed, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.hops, func(h route.Hop) bool { return h.Peer.ID == st.peer }) {
		return f, errTaken
	}
	f = feed{circuit: s.circuit, epoch: s.epoch, hop: s.index(st.span), past: st.held, cuts: s.cuts}
	if st.held > st.right {
		f.past, f.cut = st.right, true
	}
	f.behind = max(len(s.ids)-f.past, 0)
	f.rows = min(f.behind, hop.BackRows(s.b.m.cfg.Hidden))
	if st.hurry {
		f.rows = min(f.behind, hop.ChunkRows(s.b.m.cfg.Hidden))
	}
	f.ids = s.ids[f.past:][:f.rows]
	return f, nil
}

// more waits until there is something to give: many rows, or a few for a while.
func (s *standbys) more(ctx context.Context, st *standby) (feed, error) {
	var pause *time.Timer
	var late <-chan time.Time
	for waited := false; ; {
		f, err := s.next(st)
		if err != nil || f.rows > 0 && (waited || f.behind >= standbyLag) {
			return f, err
		}
		if f.rows > 0 && pause == nil {
			pause = time.NewTimer(standbyPause)
			defer pause.Stop()
			late = pause.C
		}
		select {
		case <-st.wake:
		case <-late:
			waited = true
		case <-ctx.Done():
			return f, context.Cause(ctx)
		}
	}
}

// rows are what the hop gets of these tokens; nil if they can't be had now.
func (s *standbys) rows(ctx context.Context, st *standby, f feed) ([]float32, error) {
	if f.hop == 0 {
		x := make([]float32, f.rows*s.b.m.cfg.Hidden)
		return x, s.b.m.cfg.Embed.Embed(f.ids, x)
	}
	within, cancel := context.WithTimeout(ctx, standbyStep)
	defer cancel()
	x, err := f.circuit.Kept(within, f.hop-1, f.past, f.rows)
	if err == nil || within.Err() != nil {
		return x, err
	}
	s.mu.Lock()
	same := s.epoch == f.epoch && s.cuts == f.cuts
	var e *hop.Error
	if same && errors.As(err, &e) && e.Side == hop.Remote {
		st.barren = f.epoch
		s.mu.Unlock()
		return nil, errBarren
	}
	s.mu.Unlock()
	// The circuit is over or about to be: what the standby holds may be needed at once.
	t := time.NewTimer(standbyPause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-st.wake:
	case <-ctx.Done():
	}
	return nil, context.Cause(ctx)
}

// fed notes that a standby has taken rows in.
func (s *standbys) fed(st *standby, f feed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.held = f.past + f.rows
	m := s.b.m
	m.mu.Lock()
	m.tally.shadowed += f.rows
	m.mu.Unlock()
	if f.cuts != s.cuts {
		return // of them only what begun left is right
	}
	st.right = st.held
	s.b.step(route.Warm{Peer: st.peer, Start: st.span[0], End: st.span[1], Rows: st.right})
}
