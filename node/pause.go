package node

import (
	"context"
	"sync"
	"time"

	"github.com/meshnet/meshnet/node/machine"
	"github.com/meshnet/meshnet/p2p/wire"
)

// pause is what speaks for taking no work: the machine's state, or somebody who asked for it. Anybody may change it;
// keepOffer follows.
type pause struct {
	changed chan struct{} // one token when there is something to follow; writer: set; reader: keepOffer

	mu      sync.Mutex
	asked   bool
	machine string // its reason
	present string // what is followed; "": no pause
}

func newPause() *pause { return &pause{changed: make(chan struct{}, 1)} }

// ask pauses, or takes that back, whatever the machine does.
func (p *pause) ask(asked bool) { p.set(func() { p.asked = asked }) }

func (p *pause) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	select {
	case p.changed <- struct{}{}:
	default: // keepOffer will see this too
	}
}

// next makes the present reason that which holds now.
func (p *pause) next() (was, now string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was, p.present = p.present, p.machine
	if p.asked {
		p.present = "as asked"
	}
	return was, p.present
}

func (p *pause) why() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.present
}

// end forgets the pause: the node leaves.
func (p *pause) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.present = ""
}

// look watches the machine until ctx ends. What it returns is closed then.
func (v *volunteer) look(ctx context.Context) <-chan struct{} {
	done := make(chan struct{})
	if v.cfg.Pause == (machine.Rules{}) {
		close(done)
		return done
	}
	go func() {
		defer close(done)
		looks := v.cfg.Looks
		if looks == nil {
			t := time.NewTicker(machine.LookEvery)
			defer t.Stop()
			looks = t.C
		}
		v.cfg.Machine.Run(ctx, v.cfg.Pause, looks, func(why string) {
			v.pause.set(func() { v.pause.machine = why })
		})
	}()
	return done
}

// follow makes the node what the reasons say. The offer is the caller's.
func (v *volunteer) follow() {
	was, now := v.pause.next()
	switch {
	case was == now:
		return
	case now == "":
		v.server.Resume()
		v.state.Store(int32(wire.Online))
		v.node.discover.Serve(v.cfg.Model.Fingerprint, v.cfg.Start, v.cfg.End)
	case was == "":
		v.state.Store(int32(wire.Draining))
		v.node.discover.Serve(v.cfg.Model.Fingerprint, 0, 0)
		v.server.Pause()
	}
	v.node.log.Info("pause", "why", now)
	if v.cfg.Paused != nil {
		v.cfg.Paused(now)
	}
}
