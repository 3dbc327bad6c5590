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
	tokens float64
	at     time.Time
}

// serve answers one exchange.
func (s *Service) serve(ctx context.Context, st p2p.Stream) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		st.Reset()
		return
	}
	if !s.mayAsk(st.Remote()) {
		st.Reset()
		return
	}
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

func (s *Service) mayAsk(peer p2p.PeerID) bool {
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.asks[peer]
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
	return true
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
		s.learn(&h, req.Offers, st.Remote())
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
