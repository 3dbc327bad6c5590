package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/discovery/mdns"
	ma "github.com/multiformats/go-multiaddr"
)

const (
	retryFirst     = 200 * time.Millisecond
	retryMost      = 30 * time.Second
	saveFirst      = 2 * time.Second
	saveEvery      = 30 * time.Second
	dialAtOnce     = 8
	maxKnown       = 128
	maxKnownAddrs  = 8
	dialRemembered = 16 // newest ones, when nobody is connected
)

// meet dials the given peers until they are connected, and again when they are lost,
// and the remembered ones while nobody is. It saves who was met.
func (n *Host) meet() {
	save := time.NewTimer(saveFirst)
	defer save.Stop()
	wait := retryFirst
	warned := map[peer.ID]bool{}
	for {
		missing := n.dialMissing(warned)
		if !missing {
			wait = retryFirst
		}
		retry := time.NewTimer(retryMost)
		if missing {
			retry.Reset(wait)
			wait = min(2*wait, retryMost)
		}
	idle:
		for {
			select {
			case <-n.ctx.Done():
				retry.Stop()
				return
			case <-save.C:
				if err := n.known.save(); err != nil {
					n.cfg.Logger.Warn("can't remember peers", "err", err)
				}
				save.Reset(saveEvery)
			case info := <-n.met:
				n.dialAll([]peer.AddrInfo{info}, nil)
			case <-n.nudge:
				if !missing {
					break idle
				}
			case <-retry.C:
				break idle
			}
		}
		retry.Stop()
	}
}

// dialMissing says whether somebody who should be connected is not.
func (n *Host) dialMissing(warned map[peer.ID]bool) bool {
	var todo []peer.AddrInfo
	for _, p := range n.cfg.peers {
		if p.ID != n.h.ID() && n.h.Network().Connectedness(p.ID) != network.Connected {
			todo = append(todo, p)
		}
	}
	if len(n.h.Network().Peers()) == 0 {
		todo = append(todo, n.known.newest(dialRemembered)...)
	}
	failed := n.dialAll(todo, func(p peer.AddrInfo, err error) {
		given := slices.ContainsFunc(n.cfg.peers, func(q peer.AddrInfo) bool { return q.ID == p.ID })
		if given && !warned[p.ID] {
			warned[p.ID] = true
			n.cfg.Logger.Warn("can't reach the given peer yet, trying on", "peer", p.ID.String(), "err", err)
		}
	})
	return failed > 0
}

// dialAll dials peers, a few at once, and returns how many can't be reached. The
// callback runs in this goroutine.
func (n *Host) dialAll(peers []peer.AddrInfo, failed func(peer.AddrInfo, error)) (failures int) {
	type outcome struct {
		p   peer.AddrInfo
		err error
	}
	slots := make(chan struct{}, dialAtOnce)
	results := make(chan outcome, len(peers))
	for _, p := range peers {
		slots <- struct{}{}
		go func() { // ends with its dial; its result is read below
			err := n.connect(n.ctx, p)
			<-slots
			results <- outcome{p, err}
		}()
	}
	for range peers {
		r := <-results
		if r.err == nil {
			continue
		}
		failures++
		if failed != nil && n.ctx.Err() == nil {
			failed(r.p, r.err)
		}
	}
	return failures
}

func (n *Host) connect(ctx context.Context, p peer.AddrInfo) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	n.unblock(p.ID)
	return n.h.Connect(ctx, p)
}

// lookAround searches the LAN until the host closes. A machine without multicast is
// no error: other ways of meeting are left.
func (n *Host) lookAround() {
	s := mdns.NewMdnsService(n.h, serviceName(n.cfg.Network), notifee{n})
	defer s.Close()
	if err := s.Start(); err != nil {
		n.cfg.Logger.Warn("can't look for peers on the local network: give one with --peer", "err", err)
		return
	}
	<-n.ctx.Done()
}

