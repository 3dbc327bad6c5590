package head

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"sync"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/route/hop"
)

// Verify says how a head checks what its hops compute; the zero value checks nothing.
// All machines compute the same bits, so another holder of a hop's layers that is given
// the rows that the hop was given must come to the rows that it sent.
type Verify struct {
	// Percent is how many of a hundred spans are checked; a span is a hop and
	// VerifyRows rows, or the prompt. A check covers all rows up to there.
	Percent float64
	// Signed says whether sig is a peer's signature of msg. Required.
	Signed hop.Verifier
	// Compute applies the layers [start, end) to x, rows x hidden in place, on this
	// machine: it decides between a hop and the peer that contradicts it. If nil, or
	// where it fails, both are left out for a while.
	Compute func(ctx context.Context, start, end int, t wire.CacheType, x []float32) error
	// Draw is a random number of [0, 1) that no peer can foresee; nil: of the system.
	Draw func() float64
}

const (
	// VerifyRows are the rows of a span.
	VerifyRows = 32
	// maxChecks bounds the checks that wait; a span that finds no place is not checked.
	maxChecks = 8
	// verifyBytes bounds the rows of a check: longer sessions are checked no further.
	verifyBytes = 64 << 20
	// verifyMost bounds a check, and settleMost how long the end of an answer waits for
	// those under way.
	verifyMost = time.Minute
	settleMost = 10 * time.Second
	// maxCheckers are the peers of which one is chosen.
	maxCheckers = 8
	// keptFindings are remembered for status.
	keptFindings = 64
)

// Finding is a check that came to other rows than a hop.
type Finding struct {
	Session    wire.SessionID
	Peers      []string // who is left out; several if it can't be told which of them is wrong
	Sure       bool     // it is for certain
	Start, End int      // layers that were checked
	Rows       int      // up to which
	At         time.Time
	Text       string // who and what, a sentence without a full stop
}

// VerifyStat counts checks.
type VerifyStat struct {
	Agreed   int // both came to the same bits
	Differed int // they did not
	Skipped  int // nobody to ask, or somebody did not answer
}

// DistrustError says between two steps that some rows may be wrong: the caller goes
// back to From, whose rows and those before it are believed, and takes back what it made
// of later ones. Forward and Settle return it.
type DistrustError struct {
	From int
	Finding
}

func (e *DistrustError) Error() string { return e.Text }

// verifier checks hops of one session, one check at a time, in the background.
//
// Lock order: mu, then Mesh.mu.
type verifier struct {
	b      *MeshBackend
	cfg    Verify
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	circuit *hop.Circuit
	hops    []route.Hop // of circuit
	epoch   uint32
	moved   bool                // some hop was replaced in this session
	ids     []int32             // tokens that all hops have applied
	cuts    int                 // how often some were taken back
	got     map[int]wire.Digest // of the rows that came back, by position
	drawn   int                 // rows for whose spans lots were drawn
	queue   []span
	busy    bool
	idle    chan struct{}   // closed when nothing waits or is under way
	good    map[checked]int // rows that were checked
	found   *DistrustError  // not told yet
	told    bool            // of a hop of the present circuit
	stat    VerifyStat
}

// span is what a check is about: a hop, and the rows [0, rows).
type span struct {
	hop, rows int
	// Of the moment when the check began, to see that nothing has changed since:
	epoch uint32
	cuts  int
}

type checked struct {
	peer       p2p.PeerID
	start, end int
}

// newVerifier is nil where nothing is checked; all methods then do nothing.
func newVerifier(b *MeshBackend) *verifier {
	if b.stateless || b.m.cfg.Verify.Percent <= 0 {
		return nil
	}
	v := &verifier{b: b, cfg: b.m.cfg.Verify, got: map[int]wire.Digest{}, good: map[checked]int{}, idle: make(chan struct{})}
	close(v.idle)
	v.ctx, v.cancel = context.WithCancel(context.Background())
	return v
}

// stood tells of a new circuit.
func (v *verifier) stood(c *hop.Circuit, hops []route.Hop, epoch uint32) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.moved = v.moved || v.circuit != nil
	v.circuit, v.hops, v.epoch, v.queue, v.told = c, hops, epoch, nil, false
}

