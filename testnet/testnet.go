// Package testnet runs a whole mesh of real meshnet processes on one machine, with
// a relay in front of every node, so that peers can be killed, frozen, restarted and
// evicted and links slowed, cut and healed while a real answer is being computed.
// Tests use it directly, the scripts beside it through cmd/testnet.
//
// It wants Linux: every node gets a loopback address of its own, 127.1.N.x.
// Invariant: no process outlives its Mesh, whatever ends it: Close, a failed Up, or
// the death of the process that called Up.
// Start reading at Up; what can be done to a node is in node.go, asking in head.go.
package testnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/meshnet/meshnet/testnet/relay"
)

// Config describes a mesh. Dir is required.
type Config struct {
	Dir      string        // everything is kept here; absent, empty, or of an earlier mesh that has ended
	Binary   string        // a meshnet binary; "": built from the module around the working directory
	Model    string        // any reference that --model takes; "": tiny
	Ranges   []string      // a node each, "0:12" or "auto", named n1, n2, ...; none: Nodes that overlap
	Nodes    int           // without Ranges; 0: 3
	Home     string        // data directory whose models are used; "": the person's own
	BasePort int           // node i is announced with port BasePort+i-1; 0: free ones
	Network  string        // "": a name that no other mesh has
	Threads  int           // a node; 0: 1
	Env      []string      // for every process, e.g. MESHNET_SHARD_CACHE_TTL_SECONDS=2
	Shape    relay.Shape   // of every link between nodes and heads, at the start
	Ready    time.Duration // that Up waits for all nodes to serve; 0: 60 s
	Seed     uint64        // of the links' jitter
	Log      func(format string, args ...any)
}

// Mesh is a running mesh.
type Mesh struct {
	Layers int // of the model

	cfg    Config
	home   string
	subnet byte
	locks  []io.Closer // of Dir and of the subnet
	relay  *relay.Relay
	procs  *starter

	making sync.Mutex // one head at a time: its address is the next after all others'

	mu    sync.Mutex
	nodes []*Node
	heads map[string]*Head
}

// marker is the file that says that a directory is ours to remove.
const marker = "testnet.json"

const (
	firstHead = 200 // heads are 127.1.N.200 and up, nodes 127.1.N.1 and up
	lastHead  = 250
	lockPort  = 47117
)

// Up starts a mesh and returns when every node serves and sees all others. After an
// error nothing is left running; the logs stay in Dir.
func Up(ctx context.Context, cfg Config) (*Mesh, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("testnet: %w", err)
	}
	m := &Mesh{cfg: cfg, home: filepath.Join(cfg.Dir, "home"), relay: relay.New(cfg.Seed), procs: newStarter(), heads: map[string]*Head{}}
	if err := m.up(ctx); err != nil {
		m.Close()
		return nil, fmt.Errorf("testnet: %w", err)
	}
	return m, nil
}

func (c *Config) complete() (err error) {
	if c.Dir == "" {
		return errors.New("no directory given")
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return err
	}
	if c.Model == "" {
		c.Model = "tiny"
	}
	if c.Nodes == 0 {
		c.Nodes = 3
	}
	if n := max(c.Nodes, len(c.Ranges)); n < 1 || n >= firstHead {
		return fmt.Errorf("%d nodes: 1 to %d are possible", n, firstHead-1)
	}
	if c.BasePort < 0 || c.BasePort > 65535-firstHead {
		return fmt.Errorf("base port %d: 0 for free ones, or 1 to %d", c.BasePort, 65535-firstHead)
	}
	if c.Network == "" {
		c.Network = fmt.Sprintf("testnet-%08x", rand.Uint32())
	}
	if c.Threads == 0 {
		c.Threads = 1
	}
	if c.Ready == 0 {
		c.Ready = 60 * time.Second
	}
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	return nil
}

func (m *Mesh) up(ctx context.Context) error {
	if err := m.prepareDir(); err != nil {
		return err
	}
	if err := m.takeSubnet(); err != nil {
		return err
	}
	if err := m.prepareBinary(ctx); err != nil {
		return err
	}
	if err := m.prepareModel(ctx); err != nil {
		return err
	}
	ranges := m.cfg.Ranges
	if len(ranges) == 0 {
		ranges = Overlapping(m.Layers, m.cfg.Nodes)
	}
	for _, r := range ranges {
		if _, err := m.addNode(r); err != nil {
			return err
		}
	}
	for _, n := range m.Nodes() {
		if err := n.start(); err != nil {
			return err
		}
	}
	return m.WaitReady(ctx)
}

