// Package host is the one door to go-libp2p: a persistent identity, listeners, the
// DHT of one network, peers on the LAN and peers of earlier runs, NATs and relays,
// behind the small interfaces of package p2p.
//
// Invariant: nothing public is ever contacted: a host knows the peers that it was
// given, met on the LAN, remembers, or heard of from those.
// Start reading at New; Open is the way out, Handle the way in.
package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/meshnet/meshnet/p2p"
)

const (
	dialTimeout    = 5 * time.Second
	pruneEvery     = 5 * time.Second
	handlerTimeout = 5 * time.Second // Close waits so long for handlers whose streams it has reset
)

// Host is a peer of one network.
type Host struct {
	cfg   plan
	key   crypto.PrivKey
	lock  *os.File // nil without a directory
	h     host.Host
	self  p2p.PeerID
	swarm *swarm.Swarm
	dht   *dht.IpfsDHT
	known *known
	nudge chan struct{}      // capacity 1: a peer was lost, see who is to be dialled
	met   chan peer.AddrInfo // bounded: peers that mDNS saw; full: dropped, they are seen again

	private atomic.Bool // AutoNAT says that nobody can dial us

	ctx      context.Context // of handlers and own goroutines, ends with Close
	cancel   context.CancelFunc
	own      sync.WaitGroup // goroutines of this package
	handlers sync.WaitGroup
	closing  sync.Once
	closed   error

	mu      sync.Mutex
	watches map[chan Event]struct{}
}

// Event says that a peer came or went. A peer has come when it is known which
// protocols it speaks, and that is told for each of its connections.
type Event struct {
	Peer      p2p.Peer
	Connected bool
}

var (
	_ p2p.Streamer = (*Host)(nil)
	_ p2p.Mux      = (*Host)(nil)
)

// New starts a host. It listens when New returns; peers are met in the background.
// ErrIdentityInUse: another process runs with the same Dir. ctx bounds the start only.
func New(ctx context.Context, cfg Config) (_ *Host, err error) {
	quiet()
	p, err := cfg.check()
	if err != nil {
		return nil, err
	}
	n := &Host{
		cfg: p, nudge: make(chan struct{}, 1), met: make(chan peer.AddrInfo, 64), watches: map[chan Event]struct{}{},
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	if cfg.Dir == "" {
		n.key, err = newKey()
	} else {
		if n.lock, err = lockDir(cfg.Dir); err != nil {
			return nil, err
		}
		n.key, err = loadIdentity(cfg.Dir)
	}
	if err != nil {
		return nil, err
	}
	if n.known, err = loadKnown(cfg.Dir); err != nil {
		p.Logger.Warn("remembered peers are lost", "err", err)
	}
	if err := n.listen(ctx); err != nil {
		return nil, err
	}
	events, err := n.h.EventBus().Subscribe(
		[]any{new(event.EvtPeerIdentificationCompleted), new(event.EvtPeerConnectednessChanged), new(event.EvtLocalReachabilityChanged)}, eventbus.BufSize(256))
	if err != nil {
		return nil, fmt.Errorf("subscribing to peers: %w", err)
	}
	n.own.Go(func() { n.follow(events) })
	if n.dht, err = newDHT(n.h, p, n.known.infos); err != nil {
		return nil, fmt.Errorf("starting the DHT: %w", err)
	}
	if err := n.known.save(); err != nil { // our port, in case that we are killed
		p.Logger.Warn("can't remember our port", "err", err)
	}
	n.own.Go(n.meet)
	if !cfg.NoMDNS {
		n.own.Go(n.lookAround)
	}
	return n, nil
}

// listen starts libp2p on the listeners that were asked for.
func (n *Host) listen(ctx context.Context) error {
	var err error
	last := n.known.Port
	for range 5 { // only where we pick the port ourselves is there a second try
		var addrs []ma.Multiaddr
		var again bool
		if addrs, again, err = n.cfg.pick(last); err == nil {
			if err = n.start(addrs); err == nil {
				n.known.listens(portOf(addrs[0]))
				return nil
			}
		}
		if !again || ctx.Err() != nil {
			break
		}
		last = ""
	}
	return err
}

// start makes the libp2p host. libp2p is content when one listener of several works;
// we are not.
func (n *Host) start(addrs []ma.Multiaddr) error {
	opts, err := n.options(addrs)
	if err != nil {
		return err
	}
	h, err := libp2p.New(opts...)
	if err != nil {
		return fmt.Errorf("starting libp2p: %w", err)
	}
	have := map[string]bool{}
	for _, a := range h.Network().ListenAddresses() {
		have[a.String()] = true
	}
	for _, a := range addrs {
		if !have[a.String()] {
			h.Close()
			return fmt.Errorf("can't listen on %s: choose another address with --listen, or port 0 for any free port", a)
		}
	}
	n.mu.Lock()
	n.h = h
	n.mu.Unlock()
	n.self = p2p.PeerID(h.ID().String())
	n.swarm, _ = h.Network().(*swarm.Swarm)
	return nil
}

// follow turns libp2p's events into ours.
func (n *Host) follow(events event.Subscription) {
	defer events.Close()
	again := time.NewTicker(pruneEvery)
	defer again.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-again.C:
			for _, id := range n.h.Network().Peers() {
				n.prune(id)
			}
		case e, ok := <-events.Out():
			if !ok {
				return
			}
			switch e := e.(type) {
			case event.EvtPeerIdentificationCompleted:
				for _, id := range e.Protocols {
					if id == p2p.OfferProtocol {
						n.known.saw(peer.AddrInfo{ID: e.Peer, Addrs: e.ListenAddrs}, time.Now())
					}
				}
				n.prune(e.Peer)
				n.tell(Event{Peer: n.peer(e.Peer), Connected: true})
			case event.EvtLocalReachabilityChanged:
				n.private.Store(e.Reachability == network.ReachabilityPrivate)
			case event.EvtPeerConnectednessChanged:
				if e.Connectedness == network.NotConnected {
					n.tell(Event{Peer: n.peer(e.Peer)})
					n.poke()
				}
			}
		}
	}
}

