package route

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// Limits of a session; see docs/architecture.md.
const (
	// Circuits that stood and broke, without a step answered in between: a step that
	// breaks whoever computes it must not take down the whole mesh. One that met
	// with several accidents in half a minute did nothing wrong, so that of a range
	// one is forgiven after each forgiveAfter.
	maxReroutes     = 16
	maxSpanReroutes = 3
	forgiveAfter    = 8 * time.Second
	maxMisses       = 3 // cache misses in a row within one step
	// routeWait and the 3 s that noticing takes are the 30 s within which a request
	// without a route ends in an error.
	routeWait = 27 * time.Second
	openMost  = 5 * time.Second
	signLeast = 500 * time.Millisecond // for a sign of life while another could take over
	slowDoubt = 30 * time.Second       // of who gave none

	retryFirst = 250 * time.Millisecond // asking the only holder of a layer again
	retryMost  = 4 * time.Second

	decodeLeast  = 2 * time.Second
	decodeMost   = 15 * time.Second
	prefillLeast = 5 * time.Second
	prefillMost  = 120 * time.Second
	// Who is late for ever must not hold a request for half an hour: a step ends when
	// so much time went into deadlines that were missed, or when one peer misses so many;
	// it is asked a third time only where the others were late as well.
	lateMost     = 5 * time.Minute
	maxLatePeer  = 3
	mostPatience = 4  // doublings of a deadline
	keptTimes    = 64 // decode steps whose times are remembered
)

// Config of a Session. All fields but the last three are required.
type Config struct {
	Layers    int
	Model     wire.Fingerprint
	Head      p2p.PeerID
	Bans      *Bans          // shared with the head's other sessions
	ChunkRows int            // rows in a frame of a prefill
	Cache     wire.CacheType // 0: wire.DefaultCacheType
	Stateless bool           // every step sends all rows and leaves nothing behind
	Standbys  bool           // others are filled while a hop serves, at least where it leaves; see Warm
}

// Session is one chat request's life on the mesh: which route, from which
// token, what after a failure. At most one Open, Send, Refill or Wait is outstanding.
//
// Invariant: a Send's Past is never more than what every hop of its route has
// reported or was seen to hold, or was refilled with, and an epoch is never used for
// two routes.
type Session struct {
	cfg   Config
	phase phase
	err   error

	view    View
	down    map[[2]p2p.PeerID]bool // links found down by this session
	leaving map[p2p.PeerID]bool
	left    map[p2p.PeerID]time.Duration // since when
	warm    map[p2p.PeerID]warmth        // who is or was a standby, and was no hop since
	stay    bool                         // a leaving hop can't be replaced with the present view

	epoch    uint32
	route    Route
	stood    Route // the last that was opened
	held     []int // tokens that each hop of it holds
	answered int   // tokens whose step was answered, in any epoch
	seq      uint32
	last     Send
	step     *Forward
	stepAt   time.Duration
	misses   int  // within the step
	filling  bool // a Refill is outstanding
	fill     int  // its hop
	plain    bool // within the step: what is lacking goes through the whole route

	lost       bool // looking for a route since lostAt
	lostAt     time.Duration
	said       map[string]bool // since lostAt: once is enough
	reroutes   int
	spans      map[[2]int]spent
	late       map[p2p.PeerID]int // deadlines missed within the step
	tries      map[p2p.PeerID]try // failures since a step was answered
	patience   int                // deadlines missed within the step: each doubles the next
	wasted     time.Duration      // that they took
	sentAt     time.Duration      // when the present Send or Refill began
	recovering []int              // indices in Recoveries of disturbances not yet over
	times      []time.Duration

	hits, missed int
	recoveries   []Recovery
}

type phase uint8

const (
	idle    phase = iota // nothing asked, no route
	opening              // Open is outstanding
	ready                // a route, nothing outstanding
	sending              // Send or Refill is outstanding
	waiting              // Wait is outstanding
	failed               // for good
)

