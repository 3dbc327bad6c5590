package api

import (
	"net/http"

	"github.com/meshnet/meshnet/node/head"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are the API's figures; recoveries are the mesh's own (head.Mesh). Peers are never labels: there may be any number.
type metrics struct {
	registry   *prometheus.Registry
	requests   *prometheus.CounterVec
	prompt     prometheus.Counter
	generated  prometheus.Counter
	firstToken prometheus.Histogram
	perToken   prometheus.Histogram
	hits       prometheus.Counter
	misses     prometheus.Counter
}

func newMetrics(reg *prometheus.Registry, g *gate) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "meshnet_head_" + name, Help: help})
	}
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "meshnet_head_" + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18), NativeHistogramBucketFactor: 1.1})
	}
	m := &metrics{
		registry:   reg,
		requests:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meshnet_api_requests_total", Help: "Completions by kind and HTTP status; 499 is a client that went away."}, []string{"kind", "status"}),
		prompt:     counter("prompt_tokens_total", "Tokens of prompts."),
		generated:  counter("generated_tokens_total", "Tokens of answers."),
		firstToken: histogram("first_token_seconds", "From a request's turn to its first token."),
		perToken:   histogram("token_seconds", "Mean time of a token after the first, an answer."),
		hits:       counter("cache_hits_total", "Steps that found their past in every hop's cache."),
		misses:     counter("cache_misses_total", "Cache misses that hops reported."),
	}
	active := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "meshnet_api_active_requests", Help: "Requests that generate."},
		func() float64 { a, _ := g.counts(); return float64(a) })
	queued := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "meshnet_api_queued_requests", Help: "Requests that wait for their turn."},
		func() float64 { _, q := g.counts(); return float64(q) })
	for _, c := range []prometheus.Collector{m.requests, m.prompt, m.generated, m.firstToken, m.perToken, m.hits, m.misses, active, queued} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) observe(r *head.Result) {
	m.prompt.Add(float64(len(r.PromptIDs)))
	m.generated.Add(float64(len(r.IDs)))
	if r.FirstToken > 0 {
		m.firstToken.Observe(r.FirstToken.Seconds())
	}
	if n := len(r.IDs) - 1; n > 0 && r.Decode > 0 {
		m.perToken.Observe(r.Decode.Seconds() / float64(n))
	}
	m.hits.Add(float64(r.Stats.Hits))
	m.misses.Add(float64(r.Stats.Misses))
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}