// begun tells before a step that only the first past tokens count from now on, and
// gives what was found since the last time.
func (v *verifier) begun(past int) error {
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.tell(); err != nil {
		return err
	}
	if past < len(v.ids) {
		v.cuts++
		v.ids = slices.Clone(v.ids[:past]) // the old ones may be being read
		v.drawn, v.queue = min(v.drawn, past), nil
		maps.DeleteFunc(v.got, func(at int, _ wire.Digest) bool { return at >= past })
		for who, rows := range v.good {
			v.good[who] = min(rows, past)
		}
	}
	return nil
}

// tell gives a finding of this session once, or that a hop was found wrong by another
// session of the head. The lock is held.
func (v *verifier) tell() error {
	if e := v.found; e != nil {
		v.found, v.told = nil, len(e.Peers) > 0
		return e
	}
	if v.told {
		return nil
	}
	m := v.b.m
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range v.hops {
		if len(v.ids) > 0 && v.good[who(h)] < len(v.ids) && m.bans.Liar(h.Peer.ID, time.Since(m.start)) {
			from := v.good[who(h)]
			v.told = true
			return &DistrustError{From: from, Finding: Finding{
				Session: v.b.id, Peers: []string{string(h.Peer.ID)}, Start: h.Start, End: h.End, Rows: len(v.ids), At: time.Now(),
				Text: fmt.Sprintf("%s was found to compute wrong rows in another session: its layers [%d, %d) are computed again", h.Peer.ID.Short(), h.Start, h.End),
			}}
		}
	}
	return nil
}

func who(h route.Hop) checked { return checked{h.Peer.ID, h.Start, h.End} }

// answered tells after a step that all hops have applied these tokens, and the last
// rows, which came back. Lots are drawn for the spans that are full.
func (v *verifier) answered(ids []int32, rows []float32) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	first := len(v.ids) == 0
	v.ids = append(v.ids, ids[min(len(v.ids), len(ids)):]...)
	hidden := v.b.m.cfg.Hidden
	for at := len(ids) - len(rows)/hidden; len(rows) > 0; at++ {
		v.got[at] = rowDigest(rows[:hidden])
		rows = rows[hidden:]
	}
	if first || len(v.ids)-v.drawn >= VerifyRows {
		v.draw()
	}
}

func rowDigest(x []float32) wire.Digest { return sha256.Sum256(wire.Bytes(x)) }

// draw draws lots for every hop up to the present row. The lock is held.
func (v *verifier) draw() {
	v.drawn = len(v.ids)
	if 4*len(v.ids)*v.b.m.cfg.Hidden > verifyBytes {
		return
	}
	draw := v.cfg.Draw
	if draw == nil {
		draw = systemDraw
	}
	for i := range v.hops {
		if draw() >= v.cfg.Percent/100 {
			continue
		}
		// A later check of a hop covers an earlier one.
		v.queue = slices.DeleteFunc(v.queue, func(s span) bool { return s.hop == i })
		if len(v.queue) < maxChecks {
			v.queue = append(v.queue, span{hop: i, rows: len(v.ids)})
		}
	}
	if len(v.queue) > 0 && !v.busy && v.ctx.Err() == nil {
		v.busy, v.idle = true, make(chan struct{})
		v.wg.Go(v.work)
	}
}

// systemDraw is uniform over 2^53 numbers.
func systemDraw() float64 {
	n, err := rand.Int(rand.Reader, big.NewInt(1<<53))
	if err != nil {
		return 0 // without randomness everything is checked
	}
	return float64(n.Int64()) / (1 << 53)
}

// work does what is in the queue.
func (v *verifier) work() {
	for {
		v.mu.Lock()
		if len(v.queue) == 0 || v.ctx.Err() != nil {
			v.busy = false
			close(v.idle)
			v.mu.Unlock()
			return
		}
		s := v.queue[0]
		v.queue = v.queue[1:]
		s.epoch, s.cuts = v.epoch, v.cuts
		c, hops, ids := v.circuit, v.hops, v.ids[:s.rows]
		v.mu.Unlock()
		if s.hop >= len(hops) {
			continue
		}
		ctx, cancel := context.WithTimeout(v.ctx, verifyMost)
		f, err := v.check(ctx, s, c, hops, ids)
		cancel()
		v.over(s, hops, f, err)
	}
}