// NewSession returns a session without a route.
func NewSession(cfg Config) (*Session, error) {
	if cfg.Layers <= 0 || cfg.ChunkRows <= 0 || cfg.Bans == nil {
		return nil, fmt.Errorf("new session: layers %d, rows a chunk %d and a list of bans are needed", cfg.Layers, cfg.ChunkRows)
	}
	return &Session{cfg: cfg, down: map[[2]p2p.PeerID]bool{}, leaving: map[p2p.PeerID]bool{}, left: map[p2p.PeerID]time.Duration{}, warm: map[p2p.PeerID]warmth{}, late: map[p2p.PeerID]int{}, tries: map[p2p.PeerID]try{}, spans: map[[2]int]spent{}}, nil
}

// Route is the route of the present epoch.
func (s *Session) Route() Route { return s.route }

// Epoch is the present epoch; 0 before the first route.
func (s *Session) Epoch() uint32 { return s.epoch }

// Recoveries are the disturbances that are over.
func (s *Session) Recoveries() []Recovery {
	var out []Recovery
	for i, r := range s.recoveries {
		if !slices.Contains(s.recovering, i) {
			out = append(out, r)
		}
	}
	return out
}

// Counts are the steps that found their past in every cache, and the misses.
func (s *Session) Counts() (hits, misses int) { return s.hits, s.missed }

// Step takes an event at a time (since any fixed moment, never falling) and
// returns what to do about it. Events of an epoch that is over do nothing.
func (s *Session) Step(at time.Duration, ev Event) []Action {
	if s.phase == failed {
		switch ev.(type) {
		case Begin, Forward:
			return []Action{Fail{s.err}}
		}
		return nil
	}
	switch ev := ev.(type) {
	case View:
		s.view, s.stay = ev, false
		for _, o := range ev.Offers {
			s.cfg.Bans.Back(p2p.PeerID(o.Peer), o.Seq, at)
		}
		if s.phase == waiting {
			return s.plan(at)
		}
	case Tick:
		if s.phase == waiting {
			return s.plan(at)
		}
	case Begin:
		return s.begin(at)
	case Forward:
		return s.forward(at, ev)
	case Opened:
		if s.phase == opening && ev.Epoch == s.epoch {
			return s.opened(at, ev)
		}
	case Done:
		if s.phase == sending && ev.Epoch == s.epoch {
			return s.done(at)
		}
	case Failed:
		if (s.phase == sending || s.phase == opening) && ev.Epoch == s.epoch {
			return s.failure(at, ev.Failure)
		}
	case Leaving:
		if s.route.Index(ev.Peer) >= 0 {
			if !s.leaving[ev.Peer] {
				s.left[ev.Peer] = at
			}
			s.leaving[ev.Peer], s.stay = true, false
		}
	case Warm:
		s.warmed(ev)
	}
	return nil
}

func (s *Session) begin(at time.Duration) []Action {
	if s.phase != idle {
		return s.fail(errors.New("session begun twice"))
	}
	s.lose(at)
	return s.plan(at)
}

func (s *Session) forward(at time.Duration, f Forward) []Action {
	switch {
	case s.phase != ready:
		return s.fail(errors.New("a step before the last one ended"))
	case f.Past < 0 || f.Past > s.answered || f.Tokens <= f.Past || f.Want < 0 || f.Want > f.Tokens-f.Past:
		return s.fail(fmt.Errorf("a step of %d tokens, %d of them past (%d were answered), %d wanted", f.Tokens, f.Past, s.answered, f.Want))
	}
	s.step, s.stepAt, s.misses, s.plain, s.last = &f, at, 0, false, Send{}
	// What lies beyond Past belongs to tokens that the caller took back.
	s.trust(f.Past)
	if f.Past < s.answered {
		s.takenBack()
	}
	if acts, moved := s.dropLiar(at); moved {
		return acts
	}
	if acts, moved := s.moveAway(at); moved {
		return acts
	}
	return s.send(at)
}

