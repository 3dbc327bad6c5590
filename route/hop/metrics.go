package hop

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshnet/meshnet/p2p/wire"
)

// counters are a Server's figures since its start.
type counters struct {
	opened, steps, rows, micros, repeats atomic.Uint64
	resent, refilled                     atomic.Uint64     // rows
	attested                             atomic.Uint64     // signed digests
	crowded                              atomic.Uint64     // streams reset because too many were there
	refused                              [32]atomic.Uint64 // by code
}

func (c *counters) refuse(code wire.Code) {
	if int(code) < len(c.refused) {
		c.refused[code].Add(1)
	}
}

var (
	descSessions = prometheus.NewDesc("meshnet_hop_sessions", "Sessions that are open on this peer.", nil, nil)
	descOpened   = prometheus.NewDesc("meshnet_hop_sessions_opened_total", "Sessions and epochs of sessions opened.", nil, nil)
	descParked   = prometheus.NewDesc("meshnet_hop_links_parked", "Links of the hop before that wait for their head, at most 64.", nil, nil)
	descWaiting  = prometheus.NewDesc("meshnet_hop_queue", "Steps that wait for the engine or are in it, at most one a session.", nil, nil)
	descSteps    = prometheus.NewDesc("meshnet_hop_steps_total", "Activation frames applied.", nil, nil)
	descRows     = prometheus.NewDesc("meshnet_hop_rows_total", "Rows computed.", nil, nil)
	descSeconds  = prometheus.NewDesc("meshnet_hop_compute_seconds_total", "Time spent computing them.", nil, nil)
	descRepeats  = prometheus.NewDesc("meshnet_hop_repeats_total", "Repeated steps answered from memory.", nil, nil)
	descKept     = prometheus.NewDesc("meshnet_hop_kept_bytes", "Output kept to feed a hop that takes the next one's place, at most KeepBytes.", nil, nil)
	descResent   = prometheus.NewDesc("meshnet_hop_rows_resent_total", "Kept rows given once more, not computed.", nil, nil)
	descRefilled = prometheus.NewDesc("meshnet_hop_rows_refilled_total", "Rows computed for this peer alone, in place of a hop that was lost.", nil, nil)
	descAttested = prometheus.NewDesc("meshnet_hop_attested_total", "Digests of sessions signed for heads that check.", nil, nil)
	descCrowded  = prometheus.NewDesc("meshnet_hop_crowded_total", "Streams reset before they said anything: too many of the peer, or of all.", nil, nil)
	descRefused  = prometheus.NewDesc("meshnet_hop_refused_total", "Openings and steps refused, by code.", []string{"code"}, nil)
)

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSessions, descOpened, descParked, descWaiting, descSteps, descRows, descSeconds, descRepeats, descKept, descResent, descRefilled, descAttested, descCrowded, descRefused} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	sessions, parked := len(s.sessions), s.parked.size()
	s.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(descSessions, float64(sessions))
	gauge(descParked, float64(parked))
	gauge(descWaiting, float64(s.loop.waiting.Load()))
	count(descOpened, float64(s.count.opened.Load()))
	count(descSteps, float64(s.count.steps.Load()))
	count(descRows, float64(s.count.rows.Load()))
	count(descSeconds, float64(s.count.micros.Load())/1e6)
	count(descRepeats, float64(s.count.repeats.Load()))
	gauge(descKept, float64(s.keep.bytes()))
	count(descResent, float64(s.count.resent.Load()))
	count(descRefilled, float64(s.count.refilled.Load()))
	count(descAttested, float64(s.count.attested.Load()))
	count(descCrowded, float64(s.count.crowded.Load()))
	for code := range s.count.refused {
		if n := s.count.refused[code].Load(); n > 0 {
			count(descRefused, float64(n), wire.Code(code).String())
		}
	}
}
