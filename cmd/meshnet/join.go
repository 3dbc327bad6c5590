package main

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/cache/blob"
	"github.com/meshnet/meshnet/node"
	"github.com/meshnet/meshnet/node/machine"
)

// joinCmd lends this machine.
type joinCmd struct {
	modelFlag
	Layers string   `help:"Layers to serve: A:B (A to B-1), or auto: those that the mesh lacks most." default:"auto" placeholder:"A:B|auto"`
	Memory string   `help:"Memory for weights with --layers auto, e.g. 4GiB (default: half of what is free)." placeholder:"SIZE"`
	Nice   int      `help:"Nice level, 0 to 19: how far other processes of this machine go first." default:"5" placeholder:"N"`
	Pause  []string `help:"When to take no work: battery, busy (others keep the machine busy), both, or never." default:"battery" placeholder:"WHEN"`
	Busy   int      `help:"Percent of the machine's CPU time that others must have had over a minute for --pause busy." default:"50" placeholder:"PERCENT"`
	netFlags
}

// Help is shown by --help.
func (joinCmd) Help() string {
	return `Examples:
  meshnet join --model smollm2
  meshnet join --model smollm2 --layers 10:20 --peer /ip4/192.0.2.7/tcp/4001/p2p/12D3Koo...

The session cache is set by MESHNET_SHARD_CACHE_TTL_SECONDS, MESHNET_SHARD_CACHE_MAX_SESSIONS and
MESHNET_SHARD_CACHE_MAX_BYTES. A paused node keeps its layers and says that it drains; chats move to others and it comes back
by itself. Ctrl-C leaves politely within 30 s; a second Ctrl-C at once.`
}

// Run serves until it is stopped.
func (j *joinCmd) Run(a *app) error {
	j.tie(a)
	cfg := node.JoinConfig{Threads: a.threads}
	var err error
	if err := j.layers(&cfg); err != nil {
		return err
	}
	if err := j.manners(&cfg); err != nil {
		return err
	}
	if cfg.Cache, err = cache.FromEnv(os.Getenv); err != nil {
		return fail(exitUsage, err)
	}
	if cfg.Config, err = j.config(a, "volunteer"); err != nil {
		return err
	}
	w, err := a.openModel(j.Model)
	if err != nil {
		return err
	}
	defer w.model.Close()
	cfg.Weights, cfg.Model = w.model, w.info()
	if layers := cfg.Model.Layers; !cfg.Auto && (cfg.Start >= cfg.End || cfg.End > layers) {
		return usage("--layers %q: %s has %d layers, so give A:B with 0 <= A < B <= %d", j.Layers, w.Name, layers, layers)
	}
	cfg.Peers = append(cfg.Peers, a.neighbours(&j.netFlags)...)

	bar := newProgress(a)
	if cfg.Auto {
		bar.Note("looking for the layers that the mesh lacks most ...")
	}
	cfg.Chosen = func(start, end int, bytes int64) {
		bar.Start(fmt.Sprintf("loading layers %d to %d of %s", start, end-1, w.Name), bytes)
	}
	cfg.Progress = func(done, _ int64) { bar.At(done) }
	cfg.Serving = func(s node.Status) {
		bar.Done()
		a.serving(s)
	}
	cfg.Draining = func() {
		fmt.Fprintln(a.stderr, "leaving: no new sessions, waiting for those that run (again to leave at once)")
	}
	cfg.Paused = func(why string) {
		if why == "" {
			fmt.Fprintln(a.stderr, "serving again")
			return
		}
		fmt.Fprintf(a.stderr, "paused: %s; no new sessions until that is over\n", why)
	}
	if err := machine.Nice(j.Nice); err != nil {
		fmt.Fprintf(a.stderr, "meshnet: --nice: %v; going on without\n", err)
	}
	return startError(node.Run(a.ctx, cfg))
}

// manners reads --nice, --pause and --busy.
func (j *joinCmd) manners(cfg *node.JoinConfig) error {
	if j.Nice < 0 || j.Nice > 19 {
		return usage("--nice %d: give a level from 0 to 19", j.Nice)
	}
	if j.Busy < 1 || j.Busy > 99 {
		return usage("--busy %d: give a percentage from 1 to 99", j.Busy)
	}
	for _, when := range j.Pause {
		switch {
		case when == "battery":
			cfg.Pause.Battery = true
		case when == "busy":
			cfg.Pause.Busy = float64(j.Busy) / 100
		case when != "never" || len(j.Pause) > 1:
			return usage("--pause %q: give battery, busy, battery,busy or never", strings.Join(j.Pause, ","))
		}
	}
	return nil
}

// layers reads --layers and --memory.
func (j *joinCmd) layers(cfg *node.JoinConfig) (err error) {
	if j.Memory != "" {
		if cfg.Memory, err = cache.ParseBytes(j.Memory); err != nil || cfg.Memory <= 0 {
			return usage("--memory %q: give a size such as 4GiB or 512MiB", j.Memory)
		}
	}
	if j.Layers == "auto" {
		cfg.Auto = true
		return nil
	}
	from, to, ok := strings.Cut(j.Layers, ":")
	start, err1 := strconv.Atoi(from)
	end, err2 := strconv.Atoi(to)
	if !ok || err1 != nil || err2 != nil || start < 0 || start >= end {
		return usage("--layers %q: give A:B with A < B, for instance 10:20, or auto", j.Layers)
	}
	cfg.Start, cfg.End = start, end
	return nil
}

// serving says what this node serves, to whom, and how others reach it. With
// --json one object on stdout tells a script that the node is up.
func (a *app) serving(s node.Status) {
	if a.json {
		printJSON(a.stdout, s)
		return
	}
	fmt.Fprintf(a.stderr, "serving layers %d to %d of %s (%d layers, %s) to the mesh %q as %s\n",
		s.Shard.Start, s.Shard.End-1, s.Model.Name, s.Model.Layers, blob.Bytes(s.Shard.Bytes), s.Node.Network, s.Node.Peer)
	fmt.Fprintf(a.stderr, "%.2f ms a token here (%s kernels); cache: %d sessions, %s, %g s\n",
		float64(s.Shard.DecodeMicros)/1000, s.Shard.CPU, s.Cache.MaxSessions, blob.Bytes(s.Cache.MaxBytes), s.Cache.TTLSeconds)
	fmt.Fprintln(a.stderr, "others join this mesh with:")
	for _, addr := range telling(s.Node.Addrs) {
		fmt.Fprintf(a.stdout, "--peer %s\n", addr)
	}
}

// telling are the addresses worth a person's eyes: the best one, which comes
// first, and the first that is reachable from everywhere. status has all.
func telling(addrs []string) []string {
	if len(addrs) < 2 {
		return addrs
	}
	out := addrs[:1:1]
	for _, addr := range addrs {
		parts := strings.Split(addr, "/") // "", ip4, 192.0.2.7, tcp, 4001, p2p, ID
		if len(parts) < 3 {
			continue
		}
		ip, err := netip.ParseAddr(parts[2])
		if err == nil && ip.IsGlobalUnicast() && !ip.IsPrivate() {
			if addr != out[0] {
				out = append(out, addr)
			}
			break
		}
	}
	return out
}
