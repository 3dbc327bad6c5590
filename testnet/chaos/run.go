package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/meshnet/meshnet/testnet"
)

// Config says what to run. Its flags are explained in command.
type Config struct {
	Seed                       uint64
	Duration, Every            time.Duration
	Chats, Processes           int
	Model                      string
	Copies, Spans              int
	Tokens, Context, Questions int
	Kinds                      []string
	Aim, Holes                 bool
	Binary, Dir, Home          string
	Patience                   time.Duration // with one answer; 0: 3 minutes and 0.1 s a token
	Log                        func(format string, args ...any)
	apiHead                    string
	chatHeads                  []string
}

const spares = 2 // that join and leave

func (c *Config) complete() error {
	if c.Chats < 1 || c.Copies < 1 || c.Spans < 1 || c.Tokens < 1 || c.Questions < 1 || c.Every <= 0 {
		return errors.New("chats, copies, spans, tokens, questions and every must be positive")
	}
	if c.Processes < 0 {
		c.Processes = c.Chats / 4
	}
	if c.Processes > c.Chats || c.Processes > 16 {
		return fmt.Errorf("%d chats as processes: at most all of the %d, and 16", c.Processes, c.Chats)
	}
	if c.Patience == 0 {
		c.Patience = 3*time.Minute + time.Duration(c.Tokens)*100*time.Millisecond
	}
	c.chatHeads = nil
	for i := range c.Processes {
		c.chatHeads = append(c.chatHeads, fmt.Sprintf("chat%d", i+1))
	}
	c.apiHead = "api"
	return nil
}

// ranges are the layers of the nodes n1, n2, ... over a model of so many.
func (c *Config) ranges(layers int) (nodes, spare []holder) {
	for range c.Copies {
		for i := range c.Spans {
			nodes = append(nodes, holder{fmt.Sprintf("n%d", len(nodes)+1), i * layers / c.Spans, (i + 1) * layers / c.Spans})
		}
	}
	for i := range spares {
		s := i % c.Spans
		spare = append(spare, holder{fmt.Sprintf("n%d", len(nodes)+i+1), s * layers / c.Spans, (s + 1) * layers / c.Spans})
	}
	return nodes, spare
}

// known are the models whose number of layers --dry needs no file for.
var known = map[string]int{"smollm2": 30, "tiny": 8, "qwen2.5-coder-0.5b": 24, "qwen2.5-coder-1.5b": 28}

func (c *Config) plan(layers int) plan {
	nodes, spare := c.ranges(layers)
	heads := slices.Clone(c.chatHeads)
	if c.Chats > c.Processes {
		heads = append(heads, c.apiHead)
	}
	return plan{Seed: c.Seed, Duration: c.Duration, Every: c.Every, Kinds: c.Kinds, Nodes: nodes, Spare: spare, Heads: heads, Holes: c.Holes}
}

func (c *Config) dry() error {
	if err := c.complete(); err != nil {
		return err
	}
	layers := known[c.Model]
	if layers == 0 {
		return fmt.Errorf("--dry knows the layers of few models, and not of %q", c.Model)
	}
	faults := c.plan(layers).schedule()
	for _, f := range faults {
		c.Log("%v", f)
	}
	c.Log("schedule %s", fingerprint(faults))
	return nil
}

// run is a Run in progress.
type run struct {
	cfg       Config
	mesh      *testnet.Mesh
	nodes     []holder
	questions []*question
	rand      *rand.Rand // for --aim
	started   time.Time

	mu      sync.Mutex
	live    map[*chat]bool
	away    map[string]int // faults that a node is under
	watched []watch
	struck  []struck
	report  Report
	undoing sync.WaitGroup
}

