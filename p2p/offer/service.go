package offer

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

const (
	renewAfter              = Lifetime / 2    // our own offer is signed anew long before it expires
	sweepEvery              = 5 * time.Second // so much later than its expiry does a waiting reader hear of it
	askTimeout              = 3 * time.Second // one exchange
	serveTimeout            = 5 * time.Second // one exchange, answering
	askAtOnce               = 8               // exchanges in flight
	askPerRound             = 32              // peers asked in one refresh
	serveAtOnce             = 256             // exchanges that others may have with us
	serveEach               = 4               // one peer's of these
	maxAsks                 = 4096            // peers whose rate of asking is remembered
	askBurst, asksPerSecond = 20, 2           // of one peer to us
	maxWarned               = 256
	rttMemory               = 10 * time.Minute
	leaveTimeout            = 1500 * time.Millisecond
)

// Config is what a Service needs. Network, Signer, Verify, Streamer and Mux must be set.
type Config struct {
	Network  string
	Signer   Signer
	Verify   Verifier
	Streamer p2p.Streamer
	Mux      p2p.Mux
	// Peers are the peers that are connected now; nil: none.
	Peers func() []p2p.Peer
	// Model is the model that answers should name first; zero: any.
	Model wire.Fingerprint
	// Refresh is how often known peers are asked anew; 0: 20 s.
	Refresh time.Duration
	Logger  *slog.Logger
	Now     func() time.Time
}

// Service answers OfferProtocol with the local offer and those of others, asks
// others, and keeps both fresh while Run runs.
type Service struct {
	cfg   Config
	table *Table
	wake  chan struct{} // capacity 1: our own offer changed, tell the connected peers

	mu      sync.Mutex
	own     *wire.Offer
	signed  wire.SignedOffer
	serving int // exchanges that others have with us
	cursor  int // where the next answer starts among the offers of others
	rtts    map[p2p.PeerID]*samples
	forgot  time.Time // when full buckets were last dropped
	asks    map[p2p.PeerID]*bucket
	warned  map[p2p.PeerID]bool // peers about which a person was told
}

// samples are the last round trips to a peer. The least of them is the link's: what
// is above it is load.
type samples struct {
	last [4]time.Duration
	n    int
	at   time.Time
}

// New makes a service and registers its handler.
func New(cfg Config) (*Service, error) {
	if cfg.Network == "" || cfg.Signer == nil || cfg.Verify == nil || cfg.Streamer == nil || cfg.Mux == nil {
		return nil, errors.New("offer service: network, signer, verifier, streamer and mux must be set")
	}
	if cfg.Refresh <= 0 {
		cfg.Refresh = 20 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Peers == nil {
		cfg.Peers = func() []p2p.Peer { return nil }
	}
	s := &Service{
		cfg: cfg, table: NewTable(cfg.Network, cfg.Signer.Self(), cfg.Verify, cfg.Now),
		wake: make(chan struct{}, 1),
		rtts: map[p2p.PeerID]*samples{}, asks: map[p2p.PeerID]*bucket{}, warned: map[p2p.PeerID]bool{},
	}
	cfg.Mux.Handle(p2p.OfferProtocol, s.serve)
	return s, nil
}

// Table is what the service knows of others.
func (s *Service) Table() *Table { return s.table }

// SetOwn signs what the local peer serves, as its newest offer. Network, peer,
// sequence number and times are filled in. A change of range, model or state is
// pushed to the connected peers while Run runs.
func (s *Service) SetOwn(o wire.Offer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.own
	if err := s.sign(o); err != nil {
		return err
	}
	if was == nil || was.State != o.State || was.Start != o.Start || was.End != o.End || was.Model != o.Model {
		select {
		case s.wake <- struct{}{}:
		default: // a push is due already
		}
	}
	return nil
}

// sign makes o the own offer; s.mu is held.
func (s *Service) sign(o wire.Offer) error {
	now := s.cfg.Now().UnixMilli()
	o.Network, o.Peer = s.cfg.Network, string(s.cfg.Signer.Self())
	o.Issued, o.Expires = now, now+Lifetime.Milliseconds()
	o.Seq = uint64(now)
	if s.own != nil && o.Seq <= s.own.Seq {
		o.Seq = s.own.Seq + 1
	}
	payload, err := encode(&o)
	if err != nil {
		return fmt.Errorf("encoding our offer: %w", err)
	}
	sig, err := s.cfg.Signer.Sign(append([]byte(wire.OfferSignPrefix), payload...))
	if err != nil {
		return fmt.Errorf("signing our offer: %w", err)
	}
	s.own, s.signed = &o, wire.SignedOffer{Payload: payload, Signature: sig}
	return nil
}

// encode leaves out what doesn't fit: round trips first, then the last addresses.
func encode(o *wire.Offer) ([]byte, error) {
	o.RTT = o.RTT[:min(len(o.RTT), wire.MaxRTTs)]
	o.Addrs = o.Addrs[:min(len(o.Addrs), wire.MaxAddrs)]
	for {
		payload, err := wire.AppendOffer(nil, o)
		switch {
		case err == nil:
			return payload, nil
		case len(o.RTT) > 0:
			o.RTT = o.RTT[:len(o.RTT)-1]
		case len(o.Addrs) > 1:
			o.Addrs = o.Addrs[:len(o.Addrs)-1]
		default:
			return nil, err
		}
	}
}

// Own is the local offer, if there is one.
func (s *Service) Own() (wire.Offer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own == nil {
		return wire.Offer{}, false
	}
	return *s.own, true
}

// ownSigned is the local offer ready to send, signed anew when it grows old.
func (s *Service) ownSigned() []wire.SignedOffer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own == nil {
		return nil
	}
	if s.cfg.Now().Sub(time.UnixMilli(s.own.Issued)) >= renewAfter {
		if err := s.sign(*s.own); err != nil {
			s.cfg.Logger.Warn("can't renew our offer", "err", err)
		}
	}
	return []wire.SignedOffer{s.signed}
}

