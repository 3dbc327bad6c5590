package head

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/route/hop"
)

// Directory is what a head knows of the mesh. Safe for several goroutines.
type Directory interface {
	// View are the believed, unexpired offers of a model.
	View(model wire.Fingerprint) []wire.Offer
	// Changed is closed at the next change of any view.
	Changed() <-chan struct{}
	// Links are measured round trips and links known to be down.
	Links() []route.Link
	// Peer is a peer with its addresses as far as they are known.
	Peer(id p2p.PeerID) p2p.Peer
}

// MeshConfig is what a Mesh is made of. Logger may be nil; DType 0 is f32, Cache 0
// is wire.DefaultCacheType.
type MeshConfig struct {
	Client    *hop.Client
	Directory Directory
	Embed     Embedder
	Head      p2p.PeerID // this peer
	Model     wire.Fingerprint
	Layers    int
	Hidden    int
	DType     wire.DType
	Cache     wire.CacheType
	Standby   StandbyMode
	Verify    Verify
	Seed      uint64 // spreads bans differently on every head
	Logger    *slog.Logger
}

// keptRecoveries are remembered for status.
const keptRecoveries = 128

// Mesh is a head's side of the mesh: what its sessions share.
type Mesh struct {
	cfg   MeshConfig
	start time.Time

	mu     sync.Mutex
	bans   *route.Bans // also serialises route.Session.Step, which uses it
	live   map[*MeshBackend]struct{}
	recent []Recovery
	tally  tally

	standing map[p2p.PeerID]int // standbys of all sessions, by peer
	findings []Finding
	verified VerifyStat
}

// NewMesh checks cfg.
func NewMesh(cfg MeshConfig) (*Mesh, error) {
	if cfg.Client == nil || cfg.Directory == nil || cfg.Embed == nil || cfg.Head == "" || cfg.Layers <= 0 || cfg.Hidden <= 0 {
		return nil, errors.New("new mesh: client, directory, embeddings, head, layers and hidden are all needed")
	}
	if cfg.Verify.Percent > 0 && cfg.Verify.Signed == nil {
		return nil, errors.New("new mesh: to verify, signatures must be checked")
	}
	if cfg.DType == 0 {
		cfg.DType = wire.F32
	}
	if cfg.Cache == 0 {
		cfg.Cache = wire.DefaultCacheType
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Mesh{cfg: cfg, start: time.Now(), bans: route.NewBans(cfg.Seed), live: map[*MeshBackend]struct{}{}, standing: map[p2p.PeerID]int{}}, nil
}

// Backend returns the Backend of one request.
func (m *Mesh) Backend() Backend { return &MeshBackend{m: m} }

// Stateless returns the Backend of one request that sends all rows each step.
func (m *Mesh) Stateless() Backend { return &MeshBackend{m: m, stateless: true} }

// Plan is the route that a session would take now.
func (m *Mesh) Plan() (route.Route, error) {
	at := time.Since(m.start)
	m.mu.Lock()
	banned, severed, doubts := m.bans.Now(at), m.bans.Severed(at), m.bans.Doubts(at)
	m.mu.Unlock()
	d := m.cfg.Directory
	return route.Plan(route.Query{
		Layers: m.cfg.Layers, Model: m.cfg.Model, Offers: d.View(m.cfg.Model), Links: append(slices.Clone(d.Links()), severed...), Banned: banned, Doubts: doubts, Head: m.cfg.Head, Cache: m.cfg.Cache,
	})
}

// address gives a hop's peer the addresses that are known now.
func (m *Mesh) address(h *route.Hop) {
	if p := m.cfg.Directory.Peer(h.Peer.ID); len(p.Addrs) > 0 {
		h.Peer = p
	}
}

// Live is a session in progress, for status.
type Live struct {
	Session  wire.SessionID
	Epoch    uint32
	Route    route.Route
	Standbys []StandbyStat
}

// Live are the sessions in progress.
func (m *Mesh) Live() []Live {
	m.mu.Lock()
	out := make([]Live, 0, len(m.live))
	var of []*standbys
	for b := range m.live {
		out = append(out, Live{Session: b.id, Epoch: b.session.Epoch(), Route: b.session.Route()})
		of = append(of, b.standby)
	}
	m.mu.Unlock()
	for i, s := range of {
		out[i].Standbys = s.stats()
	}
	return out
}

// Recent are the last recoveries of all sessions, the oldest first.
func (m *Mesh) Recent() []Recovery {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Recovery(nil), m.recent...)
}