// prune closes QUIC connections to a peer that is connected over TCP too, as happens
// when both dial at once. TCP is the cheaper one where it works, and a killed peer is
// noticed at once; a second connection over QUIC would hide that for 30 s.
func (n *Host) prune(id peer.ID) {
	conns := n.h.Network().ConnsToPeer(id)
	tcp := func(c network.Conn) bool { return c.ConnState().Transport == "tcp" && !c.IsClosed() }
	if len(conns) < 2 || !slices.ContainsFunc(conns, tcp) {
		return
	}
	for _, c := range conns {
		if c.ConnState().Transport == "quic-v1" && !slices.ContainsFunc(c.GetStreams(), ours) {
			c.Close()
		}
	}
}

// ours says that a stream is one of this program's, or not known yet.
func ours(s network.Stream) bool {
	switch s.Protocol() {
	case "", p2p.ActivationProtocol, p2p.HeartbeatProtocol, p2p.OfferProtocol:
		return true
	}
	return false
}

func (n *Host) poke() {
	select {
	case n.nudge <- struct{}{}:
	default: // one is waiting already
	}
}

// tell never blocks: a watcher that is slow misses events, and asks Connected.
func (n *Host) tell(e Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.watches {
		select {
		case w <- e:
		default:
		}
	}
}

// Watch delivers events until stop is called. A watcher that lets 64 of them wait
// misses the next; Connected is the truth.
func (n *Host) Watch() (events <-chan Event, stop func()) {
	w := make(chan Event, 64)
	n.mu.Lock()
	n.watches[w] = struct{}{}
	n.mu.Unlock()
	return w, func() {
		n.mu.Lock()
		delete(n.watches, w)
		n.mu.Unlock()
	}
}

// Self is the local peer.
func (n *Host) Self() p2p.PeerID { return n.self }

// Sign signs as the local peer; Verify is its other half.
func (n *Host) Sign(msg []byte) ([]byte, error) { return n.key.Sign(msg) }