// Run starts a mesh, breaks it by the schedule while chats run, lets the chats
// end, looks whether the mesh comes to rest, and reports.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, live: map[*chat]bool{}, away: map[string]int{}, rand: rand.New(rand.NewPCG(cfg.Seed, 0x61696d))}
	r.questions = questions(cfg.Questions, cfg.Context, cfg.Tokens)
	if err := r.up(ctx); err != nil {
		return nil, err
	}
	defer r.mesh.Close()
	if err := r.alone(ctx); err != nil {
		return nil, err
	}
	url := ""
	var api *testnet.API
	if cfg.Chats > cfg.Processes {
		var err error
		if api, err = r.mesh.Serve(ctx, cfg.apiHead); err != nil {
			return nil, err
		}
		url = api.URL
	}
	faults := cfg.plan(r.mesh.Layers).schedule()
	r.report = Report{
		Seed: cfg.Seed, Model: cfg.Model, Chats: cfg.Chats, Schedule: fingerprint(faults),
		ByKind: map[string]int{},
	}
	r.before()

	asking, enough := context.WithCancel(ctx)
	defer enough()
	var askers sync.WaitGroup
	r.started = time.Now()
	for i := range cfg.Chats {
		a := &asker{r: r, head: cfg.apiHead, url: url, rand: rand.New(rand.NewPCG(cfg.Seed, uint64(i)))}
		if i < cfg.Processes {
			a.head, a.url = cfg.chatHeads[i], ""
		}
		askers.Go(func() { a.loop(asking, ctx) })
	}
	r.breakAll(ctx, faults)
	enough()
	askers.Wait()
	r.undoing.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r.report.Seconds = time.Since(r.started).Seconds()
	r.after(ctx, api)
	r.report.measure(r.watched, r.struck, r.started)
	return &r.report, nil
}

func (r *run) up(ctx context.Context) error {
	layers := known[r.cfg.Model]
	for range 2 { // a model that is not known says its layers only to a mesh
		nodes, _ := r.cfg.ranges(max(layers, r.cfg.Spans))
		var ranges []string
		for _, n := range nodes {
			ranges = append(ranges, fmt.Sprintf("%d:%d", n.Start, n.End))
		}
		m, err := testnet.Up(ctx, testnet.Config{
			Dir: r.cfg.Dir, Binary: r.cfg.Binary, Model: r.cfg.Model, Ranges: ranges, Home: r.cfg.Home, Seed: r.cfg.Seed, Ready: 90 * time.Second,
		})
		if err != nil {
			return err
		}
		if m.Layers == layers {
			r.mesh, r.nodes = m, nodes
			return nil
		}
		layers = m.Layers
		m.Close()
	}
	return errors.New("the model's number of layers changes")
}

// alone asks one process everything.
func (r *run) alone(ctx context.Context) error {
	r.cfg.Log("asking one process %d questions", len(r.questions))
	for _, q := range r.questions {
		want, err := r.mesh.Generate(ctx, q.Ask)
		if err != nil {
			return err
		}
		q.want = want
	}
	return nil
}

func (r *run) begin(c *chat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live[c] = true
}

// end judges an answer.
func (r *run) end(c *chat, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended, c.err = time.Now(), err
	r.report.Pieces += len(c.tokens)
	got := c.text.String()
	switch {
	case err != nil:
		r.report.Lost++
		r.failed(c, fmt.Sprintf("lost after %d pieces: %v", len(c.tokens), err))
	case got != c.q.want.Text || c.finish != c.q.want.FinishReason:
		r.report.Answers++
		r.report.Wrong++
		n := 0
		for n < min(len(got), len(c.q.want.Text)) && got[n] == c.q.want.Text[n] {
			n++
		}
		r.failed(c, fmt.Sprintf("wrong from byte %d on, %d of %d bytes, %s instead of %s", n, len(got), len(c.q.want.Text), c.finish, c.q.want.FinishReason))
	default:
		r.report.Answers++
	}
}

const keptFailures = 50

// failed remembers what went wrong. The lock is held.
func (r *run) failed(c *chat, what string) {
	line := fmt.Sprintf("%8.3fs %s %s (began %.3fs): %s", time.Since(r.started).Seconds(), c.head, c.session, c.began.Sub(r.started).Seconds(), what)
	r.cfg.Log("%s", line)
	if len(r.report.Failures) < keptFailures {
		r.report.Failures = append(r.report.Failures, line)
	}
}

// breakAll does the faults in order, each at its time or as soon as the mesh can
// take it.
func (r *run) breakAll(ctx context.Context, faults []fault) {
	for _, f := range faults {
		select {
		case <-time.After(time.Until(r.started.Add(f.At))):
		case <-ctx.Done():
			return
		}
		r.do(ctx, f)
	}
	select {
	case <-time.After(time.Until(r.started.Add(r.cfg.Duration))):
	case <-ctx.Done():
	}
}