// over notes what a check came to. One during which hops changed or tokens were taken
// back proves nothing.
func (v *verifier) over(s span, hops []route.Hop, f *Finding, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.b.m
	if s.epoch != v.epoch || s.cuts != v.cuts || v.found != nil {
		f, err = nil, errors.New("the session has changed meanwhile")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err != nil:
		v.stat.Skipped++
		m.verified.Skipped++
		v.b.log.Info("a check was not made", "hop", s.hop, "rows", s.rows, "err", err)
	case f == nil:
		v.stat.Agreed++
		m.verified.Agreed++
		v.good[who(hops[s.hop])] = s.rows
	default:
		v.stat.Differed++
		m.verified.Differed++
		if len(m.findings) == keptFindings {
			m.findings = m.findings[1:]
		}
		m.findings = append(m.findings, *f)
		v.b.log.Warn("rows differ", "hop", s.hop, "rows", s.rows, "peers", f.Peers, "sure", f.Sure, "what", f.Text)
		at, from, bad := time.Since(m.start), s.rows, len(f.Peers) == 0
		for _, id := range f.Peers {
			m.bans.Lied(p2p.PeerID(id), f.Sure, at)
			for _, h := range hops {
				if string(h.Peer.ID) == id {
					from, bad = min(from, v.good[who(h)]), true
				}
			}
		}
		if len(f.Peers) == 0 {
			from = 0
		}
		if bad { // else only who checked was wrong
			v.found = &DistrustError{From: from, Finding: *f}
			v.queue = nil
		}
	}
}

// check has rows of a hop computed by somebody else. No finding is agreement; an error
// says why nothing can be said.
func (v *verifier) check(ctx context.Context, s span, c *hop.Circuit, hops []route.Hop, ids []int32) (*Finding, error) {
	h, hidden := hops[s.hop], v.b.m.cfg.Hidden
	find := func(sure bool, text string, peers ...p2p.PeerID) (*Finding, error) {
		f := &Finding{Session: v.b.id, Sure: sure, Start: h.Start, End: h.End, Rows: s.rows, At: time.Now(), Text: text}
		for _, id := range peers {
			f.Peers = append(f.Peers, string(id))
		}
		return f, nil
	}
	layers := fmt.Sprintf("layers [%d, %d)", h.Start, h.End)

	// What the hop was given, and what it and its neighbours sign.
	x, err := v.given(ctx, c, s, ids)
	if err != nil {
		return nil, fmt.Errorf("the rows that it was given: %w", err)
	}
	signed, err := c.Attest(ctx, s.hop, s.rows, v.cfg.Signed)
	if err != nil {
		return nil, fmt.Errorf("attest: %w", err)
	}
	in, err := v.digest(x)
	if err != nil {
		return nil, err
	}
	if in != signed.In {
		if s.hop == 0 {
			return find(true, fmt.Sprintf("%s signed other rows than the embeddings that it was given (%s)", h.Peer.ID.Short(), layers), h.Peer.ID)
		}
		prev := hops[s.hop-1]
		before, err := c.Attest(ctx, s.hop-1, s.rows, v.cfg.Signed)
		if err != nil {
			return nil, fmt.Errorf("attest of the hop before: %w", err)
		}
		if before.Out != in {
			return find(true, fmt.Sprintf("%s keeps other rows than those that it signed", prev.Peer.ID.Short()), prev.Peer.ID)
		}
		return v.apart(find, prev, h)
	}

	// Somebody else computes the same.
	checker, err := v.checker(s.hop)
	if err != nil {
		return nil, err
	}
	theirs, same, err := v.compute(ctx, checker, s, x, in)
	if err != nil {
		return nil, fmt.Errorf("%s checks: %w", checker.Peer.ID.Short(), err)
	}
	if theirs.Out != signed.Out || !same {
		return v.decide(ctx, find, h, checker, s, x, signed.Out, theirs.Out)
	}
	if s.hop+1 < len(hops) {
		next := hops[s.hop+1]
		after, err := c.Attest(ctx, s.hop+1, s.rows, v.cfg.Signed)
		if err != nil {
			return nil, fmt.Errorf("attest of the hop after: %w", err)
		}
		if after.In != signed.Out {
			return v.apart(find, h, next)
		}
	}
	v.b.log.Info("rows were checked", "hop", s.hop, "peer", h.Peer.ID.Short(), "by", checker.Peer.ID.Short(), "rows", s.rows, "values", s.rows*hidden)
	return nil, nil
}