// Addrs are the addresses of the host, ready to be given to others with --peer;
// those of loopback last, TCP before QUIC, and where only a relay gets through, that first.
func (n *Host) Addrs() []string {
	addrs := slices.Clone(n.h.Addrs())
	order := func(a ma.Multiaddr) (i int) {
		if _, relayed := value(a, ma.P_CIRCUIT); relayed && n.RelayOnly() {
			i -= 4
		}
		if manet.IsIPLoopback(a) {
			i += 2
		}
		if _, tcp := value(a, ma.P_TCP); !tcp {
			i++
		}
		return i
	}
	if len(n.cfg.announce) == 0 {
		slices.SortStableFunc(addrs, func(a, b ma.Multiaddr) int { return order(a) - order(b) })
	}
	var out []string
	for _, a := range addrs {
		out = append(out, a.String()+"/p2p/"+n.h.ID().String())
	}
	return out
}

// RelayOnly says that the host is behind a NAT which lets nobody in: others reach it
// through a relay, or when it dials them.
func (n *Host) RelayOnly() bool { return n.private.Load() }

// Connected are the peers with an open connection.
func (n *Host) Connected() []p2p.Peer {
	var out []p2p.Peer
	for _, id := range n.h.Network().Peers() {
		out = append(out, n.peer(id))
	}
	return out
}

func (n *Host) peer(id peer.ID) p2p.Peer {
	p := p2p.Peer{ID: p2p.PeerID(id.String())}
	for _, a := range n.h.Peerstore().Addrs(id) {
		if len(p.Addrs) == 8 {
			break
		}
		p.Addrs = append(p.Addrs, a.String())
	}
	return p
}

// Protect keeps the connection to a peer whatever the connection manager thinks, for
// as long as somebody holds it by a tag. Unprotect lets go.
func (n *Host) Protect(id p2p.PeerID, tag string) {
	if p, err := peer.Decode(string(id)); err == nil {
		n.h.ConnManager().Protect(p, tag)
	}
}

// Unprotect undoes Protect.
func (n *Host) Unprotect(id p2p.PeerID, tag string) {
	if p, err := peer.Decode(string(id)); err == nil {
		n.h.ConnManager().Unprotect(p, tag)
	}
}

// Drop closes the connections to a peer that does not answer, so that the next Open
// dials it afresh: over QUIC, libp2p itself would take half a minute to notice.
func (n *Host) Drop(id p2p.PeerID) {
	if p, err := peer.Decode(string(id)); err == nil {
		n.h.Network().ClosePeer(p)
	}
}

// Close ends the host: connections, handlers, goroutines, and lets go of the identity.
func (n *Host) Close() error {
	n.closing.Do(func() { n.closed = n.close() })
	return n.closed
}

// close ends what uses a thing before the thing: our goroutines, then the DHT, then
// libp2p with all streams, then the handlers that read them.
func (n *Host) close() error {
	n.mu.Lock() // whoever counts itself in under mu does so before this, or is refused
	n.cancel()
	n.mu.Unlock()
	n.own.Wait()
	var errs []error
	if n.dht != nil {
		errs = append(errs, n.dht.Close())
	}
	if n.h != nil {
		errs = append(errs, n.known.save(), n.h.Close())
	}
	done := make(chan struct{})
	go func() { n.handlers.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(handlerTimeout):
		errs = append(errs, fmt.Errorf("a stream's handler did not end within %v of Close", handlerTimeout))
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	return errors.Join(errs...)
}

// Handle registers the handler of a protocol.
func (n *Host) Handle(id string, h p2p.Handler) {
	n.h.SetStreamHandler(protocol.ID(id), func(s network.Stream) {
		n.mu.Lock()
		if n.ctx.Err() != nil {
			n.mu.Unlock()
			s.Reset()
			return
		}
		n.handlers.Add(1)
		n.mu.Unlock()
		defer n.handlers.Done()
		h(n.ctx, newStream(s))
	})
}

// file is the path of a file in the host's directory.
func file(dir, name string) string { return filepath.Join(dir, name) }