// do makes one fault happen and sees to its end.
func (r *run) do(ctx context.Context, f fault) {
	if f.Kind == join {
		r.join(ctx, f)
		return
	}
	if r.cfg.Aim {
		r.aim(ctx, &f)
	}
	if r.needed(f) && !r.spared(ctx, f.Who, 30*time.Second) {
		r.skip(f, "the layers have no other holder")
		return
	}
	uses := r.uses(ctx)
	n := r.mesh.Node(f.Who)
	if !n.Running() || n.Frozen() && f.Kind != kill && f.Kind != restart {
		r.skip(f, "it is not there")
		return
	}
	r.hold(f.Who, 1)
	at := time.Now()
	undo, err := r.strike(ctx, f, n)
	if err != nil {
		r.hold(f.Who, -1)
		r.skip(f, err.Error())
		return
	}
	hit := r.watch(f, at, uses)
	r.mu.Lock()
	r.report.Faults++
	r.report.ByKind[f.Kind]++
	r.mu.Unlock()
	r.cfg.Log("%8.3fs %v, used by %d chats", at.Sub(r.started).Seconds(), strings.TrimSpace(f.String()), hit)
	r.undoing.Go(func() {
		defer r.hold(f.Who, -1)
		if err := undo(); err != nil && ctx.Err() == nil {
			r.note(fmt.Sprintf("%s after %s: %v", f.Who, f.Kind, err))
		}
	})
}

// strike does the harm at once and returns what mends it, later.
func (r *run) strike(ctx context.Context, f fault, n *testnet.Node) (undo func() error, err error) {
	pause := func() { // ends early with the run
		select {
		case <-time.After(f.For):
		case <-ctx.Done():
		}
	}
	switch f.Kind {
	case kill, restart:
		return func() error { pause(); return n.Restart(ctx) }, n.Kill()
	case freeze, suspend:
		return func() error { pause(); return n.Thaw() }, n.Freeze()
	case cut, hole:
		l := r.mesh.Link(f.With, f.Who)
		if f.Kind == cut {
			l.Cut()
		} else {
			l.Hole()
		}
		return func() error { pause(); l.Heal(); return nil }, nil
	case drain:
		left := make(chan error, 1)
		go func() {
			patient, cancel := context.WithTimeout(ctx, 45*time.Second) // a volunteer leaves within 30 s
			defer cancel()
			left <- n.Stop(patient)
		}()
		return func() error {
			if err := <-left; err != nil {
				return err
			}
			pause()
			return n.Restart(ctx)
		}, nil
	case evict:
		_, err := n.Evict(ctx, "all")
		return func() error { return nil }, err
	}
	return nil, fmt.Errorf("no fault %q", f.Kind)
}

// join lets a spare node come, and leave after a while.
func (r *run) join(ctx context.Context, f fault) {
	_, spare := r.cfg.ranges(r.mesh.Layers)
	i := slices.IndexFunc(spare, func(h holder) bool { return h.Name == f.Who })
	r.mu.Lock()
	busy := r.away[f.Who] > 0
	r.mu.Unlock()
	if busy {
		r.skip(f, "it has not left yet")
		return
	}
	r.hold(f.Who, 1)
	// Names are given in order, so an earlier spare is added first.
	for len(r.mesh.Nodes()) < len(r.nodes)+i {
		if _, err := r.mesh.Prepare(fmt.Sprintf("%d:%d", spare[0].Start, spare[0].End)); err != nil {
			r.skip(f, err.Error())
			return
		}
	}
	n := r.mesh.Node(f.Who)
	var err error
	if n == nil {
		n, err = r.mesh.Prepare(fmt.Sprintf("%d:%d", spare[i].Start, spare[i].End))
	}
	if err != nil {
		r.skip(f, err.Error())
		return
	}
	r.mu.Lock()
	r.report.Faults++
	r.report.ByKind[f.Kind]++
	r.mu.Unlock()
	r.cfg.Log("%8.3fs %v", time.Since(r.started).Seconds(), strings.TrimSpace(f.String()))
	r.undoing.Go(func() {
		defer r.hold(f.Who, -1)
		if err := n.Restart(ctx); err != nil {
			if ctx.Err() == nil {
				r.note(fmt.Sprintf("%s joining: %v", f.Who, err))
			}
			return
		}
		r.watch(f, time.Now(), r.uses(ctx))
		select {
		case <-time.After(f.For):
		case <-ctx.Done():
			return
		}
		at, uses := time.Now(), r.uses(ctx)
		r.watch(fault{Kind: drain, Who: f.Who}, at, uses)
		patient, cancel := context.WithTimeout(ctx, 45*time.Second)
		defer cancel()
		if err := n.Stop(patient); err != nil && ctx.Err() == nil {
			r.note(fmt.Sprintf("%s leaving: %v", f.Who, err))
		}
	})
}

func (r *run) hold(node string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away[node] += n
}