// MeshBackend is one session of a Mesh: it does what route.Session decides.
type MeshBackend struct {
	m         *Mesh
	stateless bool
	id        wire.SessionID
	maxLen    int
	notify    Notify
	log       *slog.Logger

	session *route.Session // Step is called under m.mu
	changed <-chan struct{}
	circuit *hop.Circuit // the last that stood
	standby *standbys
	verify  *verifier
	closing sync.WaitGroup
	closed  bool

	ids    []int32   // of the present Forward
	x      []float32 // embeddings
	rows   []float32 // answer of the last Send
	trace  trace     // of the present step
	mended []Recovery

	marked   *hop.Circuit
	inAtMark uint64 // bytes from the hops when decode counting began
	decodes  int    // steps since then
	stats    BackendStats
}

// Begin implements Backend.
func (b *MeshBackend) Begin(ctx context.Context, id wire.SessionID, maxLen int, n Notify) error {
	if b.session != nil || b.closed {
		return errors.New("begin: the backend was used before")
	}
	if maxLen < 1 || maxLen > wire.MaxTokens {
		return fmt.Errorf("begin: a session of %d tokens", maxLen)
	}
	cfg := b.m.cfg
	s, err := route.NewSession(route.Config{
		Layers: cfg.Layers, Model: cfg.Model, Head: cfg.Head, Bans: b.m.bans,
		ChunkRows: hop.ChunkRows(cfg.Hidden), Cache: cfg.Cache, Stateless: b.stateless, Standbys: cfg.Standby != StandbyNone,
	})
	if err != nil {
		return err
	}
	b.id, b.maxLen, b.notify, b.session = id, maxLen, n, s
	b.log = cfg.Logger.With("session", fmt.Sprintf("%x", id[:4]))
	b.standby, b.verify = newStandbys(b), newVerifier(b)
	if !b.m.enter(b) {
		b.session = nil
		return badRequest("session %s is in use by another request of this head", SessionHex(id))
	}
	b.look()
	err = b.drive(ctx, route.Begin{})
	if trace := b.trace.String(); trace != "" {
		b.log.Info("not the first route", "trace", trace)
	}
	if err != nil {
		return fmt.Errorf("find a route: %w", err)
	}
	return nil
}

// Forward implements Backend.
func (b *MeshBackend) Forward(ctx context.Context, ids []int32, past, want int) ([]float32, error) {
	if b.session == nil || b.closed {
		return nil, errors.New("forward: the session was not begun or is closed")
	}
	if len(ids) > b.maxLen {
		return nil, fmt.Errorf("forward: %d tokens, the session was begun for %d", len(ids), b.maxLen)
	}
	if most := (wire.MaxFrame - wire.MaxHeader) / (4 * b.m.cfg.Hidden); b.stateless && len(ids) > most {
		return nil, fmt.Errorf("forward: %d tokens in one stateless step, a frame holds %d", len(ids), most)
	}
	select {
	case <-b.changed:
		b.look()
	default:
	}
	if b.circuit != nil {
		for _, p := range b.circuit.Leaving() {
			b.step(route.Leaving{Peer: p})
		}
	}
	if err := b.verify.begun(past); err != nil {
		return nil, err
	}
	b.standby.begun(past)
	b.ids, b.rows = ids, nil
	b.trace.begin()
	err := b.drive(ctx, route.Forward{Tokens: len(ids), Past: past, Want: want})
	b.report()
	if err != nil {
		return nil, fmt.Errorf("forward token %d: %w", len(ids)-1, err)
	}
	b.standby.answered(ids)
	b.verify.answered(ids, b.rows)
	return b.rows, nil
}

// enter makes a session a live one, unless another that lives has its id: hops would
// take them for one and the same, and each would end the other's epochs.
func (m *Mesh) enter(b *MeshBackend) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other := range m.live {
		if other.id == b.id {
			return false
		}
	}
	m.live[b] = struct{}{}
	return true
}

// step gives the session an event.
func (b *MeshBackend) step(ev route.Event) []route.Action {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	return b.session.Step(time.Since(b.m.start), ev)
}

