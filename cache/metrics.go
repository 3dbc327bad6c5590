package cache

import "github.com/prometheus/client_golang/prometheus"

// metric is one number of Stats for Prometheus.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*Stats) float64
}

func metrics() []metric {
	gauge := func(name, help string, of func(*Stats) float64) metric {
		return metric{prometheus.NewDesc("meshnet_cache_"+name, help, nil, nil), prometheus.GaugeValue, of}
	}
	counter := func(name, help string, of func(*Stats) uint64) metric {
		return metric{prometheus.NewDesc("meshnet_cache_"+name+"_total", help, nil, nil), prometheus.CounterValue,
			func(s *Stats) float64 { return float64(of(s)) }}
	}
	return []metric{
		gauge("sessions", "Sessions held.", func(s *Stats) float64 { return float64(s.Sessions) }),
		gauge("sessions_max", "Sessions that fit.", func(s *Stats) float64 { return float64(s.MaxSessions) }),
		gauge("bytes", "Bytes held or reserved.", func(s *Stats) float64 { return float64(s.Bytes) }),
		gauge("bytes_max", "Bytes that fit.", func(s *Stats) float64 { return float64(s.MaxBytes) }),
		gauge("ttl_seconds", "Idle time after which a session is dropped.", func(s *Stats) float64 { return s.TTL.Seconds() }),
		counter("hits", "Steps that found their session's state.", func(s *Stats) uint64 { return s.Hits }),
		counter("misses", "Steps that did not, or found too little of it.", func(s *Stats) uint64 { return s.Misses }),
		counter("evictions", "Sessions dropped to make room.", func(s *Stats) uint64 { return s.Evictions }),
		counter("expirations", "Sessions dropped for being idle.", func(s *Stats) uint64 { return s.Expirations }),
	}
}

// Describe and Collect make a Store a prometheus.Collector.
func (s *Store) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range metrics() {
		ch <- m.desc
	}
}

// Collect sends the numbers of this moment.
func (s *Store) Collect(ch chan<- prometheus.Metric) {
	st := s.Stats()
	for _, m := range metrics() {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(&st))
	}
}
