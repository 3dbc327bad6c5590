package offer

import (
	"context"
	"fmt"
	"time"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// bucket bounds how often one peer may ask: an answer costs us signature checks.
type bucket struct {
	tokens  float64
	at      time.Time
	serving int // exchanges with it now
}

// serve answers one exchange.
func (s *Service) serve(ctx context.Context, st p2p.Stream) {
	if !s.begin(st.Remote()) {
		st.Reset()
		return
	}
	defer s.end(st.Remote())
	stop := context.AfterFunc(ctx, func() { st.Reset() })
	defer stop()
	st.SetDeadline(time.Now().Add(serveTimeout))
	if err := s.answer(st); err != nil {
		s.cfg.Logger.Debug("offer exchange failed", "peer", st.Remote().Short(), "err", err)
		st.Reset()
		return
	}
	st.Close()
}

// begin says whether an exchange with the peer may begin: there is room, for it and
// in all, and it does not ask too often. What began must end.
func (s *Service) begin(peer p2p.PeerID) bool {
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.asks[peer]
	switch {
	case s.serving >= serveAtOnce || b != nil && b.serving >= serveEach:
		return false
	case b == nil && len(s.asks) >= maxAsks:
		if now.Sub(s.forgot) >= time.Second { // not for each of a flood
			s.forgetAsks(now)
		}
		if len(s.asks) >= maxAsks {
			return false
		}
	}
	if b == nil {
		b = &bucket{tokens: askBurst}
		s.asks[peer] = b
	} else {
		b.tokens = min(b.tokens+asksPerSecond*now.Sub(b.at).Seconds(), askBurst)
	}
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	b.serving++
	s.serving++
	return true
}

func (s *Service) end(peer p2p.PeerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving--
	if b := s.asks[peer]; b != nil {
		b.serving--
	}
}

// forgetAsks drops the buckets that are full again. The lock is held.
func (s *Service) forgetAsks(now time.Time) {
	s.forgot = now
	for peer, b := range s.asks {
		if b.serving == 0 && now.Sub(b.at).Seconds()*asksPerSecond > askBurst {
			delete(s.asks, peer)
		}
	}
}

func (s *Service) answer(st p2p.Stream) error {
	f, err := wire.NewReader(st, wire.MaxOfferFrame).ReadFrame()
	if err != nil {
		return err
	}
	req, ok := f.(*wire.OfferRequest)
	if !ok {
		return fmt.Errorf("asked with a frame of kind %d", f.Kind())
	}
	answer := &wire.OfferAnswer{Network: s.cfg.Network}
	if req.Network == s.cfg.Network {
		answer.Offers = append(s.ownSigned(), s.others(req.Model, st.Remote())...)
	}
	if _, err := wire.WriteFrame(st, answer); err != nil {
		return err
	}
	if req.Network == s.cfg.Network {
		var h Heard
		s.learn(&h, req.Offers, st)
	}
	return nil
}

// others picks what an answer passes on. When there is more than fits, answers take
// turns, so that who asks again hears the rest.
func (s *Service) others(model wire.Fingerprint, asker p2p.PeerID) []wire.SignedOffer {
	all := s.table.signed(model, asker)
	room := wire.MaxOffersPerAnswer - 1
	if len(all) <= room {
		return all
	}
	s.mu.Lock()
	start := s.cursor % len(all)
	s.cursor += room
	s.mu.Unlock()
	return append(all[start:len(all):len(all)], all[:start]...)[:room]
}