// look gives the session a fresh view of the mesh. The channel is taken first, so
// no change is missed.
func (b *MeshBackend) look() []route.Action {
	d := b.m.cfg.Directory
	b.changed = d.Changed()
	return b.step(route.View{Offers: d.View(b.m.cfg.Model), Links: d.Links()})
}

// drive gives the session an event, does what it answers, and so on until it says
// Return or Fail.
func (b *MeshBackend) drive(ctx context.Context, ev route.Event) error {
	queue := b.step(ev)
	for len(queue) > 0 {
		a := queue[0]
		queue = queue[1:]
		b.trace.add(time.Since(b.m.start), a)
		var next route.Event
		var err error
		switch a := a.(type) {
		case route.Say:
			b.say(a)
		case route.Return:
			return nil
		case route.Fail:
			return a.Err
		case route.Open:
			next, err = b.open(ctx, a)
		case route.Send:
			next, err = b.send(ctx, a)
		case route.Refill:
			next, err = b.refill(ctx, a)
		case route.Wait:
			if err = b.wait(ctx, a.Until); err == nil {
				queue = append(queue, b.look()...)
			}
		}
		if err != nil {
			return err
		}
		if next != nil {
			b.trace.add(time.Since(b.m.start), next)
			if _, failed := next.(route.Failed); failed {
				b.look()
			}
			queue = append(queue, b.step(next)...)
		}
	}
	return errors.New("the session has nothing to do") // our own bug: every event asked for ends in an action
}

var notes = map[route.SayKind]NoteKind{
	route.SayRoute: NoteRoute, route.SayWaiting: NoteWaiting, route.SayReroute: NoteReroute,
	route.SayReprefill: NoteReprefill, route.SayRecovered: NoteRecovered,
}

func (b *MeshBackend) say(s route.Say) {
	b.log.Info(s.Text)
	if b.notify != nil {
		b.notify(Note{Kind: notes[s.Kind], Text: s.Text})
	}
}

func (b *MeshBackend) open(ctx context.Context, a route.Open) (route.Event, error) {
	cfg := b.m.cfg
	r := route.Route{Hops: append([]route.Hop(nil), a.Route.Hops...)}
	for i := range r.Hops {
		b.m.address(&r.Hops[i])
	}
	c, err := cfg.Client.Open(ctx, a.Within, hop.OpenRequest{
		Session: b.id, Epoch: a.Epoch, Route: r, Model: cfg.Model, Hidden: cfg.Hidden, MaxLen: b.maxLen, DType: cfg.DType, Cache: cfg.Cache, Signs: a.Signs,
	})
	if err != nil {
		return b.failed(ctx, a.Epoch, err)
	}
	if old := b.circuit; old != nil {
		b.closing.Go(old.Close)
	}
	b.circuit = c
	b.standby.stood(c, a.Route.Hops, a.Epoch)
	b.verify.stood(c, a.Route.Hops, a.Epoch)
	return route.Opened{Epoch: a.Epoch, Held: c.Held(), Linked: c.Linked()}, nil
}

func (b *MeshBackend) send(ctx context.Context, a route.Send) (route.Event, error) {
	x, err := b.embed(a.Past, a.Rows)
	if err != nil {
		return nil, err
	}
	rows, err := b.circuit.Step(ctx, hop.Step{
		Seq: a.Seq, Mode: a.Mode, Past: a.Past, Rows: a.Rows, Chunk: a.Chunk, X: x, Want: a.Want, Deadline: a.Deadline,
	})
	if err != nil {
		return b.failed(ctx, a.Epoch, err)
	}
	b.rows = rows
	// Per-token figures count from the last prefill, which is no decode step.
	if a.Mode == wire.Prefill || b.marked != b.circuit {
		b.marked, b.decodes = b.circuit, 0
		b.circuit.Mark()
		b.inAtMark = b.circuit.BytesIn()
	} else {
		b.decodes++
	}
	return route.Done{Epoch: a.Epoch}, nil
}

// embed gives the embeddings of the tokens [past, past+rows), until the next call.
func (b *MeshBackend) embed(past, rows int) ([]float32, error) {
	n := rows * b.m.cfg.Hidden
	if cap(b.x) < n {
		b.x = make([]float32, n)
	}
	return b.x[:n], b.m.cfg.Embed.Embed(b.ids[past:past+rows], b.x[:n])
}

