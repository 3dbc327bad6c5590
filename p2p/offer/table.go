// Package offer keeps what peers say that they serve: offers, each signed by the
// peer that makes it, asked for directly and passed on unchanged.
//
// Invariant: a Table holds only what its own peer signed, for this network, not
// yet expired, and of each peer only the newest; and it never holds more than its
// bounds, whoever talks to it. So third-hand news is as good as first-hand, and
// nobody can keep a dead peer alive by repeating it.
// Start reading at Table.Add, then at Service, which moves offers between peers.
package offer

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

const (
	// Lifetime is how long an offer is valid.
	Lifetime = 120 * time.Second
	// Skew is how far two honest clocks may be apart.
	Skew = 30 * time.Second

	maxOffers    = 1024 // about 1.5 MiB, and a thousand signature checks
	maxPerRange  = 64   // more candidates don't make a route better
	maxPerPrefix = 3    // of one /24 or /48 in one range: addresses cost more than peer ids
	maxHearsay   = 256  // from one informant, so that a liar can't fill the table
	maxForgotten = 1024 // sequence numbers kept of peers without an offer
	memory       = Lifetime + 2*Skew
)

// Why an offer was not believed.
var (
	ErrNetwork   = errors.New("offer of another network")
	ErrExpired   = errors.New("offer has expired")
	ErrFuture    = errors.New("offer is from the future: the clocks differ by more than 30 s")
	ErrOld       = errors.New("a newer offer of the peer is known")
	ErrSignature = errors.New("offer is not signed by its peer")
	ErrLayers    = errors.New("offer names another number of layers than the model has")
	ErrFull      = errors.New("no room for more offers")
)

// Signer signs as the local peer.
type Signer interface {
	Self() p2p.PeerID
	Sign(msg []byte) ([]byte, error)
}

// Verifier says whether sig is peer's signature of msg.
type Verifier func(peer string, msg, sig []byte) error

// Table is a bounded view of who serves what. Its methods may be called from
// several goroutines.
type Table struct {
	network string
	self    p2p.PeerID
	verify  Verifier
	now     func() time.Time

	mu      sync.Mutex
	entries map[string]*entry
	layers  map[wire.Fingerprint]uint32
	changed chan struct{}
	added   uint64 // entries so far
}

// entry is the newest offer of a peer. Without an offer it only remembers the
// sequence number, so that an older offer, repeated by somebody, stays out.
type entry struct {
	seq       uint64
	forgotten bool // dropped by Forget: the peer itself may say the same again
	offer     *wire.Offer
	signed    wire.SignedOffer
	until     time.Time // leaves the view
	direct    bool      // the peer told us itself
	from      p2p.PeerID
	origin    netip.Prefix // whence it told us, if it did
	since     uint64       // count of entries when it did so first
	prefixes  []netip.Prefix
}

// NewTable makes an empty table of a network. Offers of self are ignored.
func NewTable(network string, self p2p.PeerID, verify Verifier, now func() time.Time) *Table {
	return &Table{
		network: network, self: self, verify: verify, now: now,
		entries: map[string]*entry{}, layers: map[wire.Fingerprint]uint32{}, changed: make(chan struct{}),
	}
}

// Changed is closed at the next change of the view. Take it before reading the view.
func (t *Table) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// Expect says how many layers a model really has: offers that disagree are refused
// and those that are there already go.
func (t *Table) Expect(model wire.Fingerprint, layers int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.layers[model] = uint32(layers)
	for _, e := range t.entries {
		if e.offer != nil && e.offer.Model == model && e.offer.Layers != uint32(layers) {
			t.drop(e)
		}
	}
}

// Add takes in an offer that peer from told us. It returns whether the view
// changed, and why the offer was not believed. Repeating what is known is no error.
func (t *Table) Add(so wire.SignedOffer, from p2p.PeerID) (bool, error) {
	return t.AddFrom(so, from, netip.Prefix{})
}

