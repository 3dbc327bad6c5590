package node

import (
	"encoding/hex"
	"os"
	"slices"
	"time"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/shard/tensor"
)

// Status is what a node says of itself and of its view of the mesh.
type Status struct {
	Node     NodeStatus      `json:"node"`
	Model    *ModelStatus    `json:"model,omitempty"`
	Shard    *ShardStatus    `json:"shard,omitempty"`
	Peers    []PeerStatus    `json:"peers"` // that offer layers, this node among them
	Coverage []Span          `json:"coverage"`
	Holes    [][2]int        `json:"holes"`
	Route    *RouteStatus    `json:"route,omitempty"` // what a chat of this head would take
	Sessions []SessionStatus `json:"sessions"`
	Cache    *CacheStatus    `json:"cache,omitempty"`

	Recoveries []head.RecoveryReport `json:"recoveries,omitempty"` // of this head, the last ones
	Checks     *CheckStatus          `json:"checks,omitempty"`     // of a head
}

// NodeStatus says who the node is.
type NodeStatus struct {
	Name      string   `json:"name"`
	Role      string   `json:"role"`             // "volunteer", "head", "visitor"
	State     string   `json:"state"`            // that of the offer, or "paused"
	Paused    string   `json:"paused,omitempty"` // why
	Peer      string   `json:"peer"`
	Addrs     []string `json:"addrs"`
	Network   string   `json:"network"`
	Connected int      `json:"connected"`
	Version   string   `json:"version"`
	Kernels   string   `json:"kernels"`                // that this process computes with
	Note      string   `json:"kernels_note,omitempty"` // of better ones that the CPU has: why they are not used
	PID       int      `json:"pid"`
	UptimeS   float64  `json:"uptime_s"`
}

// ModelStatus names the model that the node is about.
type ModelStatus struct {
	Name        string `json:"name"`
	Fingerprint string `json:"fingerprint"`
	Layers      int    `json:"layers"`
}

// ShardStatus is what the node serves.
type ShardStatus struct {
	Start         int    `json:"start"`
	End           int    `json:"end"`
	Bytes         int64  `json:"bytes"`
	CPU           string `json:"cpu"`
	DecodeMicros  int64  `json:"decode_us"`
	PrefillMicros int64  `json:"prefill_us_per_row"`
}

// PeerStatus is one offer.
type PeerStatus struct {
	Peer          string   `json:"peer"`
	Model         string   `json:"model"` // fingerprint
	Layers        int      `json:"layers"`
	Start         int      `json:"start"`
	End           int      `json:"end"`
	State         string   `json:"state"`
	DecodeMicros  int64    `json:"decode_us"`
	PrefillMicros int64    `json:"prefill_us_per_row"`
	Sessions      int      `json:"sessions"`
	MaxSessions   int      `json:"max_sessions"`
	CacheFree     int64    `json:"cache_free_bytes"`
	CacheBytes    int64    `json:"cache_bytes"`
	RTTMicros     int64    `json:"rtt_us,omitempty"` // from this node
	AgeS          float64  `json:"age_s"`
	Version       string   `json:"version"`
	RelayOnly     bool     `json:"relay_only,omitempty"`
	Addrs         []string `json:"addrs"`
}

// Span is layers that the same number of peers offer.
type Span struct {
	Start int `json:"start"`
	End   int `json:"end"`
	Peers int `json:"peers"`
}

// RouteStatus is a planned route, or why there is none.
type RouteStatus struct {
	Hops        []HopStatus `json:"hops"`
	PredictedMs float64     `json:"predicted_ms_per_token"`
	Error       string      `json:"error,omitempty"`
}

// HopStatus is one hop of a planned route.
type HopStatus struct {
	Peer        string  `json:"peer"`
	Start       int     `json:"start"`
	End         int     `json:"end"`
	Star        bool    `json:"star,omitempty"`
	PredictedMs float64 `json:"predicted_ms"`
}

// SessionStatus is one open session, on a peer or of a head.
type SessionStatus struct {
	Session string `json:"session"` // the first 8 hex digits
	Head    string `json:"head"`
	Peer    string `json:"peer"` // who holds the layers
	Start   int    `json:"start"`
	End     int    `json:"end"`
	Epoch   int    `json:"epoch"`
	Frames  uint64 `json:"frames"`
	Rows    uint64 `json:"rows"`
	Micros  uint64 `json:"us"`
	// BytesIn and BytesOut are of frames, headers included.
	BytesIn  uint64 `json:"bytes_in"`
	BytesOut uint64 `json:"bytes_out"`
	// Standby: the peer is only kept ready by the head; it holds Rows and lacks Behind.
	Standby bool `json:"standby,omitempty"`
	Behind  int  `json:"behind,omitempty"`
}

// CheckStatus counts the checks that a head had others make of its hops' rows.
type CheckStatus struct {
	Agreed   int             `json:"agreed"`
	Differed int             `json:"differed"`
	Skipped  int             `json:"skipped"`
	Findings []FindingStatus `json:"findings,omitempty"` // the last ones
}

// FindingStatus is a check that came to other rows.
type FindingStatus struct {
	Session string    `json:"session"`
	Peers   []string  `json:"peers"` // left out since; several if it can't be told who was wrong
	Sure    bool      `json:"sure"`
	Start   int       `json:"start"`
	End     int       `json:"end"`
	Rows    int       `json:"rows"`
	At      time.Time `json:"at"`
	What    string    `json:"what"`
}