// refill has one hop compute what it lacks. The first gets embeddings; the tokens
// are what the head keeps of what it sends.
func (b *MeshBackend) refill(ctx context.Context, a route.Refill) (route.Event, error) {
	var x []float32
	if a.Hop == 0 {
		var err error
		if x, err = b.embed(a.Past, a.Rows); err != nil {
			return nil, err
		}
	}
	b.marked = nil // these rows are no decode steps
	_, err := b.circuit.Step(ctx, hop.Step{
		Seq: a.Seq, Mode: wire.Refill, Hop: a.Hop, Past: a.Past, Rows: a.Rows, Chunk: a.Chunk, X: x, Deadline: a.Deadline,
	})
	if err != nil {
		return b.failed(ctx, a.Epoch, err)
	}
	return route.Done{Epoch: a.Epoch}, nil
}

// failed turns a hop's failure into an event; anything else ends the request.
func (b *MeshBackend) failed(ctx context.Context, epoch uint32, err error) (route.Event, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var e *hop.Error
	if !errors.As(err, &e) {
		return nil, err
	}
	b.log.Info("hop failed", "epoch", epoch, "hop", e.Hop, "peer", e.Peer.Short(), "code", e.Code.String(), "err", e)
	f := route.Failure{Hop: e.Hop, Peer: e.Peer, Code: e.Code, Silent: e.Silent, Held: e.Held, Retry: e.Retry, Next: e.Next, Text: e.Text}
	return route.Failed{Epoch: epoch, Failure: f}, nil
}

// wait returns when the mesh changed or a time has come.
func (b *MeshBackend) wait(ctx context.Context, until time.Duration) error {
	t := time.NewTimer(until - time.Since(b.m.start))
	defer t.Stop()
	select {
	case <-b.changed:
	case <-t.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// report logs the recoveries that are over since the last call and remembers them.
func (b *MeshBackend) report() {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	trace := b.trace.String()
	for _, r := range b.session.Recoveries()[len(b.mended):] {
		rec := Recovery{
			Session: b.id, Cause: r.Cause, Hop: r.Hop, Peer: string(r.Peer), At: b.m.start.Add(r.At),
			Ms: ms(r.Took), RowsReplayed: r.Rows, ReplayMs: ms(b.trace.replay()), Trace: trace,
		}
		b.mended = append(b.mended, rec)
		b.log.Info(rec.Cause+" -> re-prefill", "hop", rec.Hop, "peer", r.Peer.Short(), "ms", rec.Ms, "rows", rec.RowsReplayed, "trace", trace)
		b.m.tally.add(rec)
		if len(b.m.recent) == keptRecoveries {
			b.m.recent = b.m.recent[1:]
		}
		b.m.recent = append(b.m.recent, rec)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Settle implements Backend.
func (b *MeshBackend) Settle(ctx context.Context) error { return b.verify.settle(ctx) }

// Stats implements Backend.
func (b *MeshBackend) Stats() BackendStats {
	if b.session == nil || b.closed {
		return b.stats
	}
	var counters []hop.Counters
	var in uint64
	if b.circuit != nil {
		in = b.circuit.BytesIn() - b.inAtMark
		counters = b.circuit.Counters(context.Background())
	}
	standbys, verified := b.standby.stats(), b.verify.stats()
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	st := BackendStats{Session: b.id, Standbys: standbys, Verified: verified}
	st.Hits, st.Misses = b.session.Counts()
	st.Recoveries = slices.Clone(b.mended)
	for i, h := range b.session.Route().Hops {
		hs := HopStat{Peer: string(h.Peer.ID), Start: h.Start, End: h.End, Star: h.Star}
		if i < len(counters) && counters[i].Frames > 0 {
			n := float64(counters[i].Frames)
			hs.MsPerToken = float64(counters[i].Micros) / n / 1000
			hs.BytesPerToken = float64(counters[i].BytesIn) / n
			st.BytesPerToken += hs.BytesPerToken
		}
		st.Route = append(st.Route, hs)
	}
	if b.decodes > 0 {
		st.BytesPerToken += float64(in) / float64(b.decodes)
	}
	b.stats = st
	return st
}

// Close implements Backend.
func (b *MeshBackend) Close() {
	if b.closed {
		return
	}
	b.closed = true
	b.standby.close()
	b.verify.close()
	if b.circuit != nil {
		b.circuit.Close()
	}
	b.closing.Wait()
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	delete(b.m.live, b) // and not before the hops were told: the id is free again
}
