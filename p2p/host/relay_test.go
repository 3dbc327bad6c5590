package host

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/peer"
	circuit "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/meshnet/meshnet/p2p"
)

// reach makes to reachable from from through a relay only, and gives it as a peer.
func reach(t *testing.T, via peer.AddrInfo, to *Host) p2p.Peer {
	t.Helper()
	var err error
	for range 50 { // the relay's service starts a moment after the relay
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err = circuit.Reserve(ctx, to.h, via)
		cancel()
		if err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p2p.Peer{ID: to.Self(), Addrs: []string{via.Addrs[0].String() + "/p2p/" + via.ID.String() + "/p2p-circuit"}}
}

func info(h *Host) peer.AddrInfo { return peer.AddrInfo{ID: h.h.ID(), Addrs: h.h.Addrs()} }

// A relay of ours carries activations.
func TestOwnRelay(t *testing.T) {
	r := start(t, func(c *Config) { c.Relay = true })
	a, b := start(t, nil), start(t, nil)
	limited := make(chan bool, 1)
	b.Handle(p2p.ActivationProtocol, func(ctx context.Context, s p2p.Stream) {
		limited <- s.Limited()
		echo(ctx, s)
	})
	to := reach(t, info(r), b)
	if err := call(t.Context(), a, to, p2p.ActivationProtocol); err != nil {
		t.Fatal(err)
	}
	if <-limited {
		t.Error("a circuit of our own relay is called limited")
	}
}

// A stranger's relay, with libp2p's limits, carries offers and no activations.
func TestLimitedRelay(t *testing.T) {
	stranger, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.DisableMetrics(), libp2p.ForceReachabilityPublic(),
		libp2p.EnableRelayService(relay.WithReservationAddressFilter(func(ma.Multiaddr) bool { return true })))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	a, b := start(t, nil), start(t, nil)
	limited := make(chan bool, 1)
	b.Handle(p2p.OfferProtocol, func(ctx context.Context, s p2p.Stream) {
		limited <- s.Limited()
		echo(ctx, s)
	})
	b.Handle(p2p.ActivationProtocol, func(_ context.Context, s p2p.Stream) {
		t.Error("an activation stream came over a limited circuit")
		s.Reset()
	})
	to := reach(t, peer.AddrInfo{ID: stranger.ID(), Addrs: stranger.Addrs()}, b)
	if err := call(t.Context(), a, to, p2p.OfferProtocol); err != nil {
		t.Fatal(err)
	}
	if !<-limited {
		t.Error("a limited circuit is not called limited")
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = a.Open(ctx, to, p2p.ActivationProtocol)
	if !errors.Is(err, p2p.ErrUnreachable) || !strings.Contains(err.Error(), "limited relay circuit") {
		t.Errorf("an activation stream over a limited circuit: %v", err)
	}
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("that took %v", d)
	}
}

// One head may have hundreds of sessions with one peer; libp2p's own limit is 64.
func TestManyStreamsToOnePeer(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	b.Handle(p2p.ActivationProtocol, echo)
	to := self(b)
	if err := a.Dial(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	const many = 300
	var wg sync.WaitGroup
	errs := make(chan error, many)
	var open []p2p.Stream
	for range many {
		s, err := a.Open(t.Context(), to, p2p.ActivationProtocol)
		if err != nil {
			t.Fatalf("stream %d: %v", len(open), err)
		}
		defer s.Reset()
		open = append(open, s)
	}
	for _, s := range open {
		wg.Go(func() {
			s.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := s.Write([]byte("x")); err != nil {
				errs <- err
				return
			}
			if _, err := s.Read(make([]byte, 1)); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
}

// Drop closes the connections that there are; the next Open dials anew, or takes the one that the other side has dialled since.
func TestDrop(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	b.Handle(p2p.OfferProtocol, echo)
	if err := call(t.Context(), a, self(b), p2p.OfferProtocol); err != nil {
		t.Fatal(err)
	}
	were := a.h.Network().Conns()
	if len(were) == 0 {
		t.Fatal("no connection to drop")
	}
	a.Drop(b.Self())
	for _, c := range were {
		if !c.IsClosed() {
			t.Errorf("%v is open after Drop", c)
		}
	}
	// Both may dial at once now, and both fail in that.
	eventually(t, "a reaches b again", func() bool { return call(t.Context(), a, self(b), p2p.OfferProtocol) == nil })
}
