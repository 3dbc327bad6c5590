package node

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/host"
	"github.com/meshnet/meshnet/p2p/offer"
	"github.com/meshnet/meshnet/p2p/wire"
)

const (
	bucketLayers = 8                      // layers that share a DHT key
	provideEvery = 4 * time.Minute        // of host.RecordTTL's 15 min, plus up to a minute by peer
	provideFor   = 30 * time.Second       // a provide waits for dead peers that long
	findFor      = 3 * time.Second        // a look-up, streaming
	seekFirst    = 500 * time.Millisecond // between look-ups while layers are missing, doubling
	seekMost     = 15 * time.Second
	seekIdle     = time.Minute     // when none is missing
	askAgain     = 5 * time.Second // a peer that we have just asked is let be
	askFailed    = time.Second     // so is one that did not answer, four times as long each time
	askMost      = 5 * time.Minute
	recheckAfter = 500 * time.Millisecond

	recheckRefused, recheckSilent = 2, 5 // asks until a peer counts as gone, the silent ones of 3 s each
	firstSamples                  = 3    // round trips measured when a peer is met
	asksAtOnce                    = 8
	maxAsked                      = 4096 // peers of which we know when they were asked
)

// Finder is what discovery needs of *host.Host.
type Finder interface {
	Self() p2p.PeerID
	Provide(ctx context.Context, key []byte) error
	Find(ctx context.Context, key []byte) <-chan p2p.Peer
	Watch() (events <-chan host.Event, stop func())
	Connected() []p2p.Peer
	TableSize() int
}

// DiscoveryConfig is what a Discovery needs; all but Logger must be set.
type DiscoveryConfig struct {
	Network string
	Host    Finder
	Offers  *offer.Service
	Logger  *slog.Logger
}

// Discovery fills the table of offers: it lists the local node in the DHT, looks up
// who else is listed, and asks those, and whoever is connected, for their offers.
//
// Invariant: nothing that the DHT says is believed; it only names whom to ask.
type Discovery struct {
	cfg    DiscoveryConfig
	offers *offer.Service
	kick   chan struct{} // capacity 1: look up now
	serves chan struct{} // capacity 1: what we provide has changed, or may now work
	slots  chan struct{} // asks in flight

	mu    sync.Mutex
	seek  map[wire.Fingerprint]int // models to keep a view of, and their layers
	serve shardKey
	asked map[p2p.PeerID]*asked

	checked map[p2p.PeerID]bool // that were lost and are being asked whether they are there
}

// asked is when a peer may be asked again.
type asked struct {
	next  time.Time
	fails int
}

type shardKey struct {
	model      wire.Fingerprint
	start, end int
}

// NewDiscovery makes a discovery that does nothing before Run.
func NewDiscovery(cfg DiscoveryConfig) *Discovery {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Discovery{
		cfg: cfg, offers: cfg.Offers,
		kick: make(chan struct{}, 1), serves: make(chan struct{}, 1), slots: make(chan struct{}, asksAtOnce),
		seek: map[wire.Fingerprint]int{}, asked: map[p2p.PeerID]*asked{}, checked: map[p2p.PeerID]bool{},
	}
}

// Seek keeps a view of a model of so many layers from now on.
func (d *Discovery) Seek(model wire.Fingerprint, layers int) {
	d.mu.Lock()
	d.seek[model] = layers
	d.mu.Unlock()
	d.Kick()
}

// Serve lists the local node in the DHT as one that holds layers [start, end) of a
// model, in place of what was listed before. An empty range lists nothing; what was
// listed expires.
func (d *Discovery) Serve(model wire.Fingerprint, start, end int) {
	d.mu.Lock()
	d.serve = shardKey{model, start, end}
	d.mu.Unlock()
	poke(d.serves)
}

// Kick looks up at once what is sought: somebody has met a gap.
func (d *Discovery) Kick() { poke(d.kick) }

// poke says that there is something to do; if it is said already, once is enough.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run discovers until ctx ends, and returns when all that it started has ended.
func (d *Discovery) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { d.watch(ctx) })
	wg.Go(func() { d.provide(ctx) })
	d.look(ctx)
	wg.Wait()
}

// watch asks every peer at the moment when it connects. In a small mesh that alone
// makes the view, before the DHT has said a word.
func (d *Discovery) watch(ctx context.Context) {
	events, stop := d.cfg.Host.Watch()
	defer stop()
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, p := range d.cfg.Host.Connected() {
		d.ask(ctx, p, &asking)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if !e.Connected {
				d.recheck(ctx, e.Peer, &asking)
				continue
			}
			d.forgive(e.Peer.ID)
			d.ask(ctx, e.Peer, &asking)
			poke(d.serves)
		}
	}
}

