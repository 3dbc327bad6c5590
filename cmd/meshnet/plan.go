package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/meshnet/meshnet/cache/catalog"
	"github.com/meshnet/meshnet/node"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/shard"
)

// planCmd shows a route without taking it.
type planCmd struct {
	modelFlag
	Wait time.Duration `help:"How long to look for peers." default:"5s" placeholder:"TIME"`
	netFlags
}

// Help is shown by --help.
func (planCmd) Help() string {
	return `Example:
  meshnet plan --model smollm2 --peer /ip4/192.0.2.7/tcp/4001/p2p/12D3Koo...`
}

// Run plans.
func (p *planCmd) Run(a *app) error {
	c, err := p.visitor(a)
	if err != nil {
		return err
	}
	if c.Model, err = a.identify(p.Model); err != nil {
		return err
	}
	v, err := node.OpenVisitor(a.ctx, c)
	if err != nil {
		return startError(err)
	}
	defer v.Close()
	ctx, cancel := context.WithTimeout(a.ctx, p.Wait)
	defer cancel()
	r, err := v.Plan(ctx)
	if err != nil {
		return fail(exitNoRoute, fmt.Errorf("plan a route for %s: %w", c.Model.Name, err))
	}
	status := node.NewRouteStatus(r, nil)
	if a.json {
		return printJSON(a.stdout, status)
	}
	t := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "HOP\tPEER\tLAYERS\tPREDICTED")
	for i, h := range status.Hops {
		way := ""
		if h.Star {
			way = " (answers to the head)"
		}
		fmt.Fprintf(t, "%d\t%s\t%d:%d\t%.2f ms%s\n", i, h.Peer, h.Start, h.End, h.PredictedMs, way)
	}
	fmt.Fprintf(t, "\t\t\t%.2f ms a token, %.1f tokens/s\n", status.PredictedMs, 1000/max(status.PredictedMs, 1e-3))
	return t.Flush()
}

// visitor is a passing node's config.
func (f *netFlags) visitor(a *app) (node.Config, error) {
	c, err := f.config(a, "visitor")
	c.Peers = append(c.Peers, a.neighbours(f)...)
	c.Passing = true
	return c, err
}

// identify finds a model's fingerprint and number of layers in its file.
func (a *app) identify(ref string) (node.ModelInfo, error) {
	w, err := a.openModel(ref)
	if err != nil {
		return node.ModelInfo{}, err
	}
	defer w.model.Close()
	return w.info(), nil
}

// here is a model that is on this machine already; nothing is fetched.
func (a *app) here(ref string) (node.ModelInfo, bool) {
	list, store, err := a.openStore()
	if err != nil {
		return node.ModelInfo{}, false
	}
	l, ok, err := list.Lookup(store, ref)
	if err != nil || !ok {
		if m, known := list.Find(ref); known && m.SHA256 != (catalog.Hash{}) {
			return node.ModelInfo{Name: m.Name, Fingerprint: wire.Fingerprint(m.SHA256)}, true
		}
		return node.ModelInfo{}, false
	}
	m, err := shard.Open(l.Path)
	if err != nil {
		return node.ModelInfo{}, false
	}
	defer m.Close()
	return (&weights{l, m}).info(), true
}
