// Package relay is the cable between the processes of a test mesh: a TCP forwarder
// in user space with a link for every pair of nodes, which can be slowed, cut and
// healed while they run. Kernels without netem can do it.
//
// Each node has a loopback address of its own, from which it dials, so that the
// relay knows by a connection's source which pair it belongs to.
// Invariant: a byte that a node has sent arrives once and in order, or the
// connection is reset.
// Start reading at Relay; a connection's two directions are in conn.go.
package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Other is the name of whoever dials from an address that is no node's.
const Other = "other"

// Relay forwards for a set of nodes until Close.
type Relay struct {
	seed   uint64
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	nodes map[string]*node
	names map[netip.Addr]string
	links map[[2]string]*Link
}

type node struct {
	name     string
	target   netip.AddrPort
	listener *net.TCPListener
}

// New makes a relay without nodes. The seed fixes the jitter of every link.
func New(seed uint64) *Relay {
	ctx, cancel := context.WithCancel(context.Background())
	return &Relay{
		seed: seed, ctx: ctx, cancel: cancel,
		nodes: map[string]*node{}, names: map[netip.Addr]string{}, links: map[[2]string]*Link{},
	}
}

// Add listens for a node at an address (port 0: any free one), forwards to target,
// where the node itself listens, and gives the address to tell to others. What
// comes from listen's IP is the node's own traffic.
func (r *Relay) Add(name string, listen, target netip.AddrPort) (netip.AddrPort, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return netip.AddrPort{}, errors.New("relay is closed")
	}
	if r.nodes[name] != nil || r.names[listen.Addr()] != "" || name == Other {
		return netip.AddrPort{}, fmt.Errorf("relay has a node %q, or one at %v, already", name, listen.Addr())
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(listen))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("relay for %s: %w", name, err)
	}
	n := &node{name: name, target: target, listener: l}
	r.nodes[name], r.names[listen.Addr()] = n, name
	r.wg.Go(func() { r.accept(n) })
	return l.Addr().(*net.TCPAddr).AddrPort(), nil
}

// Link is the cable between two nodes, in either order; it exists from the first
// time that somebody asks for it.
func (r *Relay) Link(a, b string) *Link {
	if b < a {
		a, b = b, a
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.links[[2]string{a, b}]
	if l == nil {
		n := uint64(len(r.links))
		l = &Link{a: a, b: b, rand: rand.New(rand.NewPCG(r.seed, n)), conns: map[*conn]struct{}{}, changed: make(chan struct{})}
		r.links[[2]string{a, b}] = l
	}
	return l
}

// Links is every link that was used or asked for.
func (r *Relay) Links() []*Link {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*Link, 0, len(r.links))
	for _, l := range r.links {
		all = append(all, l)
	}
	return all
}

// Close resets every connection and waits for every goroutine.
func (r *Relay) Close() {
	r.cancel()
	r.mu.Lock()
	for _, n := range r.nodes {
		n.listener.Close()
	}
	r.mu.Unlock()
	for _, l := range r.Links() {
		l.abortAll()
	}
	r.wg.Wait()
}

func (r *Relay) accept(n *node) {
	for {
		c, err := n.listener.AcceptTCP()
		if err != nil {
			if r.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // out of file descriptors: they come back
			case <-r.ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		r.wg.Go(func() { r.serve(n, c) })
	}
}

// serve joins a connection with the node that it is for.
func (r *Relay) serve(n *node, client *net.TCPConn) {
	source := client.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	r.mu.Lock()
	from, known := r.names[source]
	r.mu.Unlock()
	if !known {
		from = Other
	}
	link := r.Link(from, n.name)
	// Through a hole the kernel's handshake succeeds, as we listen nearby, but nothing
	// answers; a dialler that gives up is found out when its bytes are passed on.
	if !link.passes(r.ctx.Done()) {
		refuse(client)
		return
	}
	dialer := net.Dialer{Timeout: 5 * time.Second}
	if known { // the node sees who it is, too
		dialer.LocalAddr = &net.TCPAddr{IP: source.AsSlice()}
	}
	server, err := dialer.DialContext(r.ctx, "tcp", n.target.String())
	if err != nil {
		refuse(client)
		return
	}
	c := &conn{link: link, done: make(chan struct{}), forward: link.a == from}
	c.ends[0], c.ends[1] = client, server.(*net.TCPConn)
	if !link.add(c) || r.ctx.Err() != nil {
		c.abort()
	}
	c.run()
	link.remove(c)
}

// refuse resets a connection.
func refuse(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}
