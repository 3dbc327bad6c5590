package hop

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

// SessionInfo is one session for status.
type SessionInfo struct {
	Session      string // the first 8 hex digits
	Head         p2p.PeerID
	Start, End   int
	Epoch        uint32
	Frames, Rows uint64
	Micros       uint64
	BytesIn      uint64
	BytesOut     uint64
}

// Sessions lists the sessions that are open, by id.
func (s *Server) Sessions() []SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	infos := make([]SessionInfo, 0, len(s.sessions))
	for _, ss := range s.sessions {
		p := ss.progress()
		infos = append(infos, SessionInfo{
			Session: hex.EncodeToString(ss.open.Session[:4]), Head: p2p.PeerID(ss.owner),
			Start: int(ss.open.Start), End: int(ss.open.End), Epoch: ss.open.Epoch,
			Frames: p.Frames, Rows: p.Rows, Micros: p.Micros, BytesIn: p.BytesIn, BytesOut: p.BytesOut,
		})
	}
	slices.SortFunc(infos, func(a, b SessionInfo) int { return strings.Compare(a.Session, b.Session) })
	return infos
}

// Evict drops the cache of the sessions whose hex id begins with prefix, or of all
// for "all", and says how many there were. The sessions stay open: their next step
// is a cache miss.
func (s *Server) Evict(prefix string) (int, error) {
	if prefix == "all" {
		return s.cfg.Cache.DropAll(), nil
	}
	if len(prefix) < 8 || len(prefix) > 32 || strings.Trim(prefix, "0123456789abcdef") != "" {
		return 0, fmt.Errorf("evict %q: give \"all\" or 8 to 32 hex digits of a session id", prefix)
	}
	s.mu.Lock()
	var ids []wire.SessionID
	for id := range s.sessions {
		if strings.HasPrefix(hex.EncodeToString(id[:]), prefix) {
			ids = append(ids, id)
		}
	}
	s.mu.Unlock()
	n := 0
	for _, id := range ids {
		n += s.cfg.Cache.Drop(id)
	}
	return n, nil
}
