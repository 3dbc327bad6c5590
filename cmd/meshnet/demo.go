package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
	"github.com/meshnet/meshnet/node"
	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/shard/chat"
)

// demoCmd is the whole thing on one machine: a mesh of processes, a question, an
// answer, and what it took.
type demoCmd struct {
	modelFlag
	Prompt string `help:"What to ask." default:"Why is the sky blue?" placeholder:"TEXT"`
	systemFlag
	Nodes  int     `help:"Volunteers to start." default:"3" placeholder:"N"`
	Tokens int     `help:"Tokens of the answer at most." default:"120" placeholder:"N"`
	Temp   float32 `help:"Temperature; 0 always takes the most likely token." default:"0" placeholder:"T"`
	Seed   uint64  `help:"Seed of the random choice." default:"1" placeholder:"N"`
	Kill   bool    `help:"Kill a volunteer in the middle of the answer (one more stands by)."`
	cacheFlag
	standbyFlag
	verifyFlag
	Keep bool `help:"Leave the mesh up, with an API, until Ctrl-C."`
}

// Help is shown by --help.
func (demoCmd) Help() string {
	return `Examples:
  meshnet demo
  meshnet demo --kill --prompt "Tell me a story about a fox."
  meshnet demo --model qwen2.5-coder-0.5b --keep
  meshnet demo --model tiny        (needs no network; its text is nonsense)`
}

// Validate is called by kong.
func (d *demoCmd) Validate() error {
	if d.Nodes < 1 || d.Nodes > 32 || d.Tokens < 1 {
		return fmt.Errorf("--nodes %d --tokens %d: give 1 to 32 nodes and at least one token", d.Nodes, d.Tokens)
	}
	return nil
}

// Run shows it. Steps as a person sees them: model, mesh, route, answer, summary.
func (d *demoCmd) Run(a *app) (err error) {
	began := time.Now()
	w, err := a.openModel(d.Model)
	if err != nil {
		return err
	}
	defer w.model.Close()
	s := &show{a: a, demoCmd: d, w: w, layers: w.model.Info().Layers}
	if d.Nodes > s.layers {
		return usage("--nodes %d: %s has %d layers only", d.Nodes, w.Name, s.layers)
	}
	s.say("model    %s, %d layers, %s, SHA-256 %x…", w.Name, s.layers, blob.Bytes(w.Size), w.SHA256[:6])
	if w.Name == "tiny" {
		s.say("         made from a seed: the mesh is real, the text is nonsense")
	}
	defer s.stop()
	if err := s.mesh(); err != nil {
		return err
	}
	report, err := s.answer()
	if err != nil {
		return err
	}
	same, err := s.compare(report)
	if err != nil {
		return err
	}
	if a.json {
		err = printJSON(a.stdout, demoReport{report, same})
	} else {
		s.summary(report, same, time.Since(began))
	}
	if err == nil && d.Keep {
		err = s.keep()
	}
	if same != nil && !*same {
		return fail(exitDiffers, errors.New("the text differs from the undisturbed one: that is a bug, please report it"))
	}
	return err
}

// demoReport is what --json prints.
type demoReport struct {
	*head.Report
	SameText *bool `json:"same_as_undisturbed,omitempty"` // with --kill
}

// show is a demo under way.
type show struct {
	*demoCmd
	a       *app
	w       *weights
	layers  int
	network string
	first   string // address of the first volunteer
	nodes   []*volunteer
	heads   []*child
	victim  *volunteer
}

type volunteer struct {
	*child
	start, end int
	spare      bool
	status     node.Status
}

// say is a line for the person.
func (s *show) say(format string, args ...any) {
	fmt.Fprintln(s.a.stderr, printable(fmt.Sprintf(format, args...)))
}

// mesh starts the volunteers.
func (s *show) mesh() error {
	var id [3]byte
	rand.Read(id[:])
	s.network = fmt.Sprintf("demo-%x", id)
	s.sweep()
	for i := range s.Nodes {
		start, end := span(s.layers, s.Nodes, i)
		s.nodes = append(s.nodes, &volunteer{start: start, end: end})
	}
	if s.Kill {
		middle := s.nodes[s.Nodes/2]
		s.nodes = append(s.nodes, &volunteer{start: middle.start, end: middle.end, spare: true})
	}
	// The first one is where the others knock; from there the DHT does the rest.
	if err := s.join(0); err != nil {
		return err
	}
	var joining sync.WaitGroup
	errs := make([]error, len(s.nodes))
	for i := 1; i < len(s.nodes); i++ {
		joining.Go(func() { errs[i] = s.join(i) })
	}
	joining.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, v := range s.nodes {
		role := "volunteer"
		if v.spare {
			role = "stands by "
		}
		s.say("%s  pid %-7d peer %s  layers %d:%d", role, v.cmd.Process.Pid, tail(v.status.Node.Peer), v.start, v.end)
	}
	return nil
}