// ask asks a peer in the background, unless its time has not come. It waits for room.
func (d *Discovery) ask(ctx context.Context, p p2p.Peer, asking *sync.WaitGroup) {
	if p.ID == d.cfg.Host.Self() || !d.mayAsk(p.ID, time.Now()) {
		return
	}
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	asking.Go(func() {
		defer func() { <-d.slots }()
		_, measured := d.offers.RTT(p.ID)
		_, err := d.offers.Ask(ctx, p)
		d.answered(p.ID, err == nil)
		for range firstSamples - 1 { // the first exchange warms up; a route needs the link's own time
			if err == nil && !measured {
				_, err = d.offers.Ask(ctx, p)
			}
		}
		if err != nil && ctx.Err() == nil {
			d.cfg.Logger.Debug("peer does not tell what it serves", "peer", p.ID.Short(), "err", err)
		}
	})
}

// recheck asks a peer that was lost and has an offer. If nobody is there, its offer
// goes: a crash would otherwise show only when the offer expires. Whoever is refused
// knows it at the second time; silence may be a busy machine, and takes longer.
func (d *Discovery) recheck(ctx context.Context, p p2p.Peer, asking *sync.WaitGroup) {
	o, ok := d.offers.Table().Get(p.ID)
	if !ok || o.State == wire.Draining {
		return
	}
	p.Addrs = append(p.Addrs, o.Addrs...)
	d.mu.Lock()
	already := d.checked[p.ID]
	d.checked[p.ID] = true
	d.mu.Unlock()
	if already {
		return
	}
	asking.Go(func() {
		defer func() {
			d.mu.Lock()
			delete(d.checked, p.ID)
			d.mu.Unlock()
		}()
		for n := 1; ; n++ {
			err := d.askOnce(ctx, p)
			if err == nil || ctx.Err() != nil {
				return
			}
			silent := errors.Is(err, context.DeadlineExceeded)
			if n >= recheckRefused && !silent || n >= recheckSilent {
				if silent || errors.Is(err, p2p.ErrUnreachable) {
					d.cfg.Logger.Info("a peer is gone", "peer", p.ID.Short(), "err", err)
					d.offers.Table().Forget(p.ID)
				}
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(recheckAfter):
			}
		}
	})
}

// askOnce asks for offers when there is room for it.
func (d *Discovery) askOnce(ctx context.Context, p p2p.Peer) error {
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-d.slots }()
	_, err := d.offers.Ask(ctx, p)
	return err
}

func (d *Discovery) mayAsk(id p2p.PeerID, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.asked[id]
	if a != nil && now.Before(a.next) {
		return false
	}
	if a == nil {
		if len(d.asked) >= maxAsked {
			d.forgetAsked(now)
		}
		a = &asked{}
		d.asked[id] = a
	}
	a.next = now.Add(askAgain)
	return true
}

// forgetAsked makes room: peers whose time has come go first, all if that is none.
func (d *Discovery) forgetAsked(now time.Time) {
	for id, a := range d.asked {
		if !now.Before(a.next) {
			delete(d.asked, id)
		}
	}
	if len(d.asked) >= maxAsked {
		clear(d.asked)
	}
}

func (d *Discovery) answered(id p2p.PeerID, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.asked[id]
	switch {
	case a == nil:
	case ok:
		a.fails = 0
	default:
		a.next = time.Now().Add(min(askFailed<<min(2*a.fails, 16), askMost))
		a.fails++
	}
}

// forgive lets a peer that failed be asked now: it has connected.
func (d *Discovery) forgive(id p2p.PeerID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.asked[id]; a != nil && a.fails > 0 {
		delete(d.asked, id)
	}
}

// provide keeps the local node listed: at once when the range changes, again long
// before the records expire, and again when the DHT has grown much, because the
// nodes that should keep the record may be new.
func (d *Discovery) provide(ctx context.Context) {
	retry := seekFirst
	wait := time.NewTimer(0)
	defer wait.Stop()
	var done shardKey
	var doneAt time.Time
	var doneSize int
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.serves:
		case <-wait.C:
		}
		d.mu.Lock()
		s := d.serve
		d.mu.Unlock()
		size, every := d.cfg.Host.TableSize(), provideEvery+spread(d.cfg.Host.Self(), time.Minute)
		fresh := s == done && size <= 2*doneSize && time.Since(doneAt) < every
		if s.start >= s.end || fresh {
			wait.Reset(seekMost)
			continue
		}
		if err := d.provideAll(ctx, s); err != nil {
			if !errors.Is(err, host.ErrAlone) && ctx.Err() == nil {
				d.cfg.Logger.Debug("can't be listed in the DHT yet", "err", err)
			}
			wait.Reset(retry)
			retry = min(2*retry, seekMost)
			continue
		}
		done, doneAt, doneSize, retry = s, time.Now(), max(size, 1), seekFirst
		wait.Reset(seekMost)
	}
}

