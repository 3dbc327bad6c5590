package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/meshnet/meshnet/node/head"
)

// summary is the end of a demo: what the answer took, and what to try next.
func (s *show) summary(r *head.Report, same *bool, took time.Duration) {
	t := tabwriter.NewWriter(s.a.stdout, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintln(s.a.stdout)
	row("tokens", "%d in, %d out (ended by %s)", len(r.PromptIDs), len(r.IDs), r.FinishReason)
	row("time to first token", "%.0f ms", r.FirstTokenMs)
	row("speed", "%.1f tokens/s; the prompt at %.0f tokens/s", r.DecodeTokensPerS, r.PrefillTokensPerS)
	for i, h := range r.Route {
		row(fmt.Sprintf("hop %d", i), "peer %s, layers %d:%d, %.2f ms a token", tail(h.Peer), h.Start, h.End, h.MsPerToken)
	}
	row("on the wire", "%.0f bytes a token over all hops; a row between two hops is %d", r.BytesPerToken, 4*s.w.model.Info().Hidden)
	row("cache", "%d hits, %d misses", r.Cache.Hits, r.Cache.Misses)
	for _, v := range r.Recoveries {
		row("recovery", "%s at hop %d: %.0f ms, %d rows computed again", v.Cause, v.Hop, v.Ms, v.RowsReplayed)
	}
	for _, v := range r.Standbys {
		row("standby", "peer %s, layers %d:%d, %d rows, %d behind", tail(v.Peer), v.Start, v.End, v.Rows, v.Behind)
	}
	if k := r.Checks; k != nil {
		row("checks", "%d agreed, %d differed, %d not made", k.Agreed, k.Differed, k.Skipped)
	}
	if same != nil && *same {
		row("text", "the same as without the loss, byte for byte")
	}
	row("all in all", "%.1f s", took.Seconds())
	t.Flush()

	fmt.Fprintln(s.a.stdout, "\nnext:")
	t = tabwriter.NewWriter(s.a.stdout, 0, 0, 3, ' ', 0)
	if !s.Kill {
		fmt.Fprintln(t, "  meshnet demo --kill\tshoot a volunteer in the middle of the answer")
	}
	if s.Model != "qwen2.5-coder-0.5b" {
		fmt.Fprintln(t, "  meshnet demo --model qwen2.5-coder-0.5b\ta better model (478 MB)")
	}
	if !s.Keep {
		fmt.Fprintln(t, "  meshnet demo --keep\tleave the mesh up and talk to it")
	}
	fmt.Fprintln(t, "  meshnet join\tlend this machine to a real mesh")
	fmt.Fprintln(t, "  meshnet generate --prompt TEXT\tthe same model in one process, without a network")
	t.Flush()
}