// span is the range of one of n volunteers: its share and a quarter more on both
// sides, so that ranges overlap and yet every one is needed.
func span(layers, n, i int) (start, end int) {
	lo, hi := i*layers/n, (i+1)*layers/n
	share := layers / n
	more := min(max(1, share/4), (share-1)/2) // 0 where shares are of one or two layers
	if n == 1 {
		more = 0
	}
	return max(0, lo-more), min(layers, hi+more)
}

func (s *show) join(i int) error {
	v := s.nodes[i]
	name := fmt.Sprintf("%s-%d", s.network, i+1)
	c, err := s.a.start("volunteer "+strconv.Itoa(i+1), "join", append(s.common(name), "--layers", fmt.Sprintf("%d:%d", v.start, v.end))...)
	if err != nil {
		return err
	}
	v.child = c
	if err := c.first(s.a.ctx, &v.status); err != nil {
		return err
	}
	if i == 0 && len(v.status.Node.Addrs) > 0 {
		s.first = v.status.Node.Addrs[0]
	}
	return nil
}

// common are the arguments of every node: the model by its file, so that nobody
// fetches anything, loopback only, and the demo's own mesh.
func (s *show) common(name string) []string {
	args := []string{"--json", "--model", s.Model, "--network", s.network, "--name", name, "--listen", "127.0.0.1:0", "--no-mdns", "--no-quic"}
	if s.a.threads > 0 {
		args = append(args, "--threads", strconv.Itoa(s.a.threads))
	}
	if s.first != "" {
		args = append(args, "--peer", s.first)
	}
	return args
}

// answer starts the head, shows what it says, and kills a volunteer if asked to.
func (s *show) answer() (*head.Report, error) {
	args := append(s.common(s.network+"-head"), "--events", "--cache-type", s.CacheType, "--standby="+strconv.FormatBool(s.Standby), "--verify", s.Verify, "--tokens", strconv.Itoa(s.Tokens),
		"--temp", strconv.FormatFloat(float64(s.Temp), 'g', -1, 32), "--seed", strconv.FormatUint(s.Seed, 10))
	if s.System != nil {
		args = append(args, "--system", *s.System)
	}
	if s.Kill && s.w.Name == "tiny" {
		args = append(args, "--pace", "10ms") // it would have ended before the shot
	}
	c, err := s.a.start("head", "chat", append(args, "--", s.Prompt)...)
	if err != nil {
		return nil, err
	}
	s.heads = append(s.heads, c)
	stopped := make(chan struct{})
	defer close(stopped)
	go func() {
		select {
		case <-s.a.ctx.Done():
			c.kill()
		case <-stopped:
		}
	}()
	s.say("head       pid %-7d asks: %s\n", c.cmd.Process.Pid, s.Prompt)
	text := &writer{}
	if !s.a.json {
		text.out = s.a.stdout
	}
	tokens, fresh := 0, true
	var route []head.HopReport
	for {
		var e event
		if err := c.next(&e); err != nil {
			if s.a.ctx.Err() != nil {
				return nil, s.a.ctx.Err()
			}
			if err == io.EOF {
				return nil, fail(c.exitCode(), c.failure(errors.New("ended without an answer")))
			}
			return nil, c.failure(err)
		}
		switch {
		case e.Report != nil:
			text.end()
			return e.Report, nil
		case e.Note != "":
			if len(e.Route) > 0 {
				route = e.Route
			}
			if !fresh && !s.a.json {
				fmt.Fprintln(s.a.stdout)
			}
			s.say("[%s]", e.Note)
			fresh = true
		default:
			fresh = false
			if err := text.emit(head.Delta{Text: e.Text}); err != nil {
				return nil, err
			}
			tokens += e.Tokens
			if s.Kill && s.victim == nil && tokens >= min(12, s.Tokens/2) {
				if err := s.shoot(route); err != nil {
					return nil, err
				}
				fresh = true
			}
		}
	}
}