// Overlapping spreads layers over nodes so that each holds about half more than its
// share, where there is room: any one of them may end an answer's hop early.
func Overlapping(layers, nodes int) []string {
	var ranges []string
	for i := range nodes {
		start, end := i*layers/nodes, (i+1)*layers/nodes
		if more := (end - start) / 2; i+1 < nodes {
			end = min(layers, end+more)
		}
		ranges = append(ranges, fmt.Sprintf("%d:%d", start, max(end, start+1)))
	}
	return ranges
}

// prepareDir makes Dir, or clears what an earlier mesh has left.
func (m *Mesh) prepareDir() error {
	if entries, err := os.ReadDir(m.cfg.Dir); err == nil && len(entries) > 0 {
		if err := Remove(m.cfg.Dir); err != nil {
			return err
		}
	}
	for _, d := range []string{m.cfg.Dir, m.home, filepath.Join(m.cfg.Dir, "logs"), filepath.Join(m.home, "nodes")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	lock, err := lockDir(m.cfg.Dir)
	if err != nil {
		return err
	}
	m.locks = append(m.locks, lock)
	return os.WriteFile(filepath.Join(m.cfg.Dir, marker), []byte("{}\n"), 0o600)
}

// ErrRunning: the directory belongs to a mesh that is up.
var ErrRunning = errors.New("a test mesh runs there")

// lockDir holds a directory until it is closed, or the process ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrRunning
		}
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return f, nil
}

// takeSubnet finds an N that no other mesh on this machine uses. The listener that
// it keeps is the lock.
func (m *Mesh) takeSubnet() error {
	h := fnv.New32a()
	h.Write([]byte(m.cfg.Dir))
	first := int(h.Sum32() % 250)
	var err error
	for i := range 250 {
		n := byte(1 + (first+i)%250)
		var l net.Listener
		if l, err = net.Listen("tcp", netip.AddrPortFrom(address(n, 254), lockPort).String()); err == nil {
			m.subnet, m.locks = n, append(m.locks, l)
			return nil
		}
	}
	return fmt.Errorf("no free addresses in 127.1.0.0/16 (this needs Linux): %w", err)
}

func address(subnet, host byte) netip.Addr { return netip.AddrFrom4([4]byte{127, 1, subnet, host}) }

// prepareModel fetches the model once, before the nodes would all want to, and
// learns its number of layers.
func (m *Mesh) prepareModel(ctx context.Context) error {
	if err := m.shareModels(ctx); err != nil {
		return err
	}
	m.cfg.Log("model %s", m.cfg.Model)
	out, err := m.Run(ctx, "model", "pull", "--json", m.cfg.Model)
	if err != nil {
		return fmt.Errorf("fetching the model: %w", err)
	}
	var pulled struct{ Models []struct{ Path string } }
	if err := json.Unmarshal(out.Stdout, &pulled); err != nil || len(pulled.Models) == 0 {
		return fmt.Errorf("meshnet model pull --json said %q", out.Stdout)
	}
	out, err = m.Run(ctx, "model", "show", "--json", m.cfg.Model)
	if err != nil {
		return fmt.Errorf("reading the model: %w", err)
	}
	var shown struct{ Shape struct{ Layers int } }
	if err := json.Unmarshal(out.Stdout, &shown); err != nil || shown.Shape.Layers == 0 {
		return fmt.Errorf("meshnet model show --json said %q", out.Stdout)
	}
	m.Layers = shown.Shape.Layers
	return nil
}

// shareModels lets the mesh's own home use the models of the person's.
func (m *Mesh) shareModels(ctx context.Context) error {
	home := m.cfg.Home
	if home == "" {
		// The binary knows where it keeps its models.
		cmd := exec.CommandContext(ctx, m.cfg.Binary, "model", "list", "--json")
		out, err := runCommand(cmd)
		if err != nil {
			return fmt.Errorf("finding the models of this machine: %w", err)
		}
		var list struct{ Home string }
		if err := json.Unmarshal(out.Stdout, &list); err != nil || list.Home == "" {
			return fmt.Errorf("meshnet model list --json said %q", out.Stdout)
		}
		home = list.Home
	}
	blobs := filepath.Join(home, "blobs")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return err
	}
	return os.Symlink(blobs, filepath.Join(m.home, "blobs"))
}