func (d *Discovery) provideAll(ctx context.Context, s shardKey) error {
	keys := [][]byte{modelKey(d.cfg.Network, s.model)}
	for b := s.start / bucketLayers; b <= (s.end-1)/bucketLayers; b++ {
		keys = append(keys, bucketKey(d.cfg.Network, s.model, b))
	}
	ctx, cancel := context.WithTimeout(ctx, provideFor)
	defer cancel()
	for _, k := range keys {
		if err := d.cfg.Host.Provide(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// look looks up what is sought: at once, soon again while layers are missing, now and
// then when none is.
func (d *Discovery) look(ctx context.Context) {
	pause := seekFirst
	for {
		changed := d.Changed()
		missing := d.lookUp(ctx)
		wait := seekIdle
		if missing {
			wait = pause
			pause = min(2*pause, seekMost)
		} else {
			pause = seekFirst
		}
		timer := time.NewTimer(wait)
	idle:
		for {
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
				break idle
			case <-d.kick:
				pause = seekFirst
				break idle
			case <-changed:
				// A peer that went may leave a gap; one that came needs no look-up.
				changed = d.Changed()
				was := missing
				if missing = len(d.gaps()) > 0; missing && !was {
					break idle
				}
			}
		}
		timer.Stop()
		select { // never more than one round in this time, whoever kicks
		case <-ctx.Done():
			return
		case <-time.After(seekFirst / 2):
		}
	}
}

// lookUp does one round, and says whether layers are still missing after it.
func (d *Discovery) lookUp(ctx context.Context) (missing bool) {
	d.mu.Lock()
	var keys [][]byte
	for model := range d.seek {
		keys = append(keys, modelKey(d.cfg.Network, model))
	}
	d.mu.Unlock()
	gaps := d.gaps()
	for _, g := range gaps {
		keys = append(keys, bucketKey(d.cfg.Network, g.model, g.start/bucketLayers))
	}
	var asking, finding sync.WaitGroup
	if len(gaps) > 0 {
		for _, p := range d.cfg.Host.Connected() { // an event may have been missed
			d.ask(ctx, p, &asking)
		}
	}
	if d.cfg.Host.TableSize() > 0 {
		for _, k := range keys[:min(len(keys), asksAtOnce)] {
			finding.Go(func() { d.find(ctx, k) })
		}
	}
	finding.Wait()
	asking.Wait()
	return len(d.gaps()) > 0
}

// find asks whom the DHT lists under a key.
func (d *Discovery) find(ctx context.Context, key []byte) {
	findCtx, cancel := context.WithTimeout(ctx, findFor)
	defer cancel()
	var asking sync.WaitGroup
	defer asking.Wait()
	for p := range d.cfg.Host.Find(findCtx, key) {
		d.ask(ctx, p, &asking)
	}
}

// gaps are the layers that nobody offers, cut at buckets, of all models sought.
func (d *Discovery) gaps() (out []shardKey) {
	d.mu.Lock()
	seek := make(map[wire.Fingerprint]int, len(d.seek))
	for m, l := range d.seek {
		seek[m] = l
	}
	own := d.serve
	d.mu.Unlock()
	for model, layers := range seek {
		view := d.View(model)
		if layers == 0 && len(view) == 0 {
			out = append(out, shardKey{model, 0, bucketLayers}) // anybody will do
		}
		if own.model == model && own.start < own.end {
			view = append(view, wire.Offer{Start: uint32(own.start), End: uint32(own.end), State: wire.Online})
		}
		for _, m := range missingLayers(layers, view) {
			for at := m[0]; at < m[1]; at = (at/bucketLayers + 1) * bucketLayers {
				out = append(out, shardKey{model, at, min(m[1], (at/bucketLayers+1)*bucketLayers)})
			}
		}
	}
	return out
}

// modelKey is the DHT key of all that serve any layer of a model.
func modelKey(network string, model wire.Fingerprint) []byte {
	return append([]byte("meshnet model 1\x00"+network+"\x00"), model[:]...)
}

// bucketKey is the DHT key of those that serve some of the layers
// [bucket*bucketLayers, (bucket+1)*bucketLayers).
func bucketKey(network string, model wire.Fingerprint, bucket int) []byte {
	key := append([]byte("meshnet layers 1\x00"+network+"\x00"), model[:]...)
	return binary.BigEndian.AppendUint32(key, uint32(bucket))
}

// spread is a part of a duration that depends on the peer, so that a mesh which was
// started by one script doesn't do everything in one instant.
func spread(id p2p.PeerID, most time.Duration) time.Duration {
	h := fnv.New32a()
	h.Write([]byte(id))
	return most * time.Duration(h.Sum32()%1024) / 1024
}