// Heard is the outcome of one exchange.
type Heard struct {
	Learned int           // offers that changed the view
	Refused int           // offers that were not believed
	Why     error         // the first of them, if any
	RTT     time.Duration // from our request to the answer's first frame
}

// Ask exchanges offers with one peer: it hears ours, we hear its own and those that
// it knows. It waits at most 3 s. Another network's peer is ErrNetwork.
func (s *Service) Ask(ctx context.Context, peer p2p.Peer) (Heard, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	st, err := s.cfg.Streamer.Open(ctx, peer, p2p.OfferProtocol)
	if err != nil {
		return Heard{}, fmt.Errorf("asking %s for offers: %w", peer.ID.Short(), err)
	}
	h, err := s.exchange(ctx, st)
	if err != nil {
		st.Reset()
		return h, fmt.Errorf("asking %s for offers: %w", peer.ID.Short(), err)
	}
	st.Close()
	return h, nil
}

func (s *Service) exchange(ctx context.Context, st p2p.Stream) (Heard, error) {
	stop := context.AfterFunc(ctx, func() { st.Reset() })
	defer stop()
	if deadline, ok := ctx.Deadline(); ok {
		st.SetDeadline(deadline)
	}
	start := s.cfg.Now()
	req := &wire.OfferRequest{Network: s.cfg.Network, Model: s.cfg.Model, Offers: s.ownSigned()}
	if _, err := wire.WriteFrame(st, req); err != nil {
		return Heard{}, err
	}
	if err := st.CloseWrite(); err != nil {
		return Heard{}, err
	}
	f, err := wire.NewReader(st, wire.MaxOfferFrame).ReadFrame()
	if err != nil {
		return Heard{}, err
	}
	h := Heard{RTT: s.cfg.Now().Sub(start)}
	answer, ok := f.(*wire.OfferAnswer)
	if !ok {
		return h, fmt.Errorf("answered with a frame of kind %d", f.Kind())
	}
	if answer.Network != s.cfg.Network {
		err := fmt.Errorf("%w: %q, ours is %q (start both with the same --network)", ErrNetwork, answer.Network, s.cfg.Network)
		s.warn(st.Remote(), "a peer belongs to another mesh", err)
		return h, err
	}
	s.measured(st.Remote(), h.RTT)
	s.learn(&h, answer.Offers, st)
	return h, nil
}

func (s *Service) measured(peer p2p.PeerID, rtt time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.rtts[peer]
	if m == nil {
		m = &samples{}
		s.rtts[peer] = m
	}
	m.last[m.n%len(m.last)] = rtt
	m.n++
	m.at = s.cfg.Now()
}

// RTT is the round trip to a peer that answered in the last ten minutes: the least of
// its last four.
func (s *Service) RTT(peer p2p.PeerID) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.rtts[peer]; m != nil {
		return m.least(), true
	}
	return 0, false
}

// RTTs are all that RTT knows.
func (s *Service) RTTs() map[p2p.PeerID]time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[p2p.PeerID]time.Duration, len(s.rtts))
	for peer, m := range s.rtts {
		out[peer] = m.least()
	}
	return out
}

