package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
	"github.com/meshnet/meshnet/node"
)

// statusCmd shows the mesh as this machine sees it.
type statusCmd struct {
	Model string `help:"Model whose coverage to show when no node runs here." default:"smollm2" env:"MESHNET_MODEL" placeholder:"MODEL"`
	Look  bool   `help:"Look at the mesh with a passing node, even if nodes run here."`
	netFlags
}

// Help is shown by --help.
func (statusCmd) Help() string {
	return `Examples:
  meshnet status
  meshnet status --json
  meshnet status --look --peer /ip4/192.0.2.7/tcp/4001/p2p/12D3Koo...

Asks the nodes that run on this machine; without any, looks at the mesh for a few seconds.`
}

// statusJSON is what --json prints.
type statusJSON struct {
	Nodes []node.Status `json:"nodes"` // of this machine
	View  node.Status   `json:"view"`  // of the mesh: the first node's, or a passing one's
}

// Run shows it.
func (s *statusCmd) Run(a *app) error {
	var out statusJSON
	out.Nodes = []node.Status{}
	if !s.Look {
		for _, n := range node.Local(a.ctx, a.home) {
			if n.Node.Network == s.Network && (s.Name == "" || s.Name == n.Node.Name) {
				out.Nodes = append(out.Nodes, n)
			}
		}
		if len(out.Nodes) == 0 && s.Name != "" {
			return fmt.Errorf("no node %q runs here in the mesh %q", s.Name, s.Network)
		}
	}
	if len(out.Nodes) > 0 {
		out.View = out.Nodes[0]
		for _, n := range out.Nodes {
			if n.Node.Role == "head" { // it knows the route
				out.View = n
				break
			}
		}
	} else {
		c, err := s.visitor(a)
		if err != nil {
			return err
		}
		c.Model, _ = a.here(s.Model)
		v, err := node.OpenVisitor(a.ctx, c)
		if err != nil {
			return startError(err)
		}
		out.View = v.Look(a.ctx)
		v.Close()
	}
	if a.json {
		return printJSON(a.stdout, out)
	}
	for _, n := range out.Nodes {
		printNode(a.stdout, n)
	}
	printView(a.stdout, out.View)
	return nil
}

func printNode(w io.Writer, n node.Status) {
	state := n.Node.State
	if n.Node.Paused != "" {
		state += " (" + n.Node.Paused + ")"
	}
	fmt.Fprintf(w, "%s  %s, %s, mesh %q, up %s, %d peers connected, %s kernels\n", n.Node.Name, n.Node.Role, state, n.Node.Network,
		time.Duration(n.Node.UptimeS*float64(time.Second)).Round(time.Second), n.Node.Connected, cmp.Or(kernels(n.Node.Kernels, n.Node.Note), "unknown"))
	if n.Shard != nil {
		fmt.Fprintf(w, "  serves layers %d:%d of %s, %s, %.2f ms a token\n", n.Shard.Start, n.Shard.End, n.Model.Name, blob.Bytes(n.Shard.Bytes), float64(n.Shard.DecodeMicros)/1000)
	}
	if c := n.Cache; c != nil {
		fmt.Fprintf(w, "  cache: %d of %d sessions, %s of %s, kept %g s; %d hits, %d misses, %d evicted, %d expired\n", c.Sessions, c.MaxSessions,
			blob.Bytes(c.Bytes), blob.Bytes(c.MaxBytes), c.TTLSeconds, c.Hits, c.Misses, c.Evictions, c.Expirations)
		for _, e := range c.Entries {
			fmt.Fprintf(w, "    session %s  layers %d:%d  %d tokens, %s, idle %.0f s\n", e.Session, e.Start, e.End, e.Tokens, blob.Bytes(e.Bytes), e.IdleS)
		}
	}
	for _, s := range n.Sessions {
		if s.Standby {
			fmt.Fprintf(w, "  session %s  layers %d:%d also at %s, standing by with %d rows, %d behind\n", s.Session, s.Start, s.End, tail(s.Peer), s.Rows, s.Behind)
			continue
		}
		fmt.Fprintf(w, "  session %s  layers %d:%d at %s, epoch %d, %d rows\n", s.Session, s.Start, s.End, tail(s.Peer), s.Epoch, s.Rows)
	}
	if k := n.Checks; k != nil && k.Agreed+k.Differed+k.Skipped > 0 {
		fmt.Fprintf(w, "  checks    %d agreed, %d differed, %d not made\n", k.Agreed, k.Differed, k.Skipped)
		for _, f := range k.Findings {
			fmt.Fprintf(w, "  finding   session %s: %s\n", f.Session, f.What)
		}
	}
	for _, addr := range n.Node.Addrs {
		fmt.Fprintf(w, "  --peer %s\n", addr)
	}
}

func printView(w io.Writer, s node.Status) {
	if len(s.Peers) == 0 {
		fmt.Fprintf(w, "nobody offers layers in the mesh %q; lend this machine with: meshnet join\n", s.Node.Network)
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PEER\tMODEL\tLAYERS\tSTATE\tMS/TOKEN\tRTT\tSESSIONS\tCACHE FREE\tAGE")
	for _, p := range s.Peers {
		rtt := "-"
		if p.RTTMicros > 0 {
			rtt = fmt.Sprintf("%.1f ms", float64(p.RTTMicros)/1000)
		}
		fmt.Fprintf(t, "%s\t%.8s\t%d:%d of %d\t%s\t%.2f\t%s\t%d/%d\t%s\t%.0f s\n", printable(tail(p.Peer)), p.Model, p.Start, p.End, p.Layers, p.State,
			float64(p.DecodeMicros)/1000, rtt, p.Sessions, p.MaxSessions, blob.Bytes(p.CacheFree), p.AgeS)
	}
	t.Flush()
	if s.Model == nil {
		return
	}
	var spans []string
	for _, c := range s.Coverage {
		spans = append(spans, fmt.Sprintf("%d:%d by %d", c.Start, c.End, c.Peers))
	}
	fmt.Fprintf(w, "%s: layers %s\n", s.Model.Name, cmp.Or(strings.Join(spans, ", "), "unknown"))
	if len(s.Holes) > 0 {
		fmt.Fprintf(w, "missing: %v\n", s.Holes)
	}
	if r := s.Route; r != nil && r.Error == "" {
		var hops []string
		for _, h := range r.Hops {
			hops = append(hops, fmt.Sprintf("%s %d:%d", tail(h.Peer), h.Start, h.End))
		}
		fmt.Fprintf(w, "route: %s, %.2f ms a token predicted\n", strings.Join(hops, " -> "), r.PredictedMs)
	} else if r != nil {
		fmt.Fprintf(w, "no route: %s\n", printable(r.Error))
	}
}

// tail is the form of a peer id for people.
func tail(peer string) string {
	if len(peer) <= 8 {
		return peer
	}
	return peer[len(peer)-8:]
}