// moveAway replaces a leaving hop between two steps, if the mesh can.
func (s *Session) moveAway(at time.Duration) ([]Action, bool) {
	i := slices.IndexFunc(s.route.Hops, func(h Hop) bool { return s.leaving[h.Peer.ID] })
	if i < 0 || s.stay || !s.ripe(at) {
		return nil, false
	}
	r, err := s.best(s.query(at, nil))
	if err != nil {
		s.stay = true // until the view changes; the hop serves on
		return nil, false
	}
	leaver := s.route.Hops[i].Peer.ID
	s.disturbed(at, Failure{Hop: i, Peer: leaver}, "leaving")
	s.lose(at)
	return append([]Action{Say{SayReroute, leaver.Short() + " is leaving, moving its layers"}}, s.open(at, r)), true
}

func (s *Session) send(at time.Duration) []Action {
	from, mode := slices.Min(s.held), wire.Prefill
	if i := s.lacking(); i >= 0 {
		return s.refill(i, at)
	}
	if s.cfg.Stateless {
		from, mode = 0, wire.Stateless
	}
	rows := s.step.Tokens - from
	if rows == 1 && from > 0 && !s.cfg.Stateless {
		mode = wire.Decode
	}
	a := Send{Epoch: s.epoch, Mode: mode, Past: from, Rows: rows, Want: s.step.Want, Chunk: s.cfg.ChunkRows}
	if s.cfg.Stateless {
		a.Chunk = rows
	}
	frames := uint32((rows + a.Chunk - 1) / a.Chunk)
	a.Deadline = s.deadline(a)
	// The same single frame again after a re-route keeps its Seq: a hop that applied
	// it answers from memory, since some states can't be taken back by a row.
	if same := s.last; frames == 1 && same.Seq != 0 && same.Mode == mode && same.Past == from && same.Rows == rows && same.Want == a.Want {
		a.Seq = same.Seq
	} else {
		a.Seq = s.seq + 1
		s.seq += frames
	}
	s.last, s.phase, s.sentAt = a, sending, at
	var acts []Action
	if again := s.step.Past - from; again > 0 && !s.cfg.Stateless {
		s.computed(again)
		acts = append(acts, Say{SayReprefill, fmt.Sprintf("computing %d tokens again", again)})
	}
	return append(acts, a)
}

// lacking is the first hop that alone, or with some others, lacks tokens of the
// past; -1 if none does, or all do: then they are computed by all at once.
func (s *Session) lacking() int {
	if s.plain || s.cfg.Stateless {
		return -1
	}
	if slices.Max(s.held) < s.step.Past {
		return -1
	}
	return slices.IndexFunc(s.held, func(n int) bool { return n < s.step.Past })
}

// refill gives a hop what it lacks. The step keeps its Seq: for the other hops
// nothing has happened in between.
func (s *Session) refill(i int, at time.Duration) []Action {
	a := Refill{Epoch: s.epoch, Seq: s.seq + 1, Hop: i, Past: s.held[i], Rows: s.step.Past - s.held[i], Chunk: s.cfg.ChunkRows}
	s.seq += uint32((a.Rows + a.Chunk - 1) / a.Chunk)
	a.Deadline = s.deadline(Send{Mode: wire.Refill, Rows: a.Rows, Chunk: a.Chunk})
	s.filling, s.fill, s.phase, s.sentAt = true, i, sending, at
	s.computed(a.Rows)
	return []Action{Say{SayReprefill, fmt.Sprintf("%s computes %d tokens again", s.route.Hops[i].Peer.ID.Short(), a.Rows)}, a}
}

// computed counts rows to the present recovery.
func (s *Session) computed(rows int) {
	if n := len(s.recoveries); n > 0 && len(s.recovering) > 0 {
		s.recoveries[n-1].Rows += rows
	}
}

// trust takes back what hops hold beyond a number of tokens.
func (s *Session) trust(n int) {
	for i := range s.held {
		s.held[i] = min(s.held[i], n)
	}
}