// find makes a Finding.
type find func(sure bool, text string, peers ...p2p.PeerID) (*Finding, error)

// apart is two neighbours who sign different rows for what one sent and the other got.
// Where hops were replaced since, the rows may be those of a hop that is gone.
func (v *verifier) apart(find find, a, b route.Hop) (*Finding, error) {
	v.mu.Lock()
	moved := v.moved
	v.mu.Unlock()
	if moved {
		return find(false, fmt.Sprintf("%s holds rows that %s did not send; a hop that left may have: all is computed again", b.Peer.ID.Short(), a.Peer.ID.Short()))
	}
	return find(false, fmt.Sprintf("%s signs that it sent other rows than %s signs that it got: one of them is wrong", a.Peer.ID.Short(), b.Peer.ID.Short()), a.Peer.ID, b.Peer.ID)
}

// decide tells who of a hop and its checker is right by computing it here.
func (v *verifier) decide(ctx context.Context, find find, h, checker route.Hop, s span, x []float32, signed, theirs wire.Digest) (*Finding, error) {
	a, b := h.Peer.ID.Short(), checker.Peer.ID.Short()
	layers := fmt.Sprintf("layers [%d, %d), rows [0, %d)", h.Start, h.End, s.rows)
	either := func(why string) (*Finding, error) {
		return find(false, fmt.Sprintf("%s and %s come to different rows in %s, %s", a, b, layers, why), h.Peer.ID, checker.Peer.ID)
	}
	if v.cfg.Compute == nil {
		return either("and this machine can't say who is wrong")
	}
	x = slices.Clone(x)
	if err := v.cfg.Compute(ctx, h.Start, h.End, v.b.m.cfg.Cache, x); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return either("and this machine can't say who is wrong: " + err.Error())
	}
	right, err := v.digest(x)
	if err != nil {
		return nil, err
	}
	sent := h.End < v.b.m.cfg.Layers || v.received(0, s.rows, x)
	hopOK, checkerOK := signed == right && sent, theirs == right
	switch {
	case !hopOK && !checkerOK:
		return find(true, fmt.Sprintf("%s and %s both compute wrong rows in %s", a, b, layers), h.Peer.ID, checker.Peer.ID)
	case !hopOK && signed == right:
		return find(true, fmt.Sprintf("%s sent other rows than it signed (%s)", a, layers), h.Peer.ID)
	case !hopOK:
		return find(true, fmt.Sprintf("%s computes wrong rows in %s, as %s and this machine find", a, layers, b), h.Peer.ID)
	case !checkerOK:
		return find(true, fmt.Sprintf("%s, which checked %s, computes wrong rows in %s", b, a, layers), checker.Peer.ID)
	}
	return nil, errors.New("the checker gave other rows than it signed") // and signed the right ones
}

// given are the rows that a hop was given: the embeddings, or what the hop before keeps.
func (v *verifier) given(ctx context.Context, c *hop.Circuit, s span, ids []int32) ([]float32, error) {
	hidden := v.b.m.cfg.Hidden
	if s.hop == 0 {
		x := make([]float32, s.rows*hidden)
		return x, v.b.m.cfg.Embed.Embed(ids, x)
	}
	x := make([]float32, 0, s.rows*hidden)
	for past := 0; past < s.rows; past += hop.BackRows(hidden) {
		more, err := c.Kept(ctx, s.hop-1, past, min(hop.BackRows(hidden), s.rows-past))
		if err != nil {
			return nil, err
		}
		x = append(x, more...)
	}
	return x, nil
}

