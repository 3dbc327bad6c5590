package head

import "github.com/prometheus/client_golang/prometheus"

var (
	descSessions   = prometheus.NewDesc("meshnet_head_sessions", "Sessions of this head on the mesh.", nil, nil)
	descRecoveries = prometheus.NewDesc("meshnet_head_recoveries_total", "Disturbances that sessions survived, by cause.", []string{"cause"}, nil)
	descReplayed   = prometheus.NewDesc("meshnet_head_rows_replayed_total", "Rows computed again in recoveries.", nil, nil)
	descStandbys   = prometheus.NewDesc("meshnet_head_standbys", "Peers that stand by for hops of this head's sessions.", nil, nil)
	descShadowed   = prometheus.NewDesc("meshnet_head_standby_rows_total", "Rows that standbys were given.", nil, nil)
	descChecks     = prometheus.NewDesc("meshnet_head_checks_total", "Checks of hops' rows by other holders, by outcome.", []string{"outcome"}, nil)
	descRecovering = prometheus.NewDesc("meshnet_head_recovery_seconds_total", "Time from noticing a disturbance to the answer of the interrupted step.", nil, nil)
)

// tally is a Mesh's recoveries since its start, under Mesh.mu.
type tally struct {
	causes map[string]int
	rows   int
	ms     float64

	shadowed int // rows given to standbys
}

func (t *tally) add(r Recovery) {
	if t.causes == nil {
		t.causes = map[string]int{}
	}
	t.causes[r.Cause]++
	t.rows += r.RowsReplayed
	t.ms += r.Ms
}

// Describe implements prometheus.Collector.
func (m *Mesh) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSessions, descRecoveries, descReplayed, descRecovering, descStandbys, descShadowed, descChecks} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Mesh) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	ch <- prometheus.MustNewConstMetric(descSessions, prometheus.GaugeValue, float64(len(m.live)))
	for cause, n := range m.tally.causes {
		count(descRecoveries, float64(n), cause)
	}
	count(descReplayed, float64(m.tally.rows))
	count(descRecovering, m.tally.ms/1000)
	standing := 0
	for _, n := range m.standing {
		standing += n
	}
	ch <- prometheus.MustNewConstMetric(descStandbys, prometheus.GaugeValue, float64(standing))
	count(descShadowed, float64(m.tally.shadowed))
	count(descChecks, float64(m.verified.Agreed), "agreed")
	count(descChecks, float64(m.verified.Differed), "differed")
	count(descChecks, float64(m.verified.Skipped), "skipped")
}
