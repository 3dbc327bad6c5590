package cache

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestMetrics(t *testing.T) {
	w := newWorld(t, 1, 1000)
	for _, line := range []string{"admit A 0 10 100", "acquire A 0 10", "release A 0 10", "acquire B 0 10", "admit C 0 10 70", "wait 10", "sweep", "admit D 0 10 30"} {
		w.do(line)
	}
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(w.s); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	for name, want := range map[string]float64{
		"meshnet_cache_sessions": 1, "meshnet_cache_sessions_max": 1, "meshnet_cache_bytes": 30, "meshnet_cache_bytes_max": 1000, "meshnet_cache_ttl_seconds": 10,
		"meshnet_cache_hits_total": 1, "meshnet_cache_misses_total": 1, "meshnet_cache_evictions_total": 1, "meshnet_cache_expirations_total": 1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
}