// CacheStatus is the settings of the session cache and its use.
type CacheStatus struct {
	TTLSeconds  float64          `json:"ttl_seconds"`
	MaxSessions int              `json:"max_sessions"`
	MaxBytes    int64            `json:"max_bytes"`
	Sessions    int              `json:"sessions"`
	Bytes       int64            `json:"bytes"`
	Hits        uint64           `json:"hits"`
	Misses      uint64           `json:"misses"`
	Evictions   uint64           `json:"evictions"`
	Expirations uint64           `json:"expirations"`
	Entries     []CacheRowStatus `json:"entries"`
}

// CacheRowStatus is one entry of the cache.
type CacheRowStatus struct {
	Session  string  `json:"session"`
	Start    int     `json:"start"`
	End      int     `json:"end"`
	Tokens   int     `json:"tokens"`
	Bytes    int64   `json:"bytes"`
	Reserved int64   `json:"reserved"`
	IdleS    float64 `json:"idle_s"`
	InUse    bool    `json:"in_use"`
}

// status is what any node knows; volunteers and heads add their part.
func (n *Node) status(role, state string) Status {
	kernels, _ := tensor.CPU() // a wrong MESHNET_CPU has failed long before, in whoever computes
	s := Status{
		Node: NodeStatus{
			Name: n.name, Role: role, State: state, Peer: string(n.Self()), Addrs: orNone(n.Addrs()), Network: n.cfg.Network,
			Connected: len(n.host.Connected()), Version: Version, Kernels: kernels, Note: tensor.CPUNote(), PID: os.Getpid(), UptimeS: time.Since(n.started).Seconds(),
		},
		Peers: []PeerStatus{}, Coverage: []Span{}, Holes: [][2]int{}, Sessions: []SessionStatus{},
	}
	m := n.cfg.Model
	known := n.Offers(wire.Fingerprint{})
	for _, o := range known {
		p := peerStatus(o)
		if d, ok := n.discover.RTT(p2p.PeerID(o.Peer)); ok {
			p.RTTMicros = d.Microseconds()
		}
		s.Peers = append(s.Peers, p)
	}
	slices.SortFunc(s.Peers, func(a, b PeerStatus) int {
		if a.Start != b.Start {
			return a.Start - b.Start
		}
		return a.End - b.End
	})
	if m.Fingerprint != (wire.Fingerprint{}) {
		s.Model = &ModelStatus{m.Name, hex.EncodeToString(m.Fingerprint[:]), m.Layers}
		mine := slices.DeleteFunc(slices.Clone(known), func(o wire.Offer) bool { return o.Model != m.Fingerprint })
		s.Coverage, s.Holes = coverage(m.Layers, mine)
	}
	return s
}

func peerStatus(o wire.Offer) PeerStatus {
	return PeerStatus{
		Peer: o.Peer, Model: hex.EncodeToString(o.Model[:]), Layers: int(o.Layers), Start: int(o.Start), End: int(o.End), State: o.State.String(),
		DecodeMicros: int64(o.DecodeMicros), PrefillMicros: int64(o.PrefillMicros), Sessions: int(o.Sessions), MaxSessions: int(o.MaxSessions),
		CacheFree: int64(o.CacheFree), CacheBytes: int64(o.CacheBytes), AgeS: time.Since(time.UnixMilli(o.Issued)).Seconds(),
		Version: o.Version, RelayOnly: o.RelayOnly, Addrs: orNone(o.Addrs),
	}
}

// coverage says how many peers that are online offer each layer, and which layers nobody offers.
func coverage(layers int, offers []wire.Offer) (spans []Span, holes [][2]int) {
	spans, holes = []Span{}, [][2]int{}
	count := func(layer int) (n int) {
		for _, o := range offers {
			if o.State == wire.Online && int(o.Start) <= layer && layer < int(o.End) {
				n++
			}
		}
		return n
	}
	for l := range layers {
		n := count(l)
		if last := len(spans) - 1; last >= 0 && spans[last].Peers == n {
			spans[last].End = l + 1
		} else {
			spans = append(spans, Span{l, l + 1, n})
		}
	}
	for _, s := range spans {
		if s.Peers == 0 {
			holes = append(holes, [2]int{s.Start, s.End})
		}
	}
	return spans, holes
}

// NewRouteStatus shapes a planned route.
func NewRouteStatus(r route.Route, err error) *RouteStatus {
	rs := &RouteStatus{Hops: []HopStatus{}, PredictedMs: float64(r.PredictedMicros()) / 1000}
	if err != nil {
		rs.Error = err.Error()
	}
	for _, h := range r.Hops {
		rs.Hops = append(rs.Hops, HopStatus{string(h.Peer.ID), h.Start, h.End, h.Star, float64(h.PredictedMicros) / 1000})
	}
	return rs
}

func sessionStatus(self string, infos []hop.SessionInfo) []SessionStatus {
	out := []SessionStatus{}
	for _, i := range infos {
		out = append(out, SessionStatus{
			Session: i.Session, Head: string(i.Head), Peer: self, Start: i.Start, End: i.End, Epoch: int(i.Epoch),
			Frames: i.Frames, Rows: i.Rows, Micros: i.Micros, BytesIn: i.BytesIn, BytesOut: i.BytesOut,
		})
	}
	return out
}

func cacheStatus(st cache.Stats) *CacheStatus {
	c := &CacheStatus{
		TTLSeconds: st.TTL.Seconds(), MaxSessions: st.MaxSessions, MaxBytes: st.MaxBytes, Sessions: st.Sessions, Bytes: st.Bytes,
		Hits: st.Hits, Misses: st.Misses, Evictions: st.Evictions, Expirations: st.Expirations, Entries: []CacheRowStatus{},
	}
	for _, r := range st.Rows {
		c.Entries = append(c.Entries, CacheRowStatus{r.Session, r.Start, r.End, r.Len, r.Bytes, r.Reserved, r.Idle.Seconds(), r.InUse})
	}
	return c
}

func orNone(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