// notifee hands peers seen by mDNS to meet.
type notifee struct{ n *Host }

func (f notifee) HandlePeerFound(p peer.AddrInfo) {
	if p.ID == f.n.h.ID() || f.n.h.Network().Connectedness(p.ID) == network.Connected {
		return
	}
	select {
	case f.n.met <- p:
	default:
	}
}

// known are the peers of earlier runs, and our own port, kept in peers.json.
type known struct {
	path string // "": not kept

	mu    sync.Mutex
	dirty bool
	Port  string                `json:"port"`
	Peers map[string]*knownPeer `json:"peers"` // by peer id
}

type knownPeer struct {
	Addrs []string  `json:"addrs"`
	Seen  time.Time `json:"seen"`
}

// loadKnown always returns something usable. A damaged file is an error, and empty.
func loadKnown(dir string) (*known, error) {
	k := &known{Peers: map[string]*knownPeer{}}
	if dir == "" {
		return k, nil
	}
	k.path = file(dir, "peers.json")
	b, err := os.ReadFile(k.path)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return k, fmt.Errorf("reading remembered peers: %w", err)
	}
	if err := json.Unmarshal(b, k); err != nil {
		k.Port, k.Peers = "", map[string]*knownPeer{}
		return k, fmt.Errorf("%s is damaged: %w", k.path, err)
	}
	for id, p := range k.Peers {
		if p == nil {
			delete(k.Peers, id)
		}
	}
	if k.Peers == nil {
		k.Peers = map[string]*knownPeer{}
	}
	return k, nil
}

// listens notes our own port, to be found there again by those who remember us.
func (k *known) listens(port string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dirty = k.dirty || k.Port != port
	k.Port = port
}

func (k *known) saw(p peer.AddrInfo, now time.Time) {
	var addrs []string
	for _, a := range p.Addrs {
		if _, relayed := value(a, ma.P_CIRCUIT); !relayed && len(addrs) < maxKnownAddrs {
			addrs = append(addrs, a.String())
		}
	}
	if len(addrs) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dirty = true
	k.Peers[p.ID.String()] = &knownPeer{Addrs: addrs, Seen: now.UTC().Truncate(time.Second)}
	for len(k.Peers) > maxKnown {
		oldest := ""
		for id, p := range k.Peers {
			if oldest == "" || p.Seen.Before(k.Peers[oldest].Seen) || (p.Seen.Equal(k.Peers[oldest].Seen) && id < oldest) {
				oldest = id
			}
		}
		delete(k.Peers, oldest)
	}
}

func (k *known) infos() []peer.AddrInfo { return k.newest(maxKnown) }

// newest are the peers seen last.
func (k *known) newest(count int) []peer.AddrInfo {
	k.mu.Lock()
	defer k.mu.Unlock()
	ids := make([]string, 0, len(k.Peers))
	for id := range k.Peers {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return k.Peers[b].Seen.Compare(k.Peers[a].Seen) })
	var out []peer.AddrInfo
	for _, id := range ids {
		p, err := peer.Decode(id)
		if err != nil {
			continue // the file was edited
		}
		info := peer.AddrInfo{ID: p}
		for _, s := range k.Peers[id].Addrs {
			if a, err := ma.NewMultiaddr(s); err == nil {
				info.Addrs = append(info.Addrs, a)
			}
		}
		if len(out) < count && len(info.Addrs) > 0 {
			out = append(out, info)
		}
	}
	return out
}

// save writes what changed.
func (k *known) save() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.path == "" || !k.dirty {
		return nil
	}
	b, err := json.MarshalIndent(k, "", "\t")
	if err != nil {
		return fmt.Errorf("encoding remembered peers: %w", err)
	}
	if err := writeFile(k.path, append(b, '\n')); err != nil {
		return fmt.Errorf("keeping remembered peers: %w", err)
	}
	k.dirty = false
	return nil
}