// digest is the chain of all rows of x.
func (v *verifier) digest(x []float32) (wire.Digest, error) {
	var c hop.Chain
	if err := c.PutRows(0, x, v.b.m.cfg.Hidden, v.b.m.cfg.DType); err != nil {
		return wire.Digest{}, err
	}
	return c.At(c.Rows()), nil
}

// received says whether the rows that came back from the last hop, of the positions
// from past on, are those of x.
func (v *verifier) received(past, rows int, x []float32) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	hidden := v.b.m.cfg.Hidden
	for i := range rows {
		if d, ok := v.got[past+i]; ok && d != rowDigest(x[i*hidden:][:hidden]) {
			return false
		}
	}
	return true
}

// checker is another holder of a hop's layers, any of those that have room.
func (v *verifier) checker(i int) (route.Hop, error) {
	m := v.b.m
	m.mu.Lock()
	defer m.mu.Unlock()
	var can []route.Hop
	for len(can) < maxCheckers {
		h, ok := v.b.session.Standby(time.Since(m.start), i, func(id p2p.PeerID) bool {
			return slices.ContainsFunc(can, func(h route.Hop) bool { return h.Peer.ID == id })
		})
		if !ok {
			break
		}
		can = append(can, h)
	}
	if len(can) == 0 {
		return route.Hop{}, errors.New("nobody else holds its layers and has room")
	}
	return can[int(systemDraw()*float64(len(can)))], nil
}

// compute has a checker compute the rows of a hop from x, whose digest is in, in a session
// of another name, and sign what it came to. same: what came back from the last hop is what
// the checker comes to.
func (v *verifier) compute(ctx context.Context, checker route.Hop, s span, x []float32, in wire.Digest) (signed *wire.Attested, same bool, err error) {
	cfg := v.b.m.cfg
	v.b.m.address(&checker)
	var id wire.SessionID
	rand.Read(id[:])
	c, err := cfg.Client.Open(ctx, 0, hop.OpenRequest{
		Session: id, Epoch: 1, Route: route.Route{Hops: []route.Hop{checker}}, Model: cfg.Model, Hidden: cfg.Hidden,
		MaxLen: s.rows, DType: cfg.DType, Cache: cfg.Cache,
	})
	if err != nil {
		return nil, false, err
	}
	defer c.Close()
	same = true
	last := checker.End == cfg.Layers
	n := hop.BackRows(cfg.Hidden)
	for past, seq := 0, uint32(1); past < s.rows; past, seq = past+n, seq+1 {
		rows := min(n, s.rows-past)
		st := hop.Step{Seq: seq, Mode: wire.Refill, Past: past, Rows: rows, Chunk: rows, X: x[past*cfg.Hidden:][:rows*cfg.Hidden], Deadline: verifyMost}
		if last {
			st.Mode, st.Want = wire.Prefill, rows
		}
		y, err := c.Step(ctx, st)
		if err != nil {
			return nil, false, err
		}
		if last && !v.received(past, rows, y) {
			same = false
		}
	}
	signed, err = c.Attest(ctx, 0, s.rows, v.cfg.Signed)
	if err != nil {
		return nil, false, err
	}
	if in != signed.In {
		return nil, false, errors.New("it signed other rows than it was given")
	}
	return signed, same, nil
}

// settle draws lots for what is left at the end of an answer, waits for the checks,
// and gives what they found.
func (v *verifier) settle(ctx context.Context) error {
	if v == nil {
		return nil
	}
	v.mu.Lock()
	if len(v.ids) > v.drawn {
		v.draw()
	}
	idle := v.idle
	v.mu.Unlock()
	t := time.NewTimer(settleMost)
	defer t.Stop()
	select {
	case <-idle:
	case <-t.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.tell()
}

// close ends the checks and waits for them.
func (v *verifier) close() {
	if v == nil {
		return
	}
	v.cancel()
	v.wg.Wait()
}

func (v *verifier) stats() VerifyStat {
	if v == nil {
		return VerifyStat{}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stat
}

// Findings are the last of all sessions, the oldest first, and what all checks came to.
func (m *Mesh) Findings() ([]Finding, VerifyStat) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.findings), m.verified
}