func (s *Session) opened(at time.Duration, ev Opened) []Action {
	if len(ev.Held) != len(s.route.Hops) || len(ev.Linked) != len(s.route.Hops) {
		return s.fail(fmt.Errorf("%d hops answered of %d", len(ev.Held), len(s.route.Hops)))
	}
	// Rows beyond Past may belong to tokens that were taken back, or to a step
	// that some hop did not finish.
	trust := s.answered
	if s.step != nil {
		trust = s.step.Past
	}
	s.held = slices.Clone(ev.Held)
	s.trust(trust)
	s.distrustStale()
	s.route.Hops = slices.Clone(s.route.Hops) // others may be reading the one that was told
	for i := range ev.Held {
		if i+1 < len(s.route.Hops) && !ev.Linked[i] && !s.route.Hops[i].Star {
			s.route.Hops[i].Star = true
			s.sever(s.route.Hops[i].Peer.ID, s.route.Hops[i+1].Peer.ID, at)
		}
	}
	s.lost, s.stood = false, s.route
	acts := []Action{Say{SayRoute, s.route.String()}}
	if s.step != nil {
		return append(acts, s.send(at)...)
	}
	s.phase = ready
	return append(acts, Return{})
}

func (s *Session) done(at time.Duration) []Action {
	s.phase = ready
	if s.filling {
		s.filling, s.held[s.fill] = false, s.step.Past
		return s.send(at)
	}
	if s.last.Mode == wire.Decode && len(s.recovering) == 0 {
		if len(s.times) == keptTimes {
			s.times = s.times[1:]
		}
		s.times = append(s.times, at-s.stepAt)
	}
	for _, h := range s.route.Hops {
		s.cfg.Bans.Forgive(h.Peer.ID)
		delete(s.warm, h.Peer.ID)
	}
	s.reroutes, s.patience, s.wasted = 0, 0, 0
	clear(s.spans)
	clear(s.late)
	clear(s.tries)
	if s.step.Past > 0 && s.misses == 0 && !s.cfg.Stateless {
		s.hits++
	}
	for i := range s.held {
		s.held[i] = s.step.Tokens
	}
	s.answered, s.step = s.step.Tokens, nil
	if len(s.recovering) == 0 {
		return []Action{Return{}}
	}
	first, rows := at, 0
	for _, i := range s.recovering {
		r := &s.recoveries[i]
		r.Took = at - r.At
		first, rows = min(first, r.At), rows+r.Rows
	}
	s.recovering = nil
	return []Action{Say{SayRecovered, fmt.Sprintf("recovered in %v, %d tokens computed again", (at - first).Round(time.Millisecond), rows)}, Return{}}
}

// disturbed starts the record of a recovery.
func (s *Session) disturbed(at time.Duration, f Failure, cause string) {
	s.recovering = append(s.recovering, len(s.recoveries))
	s.recoveries = append(s.recoveries, Recovery{Cause: cause, Hop: f.Hop, Peer: f.Peer, At: at})
}

func (s *Session) fail(err error) []Action {
	s.phase, s.err = failed, err
	return []Action{Fail{err}}
}

// deadline is how long to wait for the answer to a frame. It is guessed from idle
// peers; where all are busy, waiting as long again would only add to their work.
func (s *Session) deadline(a Send) time.Duration {
	if a.Mode == wire.Decode {
		d := max(4*s.p95(), decodeLeast)
		return min(d<<min(s.patience, mostPatience), decodeMost)
	}
	var micros float64
	for _, h := range s.route.Hops {
		micros += float64(min(a.Rows, a.Chunk)) * s.rowMicros(h)
	}
	return min((prefillLeast+4*time.Duration(micros)*time.Microsecond)<<min(s.patience, mostPatience), prefillMost)
}

// rowMicros estimates a row of a prefill through a hop from its offer.
func (s *Session) rowMicros(h Hop) float64 {
	n := float64(h.End - h.Start)
	for _, o := range s.view.Offers {
		if o.Peer != string(h.Peer.ID) || o.End <= o.Start {
			continue
		}
		if m := max(o.PrefillMicros, 1); o.PrefillMicros > 0 {
			return n * float64(m) / float64(o.End-o.Start)
		}
		if o.DecodeMicros > 0 {
			return n * float64(o.DecodeMicros) / float64(o.End-o.Start)
		}
	}
	return n * layerMicros
}

func (s *Session) p95() time.Duration {
	if len(s.times) == 0 {
		return 0
	}
	t := slices.Sorted(slices.Values(s.times))
	return t[(len(t)*95-1)/100]
}
