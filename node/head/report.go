package head

import "time"

// Report is a Result as `generate`, `chat` and `demo` print it with --json.
type Report struct {
	Model             string  `json:"model"`
	PromptIDs         []int32 `json:"prompt_ids"`
	IDs               []int32 `json:"ids"`
	Text              string  `json:"text"`
	FinishReason      string  `json:"finish_reason"`
	FirstTokenMs      float64 `json:"first_token_ms"`
	PrefillTokensPerS float64 `json:"prefill_tokens_per_s"`
	DecodeTokensPerS  float64 `json:"decode_tokens_per_s"`
	*MeshReport
}

// MeshReport is the part of a Report that only a mesh has.
type MeshReport struct {
	Session       string           `json:"session"`
	Route         []HopReport      `json:"route"`
	BytesPerToken float64          `json:"bytes_per_token"`
	Cache         CacheReport      `json:"cache"`
	Recoveries    []RecoveryReport `json:"recoveries"`
	Standbys      []StandbyReport  `json:"standbys,omitempty"`
	Checks        *ChecksReport    `json:"checks,omitempty"`
}

// HopReport is one hop of the last route.
type HopReport struct {
	Peer       string  `json:"peer"`
	Start      int     `json:"start"`
	End        int     `json:"end"`
	MsPerToken float64 `json:"ms_per_token"`
}

// StandbyReport is a peer that was kept ready to the end: how many rows it held and lacked.
type StandbyReport struct {
	Peer   string `json:"peer"`
	Start  int    `json:"start"`
	End    int    `json:"end"`
	Rows   int    `json:"rows"`
	Behind int    `json:"behind"`
}

// ChecksReport counts checks of hops' rows by other holders.
type ChecksReport struct {
	Agreed   int `json:"agreed"`
	Differed int `json:"differed"`
	Skipped  int `json:"skipped"`
}

// CacheReport counts steps that found what they needed on the peers, and those that did not.
type CacheReport struct {
	Hits   int `json:"hits"`
	Misses int `json:"misses"`
}

// RecoveryReport is one thing that went wrong and was mended. Hop counts from 0; -1 is unknown.
type RecoveryReport struct {
	Session      string    `json:"session,omitempty"` // where there are several
	Cause        string    `json:"cause"`
	Hop          int       `json:"hop"`
	At           time.Time `json:"at,omitzero"` // noticed
	Ms           float64   `json:"ms"`
	RowsReplayed int       `json:"rows_replayed"`
	ReplayMs     float64   `json:"replay_ms,omitempty"` // of ms
	Trace        string    `json:"trace,omitempty"`     // what was done, with ms since the first failure
}

// NewRecoveryReport shapes a Recovery.
func NewRecoveryReport(r Recovery) RecoveryReport {
	return RecoveryReport{Cause: r.Cause, Hop: r.Hop, At: r.At, Ms: r.Ms, RowsReplayed: r.RowsReplayed, ReplayMs: r.ReplayMs, Trace: r.Trace}
}

// NewReport shapes a Result. mesh says whether it went through a mesh.
func NewReport(model string, r *Result, mesh bool) Report {
	rep := Report{
		Model:             model,
		PromptIDs:         orEmpty(r.PromptIDs),
		IDs:               orEmpty(r.IDs),
		Text:              r.Text,
		FinishReason:      r.FinishReason,
		FirstTokenMs:      float64(r.FirstToken) / float64(time.Millisecond),
		PrefillTokensPerS: r.PrefillRate(),
		DecodeTokensPerS:  r.DecodeRate(),
	}
	if mesh {
		rep.MeshReport = meshReport(r)
	}
	return rep
}

func meshReport(r *Result) *MeshReport {
	st := r.Stats
	m := &MeshReport{
		Session:       SessionHex(r.Session),
		Route:         []HopReport{},
		BytesPerToken: st.BytesPerToken,
		Cache:         CacheReport{Hits: st.Hits, Misses: st.Misses},
		Recoveries:    []RecoveryReport{},
	}
	for _, h := range st.Route {
		m.Route = append(m.Route, HopReport{Peer: h.Peer, Start: h.Start, End: h.End, MsPerToken: h.MsPerToken})
	}
	for _, v := range st.Recoveries {
		m.Recoveries = append(m.Recoveries, NewRecoveryReport(v))
	}
	if st.Verified != (VerifyStat{}) {
		m.Checks = &ChecksReport{st.Verified.Agreed, st.Verified.Differed, st.Verified.Skipped}
	}
	for _, s := range st.Standbys {
		m.Standbys = append(m.Standbys, StandbyReport(s))
	}
	return m
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