// shoot kills the volunteer in the middle of the route.
func (s *show) shoot(route []head.HopReport) error {
	if len(route) == 0 {
		return errors.New("kill a volunteer: the route is not known")
	}
	peer := route[len(route)/2].Peer
	for i, v := range s.nodes {
		if v.status.Node.Peer == peer {
			s.victim = v
			if !s.a.json {
				fmt.Fprintln(s.a.stdout)
			}
			s.say("[kill -9 %d: volunteer %d, peer %s, is gone]", v.cmd.Process.Pid, i+1, tail(peer))
			v.kill()
			return nil
		}
	}
	return fmt.Errorf("kill a volunteer: peer %s is none of ours", tail(peer))
}

// compare runs the same request in this process, undisturbed.
func (s *show) compare(r *head.Report) (*bool, error) {
	if !s.Kill {
		return nil, nil
	}
	s.say("\n[the same in one process, undisturbed ...]")
	h, err := s.a.loadLocal(s.w, s.cache())
	if err != nil {
		return nil, err
	}
	defer h.close()
	req := head.Request{Messages: append(s.turns(s.w.SystemPrompt), chat.Message{Role: "user", Content: s.Prompt})}
	sampling := sampling{Tokens: s.Tokens, Temp: s.Temp, TopP: 1, RepeatPenalty: 1, Seed: s.Seed}
	sampling.apply(&req)
	res, err := h.Generate(s.a.ctx, req, nil)
	if err != nil {
		return nil, err
	}
	same := res.Text == r.Text && res.FinishReason == r.FinishReason && equal(res.IDs, r.IDs)
	if same {
		s.say("[and it is the same text, byte for byte: %d tokens]", len(res.IDs))
	} else {
		s.say("[and it is NOT the same text]\n%s", res.Text)
	}
	return &same, nil
}

func equal(a, b []int32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// keep leaves the mesh up with an API in front.
func (s *show) keep() error {
	c, err := s.a.start("head", "serve", append(s.common(s.network+"-head"), "--cache-type", s.CacheType, "--standby="+strconv.FormatBool(s.Standby), "--verify", s.Verify, "--port", "0")...)
	if err != nil {
		return err
	}
	s.heads = append(s.heads, c)
	var up struct{ URL string }
	if err := c.first(s.a.ctx, &up); err != nil {
		return err
	}
	home := ""
	if os.Getenv("MESHNET_HOME") != "" {
		home = "MESHNET_HOME=" + s.a.home + " "
	}
	s.say("\nthe mesh stays up until Ctrl-C. From another terminal:\n  curl %s/chat/completions -H 'Content-Type: application/json' -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n"+
		"  %smeshnet chat --model %s --network %s --no-mdns --peer %s\n  %smeshnet status --network %s", up.URL, home, s.Model, s.network, s.first, home, s.network)
	select {
	case <-s.a.ctx.Done():
	case <-c.ended:
		return c.failure(errors.New("ended"))
	}
	return nil
}

// stop ends every process and removes what they left in the data directory.
func (s *show) stop() {
	var stopping sync.WaitGroup
	for _, h := range s.heads { // first: volunteers then have no session to wait for
		stopping.Go(h.stop)
	}
	stopping.Wait()
	for _, v := range s.nodes {
		if v.child != nil {
			stopping.Go(v.stop)
		}
	}
	stopping.Wait()
	if s.network == "" {
		return
	}
	dirs, _ := filepath.Glob(filepath.Join(s.a.home, "nodes", s.network+"-*"))
	for _, d := range dirs {
		os.RemoveAll(d)
	}
}

// sweep removes what a demo that was killed could not: directories of demos in
// which no node lives any more.
func (s *show) sweep() {
	alive := map[string]bool{}
	for _, n := range node.Local(s.a.ctx, s.a.home) {
		alive[n.Node.Name] = true
	}
	dirs, _ := filepath.Glob(filepath.Join(s.a.home, "nodes", "demo-*"))
	for _, d := range dirs {
		if info, err := os.Stat(d); err == nil && time.Since(info.ModTime()) > time.Minute && !alive[filepath.Base(d)] {
			os.RemoveAll(d)
		}
	}
}