func (r *run) skip(f fault, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Skipped++
	r.cfg.Log("%8.3fs %v skipped: %s", time.Since(r.started).Seconds(), strings.TrimSpace(f.String()), why)
}

// note adds trouble that is not an answer's.
func (r *run) note(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line := fmt.Sprintf("%8.3fs %s", time.Since(r.started).Seconds(), what)
	r.cfg.Log("%s", line)
	r.report.Trouble = append(r.report.Trouble, line)
}

// needed says that a fault takes its victim's layers away.
func (r *run) needed(f fault) bool {
	between := f.With != "" && r.mesh.Node(f.With) != nil
	return f.Kind != evict && !between && !r.cfg.Holes
}

// spared waits until the layers of a node have another holder that serves.
func (r *run) spared(ctx context.Context, victim string, within time.Duration) bool {
	v := r.nodes[slices.IndexFunc(r.nodes, func(h holder) bool { return h.Name == victim })]
	for began := time.Now(); ctx.Err() == nil; {
		here := map[string]bool{}
		for _, h := range r.nodes {
			r.mu.Lock()
			free := r.away[h.Name] == 0
			r.mu.Unlock()
			if h.Name == victim || !free {
				continue
			}
			s, err := r.mesh.Node(h.Name).Status(ctx)
			here[h.Name] = err == nil && s.Node.State == "online"
		}
		if (plan{Nodes: r.nodes}).covered(v, func(name string) bool { return here[name] }) {
			return true
		}
		if time.Since(began) >= within {
			return false
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return false
}

// uses is which peers each live chat's route has, in order, by name.
func (r *run) uses(ctx context.Context) map[*chat][]string {
	r.mu.Lock()
	var chats []*chat
	heads := map[string]bool{}
	for c := range r.live {
		chats = append(chats, c)
		heads[c.head] = true
	}
	r.mu.Unlock()
	routes := map[string]map[string][]string{} // by head and session
	for name := range heads {
		h, err := r.mesh.Head(name)
		if err != nil {
			continue
		}
		s, err := h.Status(ctx)
		if err != nil {
			continue // a chat that has not started its head yet
		}
		routes[name] = map[string][]string{}
		for _, hop := range s.Sessions {
			if hop.Standby {
				continue
			}
			routes[name][hop.Session] = append(routes[name][hop.Session], r.mesh.Name(hop.Peer))
		}
	}
	out := map[*chat][]string{}
	for _, c := range chats {
		c.mu.Lock()
		session, process := c.session, c.head != r.cfg.apiHead
		c.mu.Unlock()
		for id, route := range routes[c.head] {
			if process || session != "" && strings.HasPrefix(session, id) {
				out[c] = route
			}
		}
	}
	return out
}

// on says that a route uses what a fault hits.
func on(f fault, head string, route []string) bool {
	i := slices.Index(route, f.Who)
	switch {
	case i < 0:
		return false
	case f.With == "" || f.With == head:
		return true
	}
	j := slices.Index(route, f.With)
	return j >= 0 && (i-j == 1 || j-i == 1)
}

// aim waits until a chat that has begun to answer uses a peer that can be spared, and
// turns the fault to that. If none comes, the schedule's stands.
func (r *run) aim(ctx context.Context, f *fault) {
	for began := time.Now(); time.Since(began) < 30*time.Second && ctx.Err() == nil; {
		for _, name := range r.targets(*f, r.uses(ctx)) {
			g := *f
			if with, who, link := strings.Cut(name, " "); link {
				g.With, g.Who = with, who
			} else {
				g.Who = name
			}
			if !r.needed(g) || r.spared(ctx, g.Who, 0) {
				*f = g
				return
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// targets are the nodes, or links as "end node", that chats use, in a random order.
func (r *run) targets(f fault, uses map[*chat][]string) []string {
	used := map[string]bool{}
	for c, route := range uses {
		if !c.answering() {
			continue
		}
		for i, name := range route {
			switch {
			case f.With == "", c.head == f.With:
				used[name] = true
			case r.mesh.Node(f.With) != nil && i > 0:
				used[route[i-1]+" "+name] = true
			}
		}
	}
	var able []string
	for name := range used {
		who := name[strings.LastIndexByte(name, ' ')+1:]
		r.mu.Lock()
		free := r.away[who] == 0
		r.mu.Unlock()
		if free && slices.ContainsFunc(r.nodes, func(h holder) bool { return h.Name == who }) {
			able = append(able, name)
		}
	}
	slices.Sort(able)
	r.rand.Shuffle(len(able), func(i, j int) { able[i], able[j] = able[j], able[i] })
	return able
}
