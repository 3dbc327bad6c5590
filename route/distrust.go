package route

import (
	"slices"
	"time"
)

// dropLiar leaves a hop whose rows were found wrong, by this session or another of
// the head, before the next step. What it and those after it hold of the session is
// the caller's to take back: only rows before the Past of the step are believed.
func (s *Session) dropLiar(at time.Duration) ([]Action, bool) {
	i := slices.IndexFunc(s.route.Hops, func(h Hop) bool { return s.cfg.Bans.Liar(h.Peer.ID, at) })
	if i < 0 {
		return nil, false
	}
	liar := s.route.Hops[i].Peer.ID
	s.disturbed(at, Failure{Hop: i, Peer: liar}, "wrong rows")
	s.lose(at)
	acts := s.say(SayReroute, liar.Short()+" computes other rows than it should, looking for another route")
	return append(acts, s.plan(at)...), true
}