// AddFrom is Add with the block of addresses that the peer spoke from, as
// p2p.Origin tells it. Where there are more offers than the table takes, the blocks
// have equal shares.
func (t *Table) AddFrom(so wire.SignedOffer, from p2p.PeerID, origin netip.Prefix) (bool, error) {
	o, err := wire.ParseOffer(so.Payload)
	if err != nil {
		return false, fmt.Errorf("reading an offer from %q: %w", from, err)
	}
	changed, err := t.add(o, so, from, blockOf(origin))
	if err != nil {
		return false, fmt.Errorf("offer of peer %q from %q: %w", o.Peer, from, err)
	}
	return changed, nil
}

func (t *Table) add(o *wire.Offer, so wire.SignedOffer, from p2p.PeerID, origin netip.Prefix) (bool, error) {
	if p2p.PeerID(o.Peer) == t.self {
		return false, nil
	}
	if known, err := t.check(o, so, from); known || err != nil {
		return false, err
	}
	// The costly check comes after the cheap ones, and outside the lock.
	msg := append([]byte(wire.OfferSignPrefix), so.Payload...)
	if err := t.verify(o.Peer, msg, so.Signature); err != nil {
		return false, fmt.Errorf("%w: %w", ErrSignature, err)
	}
	e := &entry{
		seq: o.Seq, offer: o, from: from, direct: from == p2p.PeerID(o.Peer),
		signed:   wire.SignedOffer{Payload: bytes.Clone(so.Payload), Signature: bytes.Clone(so.Signature)},
		until:    time.UnixMilli(o.Expires).Add(Skew),
		prefixes: prefixesOf(o.Addrs),
	}
	if e.direct {
		e.origin = origin
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.added++
	e.since = t.added
	if old := t.entries[o.Peer]; old != nil {
		if newer(old, e) != nil {
			return false, ErrOld // it came in while we verified
		}
		if old.direct {
			e.since = old.since
			if !e.direct {
				e.direct, e.origin = true, old.origin
			}
		}
	}
	if far(e.origin) && !slices.Contains(e.prefixes, e.origin) {
		e.prefixes = append(e.prefixes, e.origin) // whatever addresses it claims
	}
	if err := t.makeRoom(e); err != nil {
		return false, err
	}
	t.entries[o.Peer] = e
	t.signal()
	return true, nil
}

// check is everything that needs no signature. known: nothing new.
func (t *Table) check(o *wire.Offer, so wire.SignedOffer, from p2p.PeerID) (known bool, err error) {
	now := t.now()
	switch {
	case o.Network != t.network:
		return false, fmt.Errorf("%w: %q, ours is %q", ErrNetwork, o.Network, t.network)
	case now.Sub(time.UnixMilli(o.Expires)) > Skew:
		return false, fmt.Errorf("%w %v ago", ErrExpired, now.Sub(time.UnixMilli(o.Expires)).Round(time.Second))
	case time.UnixMilli(o.Issued).Sub(now) > Skew:
		return false, ErrFuture
	case time.UnixMilli(o.Expires).Sub(time.UnixMilli(o.Issued)) > Lifetime:
		return false, fmt.Errorf("%w: it claims to be valid for more than %v", ErrFuture, Lifetime)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, ok := t.layers[o.Model]; ok && n != o.Layers {
		return false, fmt.Errorf("%w: %d, not %d", ErrLayers, o.Layers, n)
	}
	e := t.entries[o.Peer]
	if e == nil {
		return false, nil
	}
	if e.offer != nil && e.seq == o.Seq && bytes.Equal(e.signed.Payload, so.Payload) {
		e.direct = e.direct || from == p2p.PeerID(o.Peer)
		return true, nil
	}
	return false, newer(e, &entry{seq: o.Seq, direct: from == p2p.PeerID(o.Peer)})
}

// newer says why e may not take the place of old.
func newer(old, e *entry) error {
	if e.seq > old.seq || (e.seq == old.seq && old.forgotten && e.direct) {
		return nil
	}
	return ErrOld
}

// makeRoom checks the bounds for e. Where one is reached, an offer that the peer
// itself told us takes the place of one that we only heard of.
func (t *Table) makeRoom(e *entry) error {
	if _, known := t.entries[e.offer.Peer]; !known && t.count(func(x *entry) bool { return x.offer == nil }) >= maxForgotten {
		t.forgetOldest()
	}
	sameOrigin := func(x *entry) bool { return x.direct && x.origin == e.origin }
	sameRange := func(x *entry) bool {
		return x.offer.Model == e.offer.Model && x.offer.Start == e.offer.Start && x.offer.End == e.offer.End
	}
	bounds := []bound{
		{"in the table", maxOffers, func(*entry) bool { return true }, sameOrigin},
		{"of the same range", maxPerRange, sameRange, sameOrigin},
	}
	for _, p := range e.prefixes {
		bounds = append(bounds, bound{"of the same range from " + p.String(), maxPerPrefix, func(x *entry) bool {
			return sameRange(x) && slices.Contains(x.prefixes, p)
		}, nil})
	}
	if !e.direct {
		bounds = append(bounds, bound{"told by one peer", maxHearsay, func(x *entry) bool { return !x.direct && x.from == e.from }, nil})
	}
	var victims []string
	for _, b := range bounds {
		victim, err := t.fit(e, b)
		if err != nil {
			return err
		}
		victims = append(victims, victim)
	}
	for _, v := range victims {
		delete(t.entries, v)
	}
	return nil
}

// bound says that at most max offers among some may be known. With kin, origins have
// equal shares of them.
type bound struct {
	name  string
	max   int
	among func(*entry) bool
	kin   func(*entry) bool // of the newcomer's origin
}

// fit names the peer whose offer must go for e to fit, "" for none.
func (t *Table) fit(e *entry, b bound) (victim string, err error) {
	others := 0
	for peer, x := range t.entries {
		if x.offer == nil || peer == e.offer.Peer || !b.among(x) {
			continue
		}
		others++
		if x.direct {
			continue
		}
		if v := t.entries[victim]; v == nil || x.until.Before(v.until) || (x.until.Equal(v.until) && peer < victim) {
			victim = peer
		}
	}
	if others < b.max {
		return "", nil
	}
	if e.direct && victim == "" && b.kin != nil {
		victim = t.crowded(e, b)
	}
	if !e.direct || victim == "" {
		return "", fmt.Errorf("%w: %d %s", ErrFull, others, b.name)
	}
	return victim, nil
}

// crowded names a peer of the origin with the most offers within b, if those are two
// more than e's origin has: the one that came last, so that who is known stays.
func (t *Table) crowded(e *entry, b bound) (victim string) {
	held := map[netip.Prefix]int{}
	mine := 0
	for peer, x := range t.entries {
		if x.offer == nil || peer == e.offer.Peer || !b.among(x) {
			continue
		}
		held[x.origin]++
		if b.kin(x) {
			mine++
		}
	}
	var most *entry
	for peer, x := range t.entries {
		if x.offer == nil || peer == e.offer.Peer || !b.among(x) || held[x.origin] < mine+2 {
			continue
		}
		if most == nil || held[x.origin] > held[most.origin] || held[x.origin] == held[most.origin] && x.since > most.since {
			victim, most = peer, x
		}
	}
	return victim
}

func (t *Table) count(which func(*entry) bool) (n int) {
	for _, e := range t.entries {
		if which(e) {
			n++
		}
	}
	return n
}

func (t *Table) forgetOldest() {
	oldest := ""
	for peer, e := range t.entries {
		if e.offer == nil && (oldest == "" || e.until.Before(t.entries[oldest].until)) {
			oldest = peer
		}
	}
	delete(t.entries, oldest)
}

// drop takes the offer out of the view and keeps the sequence number.
func (t *Table) drop(e *entry) {
	if e.offer == nil {
		return
	}
	e.offer, e.signed, e.prefixes = nil, wire.SignedOffer{}, nil
	t.signal()
}

func (t *Table) signal() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// Forget drops the offer of a peer that failed us. Only the peer itself, or a newer
// offer, brings it back.
func (t *Table) Forget(peer p2p.PeerID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[string(peer)]; e != nil && e.offer != nil {
		e.forgotten = true
		t.drop(e)
	}
}

// Sweep drops what has expired. Views never show it; Sweep frees it and tells
// whoever waits on Changed.
func (t *Table) Sweep() {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for peer, e := range t.entries {
		if !now.Before(e.until) {
			t.drop(e)
		}
		if now.Sub(e.until) > memory {
			delete(t.entries, peer)
		}
	}
}

// View is what is served now of a model, by ascending start, end and peer: peers
// that are joining or online, not those that leave.
func (t *Table) View(model wire.Fingerprint) []wire.Offer {
	return t.list(func(o *wire.Offer) bool { return o.Model == model && o.State != wire.Draining })
}

// All is every valid offer, those of leaving peers too.
func (t *Table) All() []wire.Offer {
	return t.list(func(*wire.Offer) bool { return true })
}

// Get is the valid offer of one peer.
func (t *Table) Get(peer p2p.PeerID) (wire.Offer, bool) {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[string(peer)]; e != nil && e.offer != nil && now.Before(e.until) {
		return *e.offer, true
	}
	return wire.Offer{}, false
}

func (t *Table) list(which func(*wire.Offer) bool) []wire.Offer {
	var out []wire.Offer
	for _, e := range t.valid() {
		if which(e.offer) {
			out = append(out, *e.offer)
		}
	}
	return out
}

// signed are the valid offers as they came, to be passed on; those of the model
// first, that of the asker left out.
func (t *Table) signed(model wire.Fingerprint, asker p2p.PeerID) []wire.SignedOffer {
	var first, rest []wire.SignedOffer
	for _, e := range t.valid() {
		switch {
		case e.offer.Peer == string(asker):
		case e.offer.Model == model:
			first = append(first, e.signed)
		default:
			rest = append(rest, e.signed)
		}
	}
	return append(first, rest...)
}

// valid is a snapshot in a fixed order. Offers are never changed in place, so the
// entries may be read after the lock is gone.
func (t *Table) valid() []entry {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]entry, 0, len(t.entries))
	for _, e := range t.entries {
		if e.offer != nil && now.Before(e.until) {
			out = append(out, *e)
		}
	}
	slices.SortFunc(out, func(a, b entry) int {
		if c := int(a.offer.Start) - int(b.offer.Start); c != 0 {
			return c
		}
		if c := int(a.offer.End) - int(b.offer.End); c != 0 {
			return c
		}
		return strings.Compare(a.offer.Peer, b.offer.Peer)
	})
	return out
}

// prefixesOf gives the /24s and /48s of the public addresses among multiaddrs in
// text form. A relayed address counts for its relay. Private addresses are exempt:
// a whole lab may sit in one /24.
func prefixesOf(addrs []string) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addrs {
		parts := strings.Split(a, "/")
		if len(parts) < 3 || (parts[1] != "ip4" && parts[1] != "ip6") {
			continue
		}
		ip, err := netip.ParseAddr(parts[2])
		if err != nil {
			continue
		}
		if p2p.Near(ip) {
			continue
		}
		ip = ip.Unmap()
		if p := block(ip); p.IsValid() && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// block is the /24 or /48 of an address, which somebody with more than one key has as
// easily as the address.
func block(ip netip.Addr) netip.Prefix {
	bits := 24
	if ip.Is6() {
		bits = 48
	}
	p, _ := ip.Prefix(bits)
	return p
}

// blockOf is an origin as the bounds of the table see it: whole blocks, but single
// machines of a private network.
func blockOf(origin netip.Prefix) netip.Prefix {
	if far(origin) {
		return block(origin.Addr())
	}
	return origin
}

func far(origin netip.Prefix) bool { return origin.IsValid() && !p2p.Near(origin.Addr()) }