// WaitReady returns when every node that runs serves, and sees all of them do so.
func (m *Mesh) WaitReady(parent context.Context) error {
	ctx, cancel := context.WithTimeout(parent, m.cfg.Ready)
	defer cancel()
	for {
		why := m.ready(ctx)
		if why == nil {
			return nil
		}
		var dead *DeadError
		if errors.As(why, &dead) {
			return why
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			if parent.Err() != nil {
				return fmt.Errorf("stopped before the mesh was ready: %w", context.Cause(parent))
			}
			return fmt.Errorf("the mesh is not ready after %v: %w", m.cfg.Ready, why)
		}
	}
}

func (m *Mesh) ready(ctx context.Context) error {
	var running []*Node
	for _, n := range m.Nodes() {
		if n.Running() && !n.Frozen() {
			running = append(running, n)
		} else if n.wanted() {
			return &DeadError{Node: n.Name, Log: n.LogTail()}
		}
	}
	for _, n := range running {
		s, err := n.Status(ctx)
		if err != nil {
			return err
		}
		if s.Node.State != "online" {
			return fmt.Errorf("%s is %s", n.Name, s.Node.State)
		}
		online := map[string]bool{n.ID: true}
		for _, p := range s.Peers {
			online[p.Peer] = online[p.Peer] || p.State == "online"
		}
		for _, other := range running {
			if !online[other.ID] {
				return fmt.Errorf("%s does not see %s yet", n.Name, other.Name)
			}
		}
	}
	return nil
}

// DeadError: a node ended that nobody had killed.
type DeadError struct{ Node, Log string }

func (e *DeadError) Error() string {
	return fmt.Sprintf("%s has ended by itself; the end of its log:\n%s", e.Node, e.Log)
}

// Nodes is all nodes, in the order of their names.
func (m *Mesh) Nodes() []*Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]*Node(nil), m.nodes...)
}

// Node finds a node by its name, and nil if there is none.
func (m *Mesh) Node(name string) *Node {
	for _, n := range m.Nodes() {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Config is the mesh's, with every default filled in.
func (m *Mesh) Config() Config { return m.cfg }

// Links is every link that was used or changed.
func (m *Mesh) Links() []*relay.Link { return m.relay.Links() }

// Name is what a peer id is called here: a node, a head, or the id itself.
func (m *Mesh) Name(id string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.nodes {
		if n.ID == id {
			return n.Name
		}
	}
	for _, h := range m.heads {
		if h.ID == id {
			return h.Name
		}
	}
	return id
}

// Link is the cable between two nodes, or a node and a head, by name.
func (m *Mesh) Link(a, b string) *relay.Link { return m.relay.Link(a, b) }

// Add starts one more node and waits until it serves.
func (m *Mesh) Add(ctx context.Context, layers string) (*Node, error) {
	n, err := m.addNode(layers)
	if err != nil {
		return nil, err
	}
	if err := n.start(); err != nil {
		return nil, err
	}
	return n, n.WaitOnline(ctx)
}

// Prepare is Add without the start: Restart brings the node up.
func (m *Mesh) Prepare(layers string) (*Node, error) { return m.addNode(layers) }

// Close ends every process, at once, and the relay. It is safe to call again.
func (m *Mesh) Close() {
	m.procs.closeAll()
	m.relay.Close()
	for _, l := range m.locks {
		l.Close()
	}
}

// Remove deletes the directory of a mesh that has ended.
func Remove(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, marker)); err != nil {
		return fmt.Errorf("%s is no directory of a test mesh (it has no %s): remove it yourself, or name another", dir, marker)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	return os.RemoveAll(dir)
}

// TB is the part of *testing.T that Start needs.
type TB interface {
	Helper()
	Context() context.Context
	TempDir() string
	Cleanup(func())
	Logf(format string, args ...any)
	Fatal(args ...any)
	Failed() bool
}

// Start is Up for tests: the mesh lives in a directory of its own until the test
// ends; after a failure the ends of all logs are printed.
func Start(t TB, cfg Config) *Mesh {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "mesh")
	}
	m, err := Up(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		if t.Failed() {
			t.Logf("%s", m.LogTails())
		}
	})
	return m
}

// LogTails is the end of every log.
func (m *Mesh) LogTails() string {
	files, _ := filepath.Glob(filepath.Join(m.cfg.Dir, "logs", "*.log"))
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "--- %s\n%s\n", filepath.Base(f), Tail(f, 4<<10))
	}
	return b.String()
}