func (m *samples) least() time.Duration { return slices.Min(m.last[:min(m.n, len(m.last))]) }

// sweepPeers forgets measurements that say nothing any more, and buckets that are full.
func (s *Service) sweepPeers() {
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for peer, m := range s.rtts {
		if now.Sub(m.at) > rttMemory {
			delete(s.rtts, peer)
		}
	}
	s.forgetAsks(now)
}

func (s *Service) learn(h *Heard, offers []wire.SignedOffer, st p2p.Stream) {
	from, origin := st.Remote(), p2p.Origin(st)
	for i, so := range offers {
		changed, err := s.table.AddFrom(so, from, origin)
		if i == 0 && (errors.Is(err, ErrFuture) || errors.Is(err, ErrExpired)) { // its own, just signed
			s.warn(from, "a peer's offer can't be used: check the clocks of both machines", err)
		}
		switch {
		case changed:
			h.Learned++
		case err != nil && !errors.Is(err, ErrOld): // hearing old news is normal
			h.Refused++
			if h.Why == nil {
				h.Why = err
			}
		}
	}
	if h.Why != nil {
		s.cfg.Logger.Debug("offers not believed", "from", from.Short(), "count", h.Refused, "err", h.Why)
	}
}

// warn tells a person once about a peer.
func (s *Service) warn(peer p2p.PeerID, what string, err error) {
	s.mu.Lock()
	known := s.warned[peer]
	if len(s.warned) >= maxWarned {
		clear(s.warned)
	}
	s.warned[peer] = true
	s.mu.Unlock()
	if !known {
		s.cfg.Logger.Warn(what, "peer", string(peer), "err", err)
	}
}

// Withdraw turns the local offer into a draining one and tells the connected peers,
// waiting at most 1.5 s. They pass it on. Without an offer it does nothing.
func (s *Service) Withdraw(ctx context.Context) error {
	s.mu.Lock()
	if s.own == nil {
		s.mu.Unlock()
		return nil
	}
	o := *s.own
	o.State = wire.Draining
	err := s.sign(o)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	s.askAll(ctx, s.cfg.Peers())
	return nil
}

// Run renews the local offer, pushes its changes, asks known peers anew and sweeps
// the table, until ctx ends. It returns when all that it started has ended.
func (s *Service) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.refresh(ctx) }) // on its own: dead peers may hold it up, and a push must not wait
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			s.table.Sweep()
			s.sweepPeers()
		case <-s.wake:
			s.askAll(ctx, s.cfg.Peers())
		}
	}
}

func (s *Service) refresh(ctx context.Context) {
	tick := time.NewTicker(s.refreshEvery())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.askAll(ctx, s.due())
		}
	}
}

// refreshEvery spreads peers by their id: a mesh that was started by one script must
// not ask in one instant.
func (s *Service) refreshEvery() time.Duration {
	h := fnv.New32a()
	h.Write([]byte(s.cfg.Signer.Self()))
	return s.cfg.Refresh + s.cfg.Refresh*time.Duration(h.Sum32()%256)/1024
}

// due are the peers to ask in this round: those connected, then those whose offers
// would expire before the next rounds.
func (s *Service) due() []p2p.Peer {
	peers := s.cfg.Peers()
	seen := map[p2p.PeerID]bool{s.cfg.Signer.Self(): true}
	for _, p := range peers {
		seen[p.ID] = true
	}
	now := s.cfg.Now()
	for _, o := range s.table.All() {
		old := now.Sub(time.UnixMilli(o.Issued)) > renewAfter
		if id := p2p.PeerID(o.Peer); old && o.State != wire.Draining && !seen[id] {
			peers = append(peers, p2p.Peer{ID: id, Addrs: o.Addrs})
		}
	}
	if len(peers) <= askPerRound {
		return peers
	}
	s.mu.Lock()
	start := s.cursor % len(peers)
	s.cursor += askPerRound
	s.mu.Unlock()
	return append(peers[start:len(peers):len(peers)], peers[:start]...)[:askPerRound]
}

// askAll asks peers, a few at once, and waits for all.
func (s *Service) askAll(ctx context.Context, peers []p2p.Peer) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, askAtOnce)
	for _, p := range peers {
		if ctx.Err() != nil {
			break
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if _, err := s.Ask(ctx, p); err != nil {
				s.cfg.Logger.Debug("can't refresh offers", "peer", p.ID.Short(), "err", err)
			}
		})
	}
	wg.Wait()
}
