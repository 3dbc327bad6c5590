package testnet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Node is one volunteer: a `meshnet join` of its own.
type Node struct {
	Name   string
	ID     string // peer id
	Layers string // as given: "0:12", "auto"

	mesh *Mesh
	place

	mu     sync.Mutex
	proc   *process
	frozen bool
	want   bool // it is meant to run
}

// place is where a node or head is in the network.
type place struct {
	ip     netip.Addr
	listen netip.AddrPort // its own
	public netip.AddrPort // the relay's, which it announces
}

func multiaddr(a netip.AddrPort) string { return fmt.Sprintf("/ip4/%v/tcp/%d", a.Addr(), a.Port()) }

// flags are those of every verb that makes a node.
func (p place) flags(network, name string, peers []string) []string {
	args := []string{"--network", network, "--name", name, "--listen", multiaddr(p.listen), "--announce", multiaddr(p.public),
		"--dial-from", p.ip.String(), "--no-mdns", "--no-quic"}
	for _, peer := range peers {
		args = append(args, "--peer", peer)
	}
	return args
}

// place gives a new node or head an address and its relay.
func (m *Mesh) place(name string, host byte, port uint16) (place, error) {
	p := place{ip: address(m.subnet, host)}
	var err error
	if p.listen, err = freePort(p.ip); err != nil {
		return p, err
	}
	p.public, err = m.relay.Add(name, netip.AddrPortFrom(p.ip, port), p.listen)
	return p, err
}

// freePort finds a port on an address that nobody else has. It is below those that
// the kernel gives to connections, so it stays free while its node is down.
func freePort(ip netip.Addr) (netip.AddrPort, error) {
	const first, tries = 4001, 100
	var err error
	for port := uint16(first); port < first+tries; port++ {
		at := netip.AddrPortFrom(ip, port)
		var l net.Listener
		if l, err = net.Listen("tcp", at.String()); err == nil {
			return at, l.Close()
		}
	}
	return netip.AddrPort{}, err
}

func (m *Mesh) addNode(layers string) (*Node, error) {
	m.mu.Lock()
	host := len(m.nodes) + 1
	m.mu.Unlock()
	if host >= firstHead {
		return nil, fmt.Errorf("%d nodes are enough", host-1)
	}
	n := &Node{Name: fmt.Sprintf("n%d", host), Layers: layers, mesh: m}
	port := 0
	if m.cfg.BasePort > 0 {
		port = m.cfg.BasePort + host - 1
	}
	var err error
	if n.place, err = m.place(n.Name, byte(host), uint16(port)); err != nil {
		return nil, err
	}
	if n.ID, err = makeIdentity(filepath.Join(m.home, "nodes", n.Name)); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range m.nodes {
		m.Link(n.Name, other.Name).SetShape(m.cfg.Shape)
	}
	for name := range m.heads {
		m.Link(n.Name, name).SetShape(m.cfg.Shape)
	}
	m.nodes = append(m.nodes, n)
	return n, nil
}

// peers is the first few others: enough to begin with, the rest is for the DHT.
func (m *Mesh) peers(self string, most int) []string {
	var list []string
	for _, n := range m.Nodes() {
		if n.Name != self && len(list) < most {
			list = append(list, multiaddr(n.public)+"/p2p/"+n.ID)
		}
	}
	return list
}

const bootstraps = 2 // peers that a node is told of

func (n *Node) start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc != nil && n.proc.running() {
		return nil
	}
	m := n.mesh
	// Nodes of an experiment are all of this machine: none is to make room for the others.
	args := append([]string{"join", "-v", "--model", m.cfg.Model, "--layers", n.Layers, "--threads", strconv.Itoa(m.cfg.Threads), "--nice", "0", "--pause", "never"},
		n.flags(m.cfg.Network, n.Name, m.peers(n.Name, bootstraps))...)
	cmd := m.command(context.Background(), args...)
	m.cfg.Log("%s: meshnet %s", n.Name, strings.Join(args, " "))
	proc, err := m.procs.start(cmd, n.LogPath())
	if err != nil {
		return fmt.Errorf("%s: %w", n.Name, err)
	}
	n.proc, n.frozen, n.want = proc, false, true
	return nil
}

// signal sends one to the node's process.
func (n *Node) signal(s syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc == nil || !n.proc.running() {
		return fmt.Errorf("%s is not running", n.Name)
	}
	if err := n.proc.signal(s); err != nil {
		return fmt.Errorf("%s: %w", n.Name, err)
	}
	switch s {
	case syscall.SIGSTOP:
		n.frozen = true
	case syscall.SIGCONT:
		n.frozen = false
	default:
		n.want = false
	}
	return nil
}

// Kill ends the process with SIGKILL and waits for its end.
func (n *Node) Kill() error {
	if err := n.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-n.process().done
	return nil
}

// Freeze stops the process with SIGSTOP: it keeps its connections and says nothing.
func (n *Node) Freeze() error {
	if err := n.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	// The signal stops one thread after the other; until then it may still answer.
	for range 1000 {
		if stopped(n.PID()) {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("%s does not stop", n.Name)
}

// stopped says that every thread of a process stands still.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, t := range threads {
		if b, err := os.ReadFile(t); err == nil && !bytes.Contains(b, []byte(") T ")) {
			return false
		}
	}
	return len(threads) > 0
}

// Thaw lets a frozen process go on.
func (n *Node) Thaw() error { return n.signal(syscall.SIGCONT) }

// Stop asks the process to leave with SIGTERM and waits for its end, while it drains.
func (n *Node) Stop(ctx context.Context) error {
	if err := n.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-n.process().done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s has not left yet: %w", n.Name, ctx.Err())
	}
}

// Restart kills the process, if it runs, starts it again with the same identity,
// address and layers, and waits until it serves.
func (n *Node) Restart(ctx context.Context) error {
	if n.Running() {
		if err := n.Kill(); err != nil {
			return err
		}
	}
	if err := n.start(); err != nil {
		return err
	}
	return n.WaitOnline(ctx)
}

// WaitOnline returns when the node says that it serves.
func (n *Node) WaitOnline(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.mesh.cfg.Ready)
	defer cancel()
	for {
		s, err := n.Status(ctx)
		if err == nil && s.Node.State == "online" {
			return nil
		}
		if !n.Running() {
			return &DeadError{Node: n.Name, Log: n.LogTail()}
		}
		if err == nil {
			err = fmt.Errorf("%s is %s", n.Name, s.Node.State)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("not serving in time: %w", err)
		}
	}
}

// Evict drops the cache of one session, by the first hex digits of its id, or of
// "all", and says how many there were.
func (n *Node) Evict(ctx context.Context, session string) (int, error) {
	body, err := json.Marshal(map[string]string{"session": session})
	if err != nil {
		return 0, err
	}
	var out struct{ Evicted int }
	err = n.call(ctx, "POST", "/evict", bytes.NewReader(body), &out)
	return out.Evicted, err
}

// Pause makes the node take no work until Resume. Its sessions move to others, if there are any.
func (n *Node) Pause(ctx context.Context) error {
	var out struct{}
	return n.call(ctx, "POST", "/pause", nil, &out)
}

// Resume ends a Pause.
func (n *Node) Resume(ctx context.Context) error {
	var out struct{}
	return n.call(ctx, "POST", "/resume", nil, &out)
}

// Status is the part of a node's own status that tests look at.
type Status struct {
	Node struct {
		Name      string `json:"name"`
		State     string `json:"state"`
		Peer      string `json:"peer"`
		Connected int    `json:"connected"`
	} `json:"node"`
	Shard *struct {
		Start int `json:"start"`
		End   int `json:"end"`
	} `json:"shard"`
	Peers []struct {
		Peer  string `json:"peer"`
		Start int    `json:"start"`
		End   int    `json:"end"`
		State string `json:"state"`
	} `json:"peers"`
	Holes    [][2]int `json:"holes"`
	Sessions []struct {
		Session  string `json:"session"`
		Peer     string `json:"peer"` // who holds the layers
		Start    int    `json:"start"`
		End      int    `json:"end"`
		Epoch    int    `json:"epoch"`
		Frames   uint64 `json:"frames"`
		Rows     uint64 `json:"rows"`
		BytesIn  uint64 `json:"bytes_in"`
		BytesOut uint64 `json:"bytes_out"`
		Standby  bool   `json:"standby"` // in no route: a head keeps it ready
		Behind   int    `json:"behind"`  // rows that it lacks then
	} `json:"sessions"`
	Cache json.RawMessage `json:"cache"` // the settings and counts of the session cache

	Recoveries []Recovery `json:"recoveries"` // of a head, the last ones
}

// Status asks the node over its control socket.
func (n *Node) Status(ctx context.Context) (*Status, error) {
	var s Status
	return &s, n.call(ctx, "GET", "/status", nil, &s)
}

// Metrics is what the node says of itself to Prometheus, in its text form.
func (n *Node) Metrics(ctx context.Context) ([]byte, error) {
	var text []byte
	err := n.call(ctx, "GET", "/metrics", nil, &text)
	return text, err
}

// WaitRows returns when the node has computed that many rows for a session, ever.
func (n *Node) WaitRows(ctx context.Context, rows uint64) error {
	for {
		s, err := n.Status(ctx)
		if err == nil {
			for _, session := range s.Sessions {
				if session.Rows >= rows {
					return nil
				}
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s has not computed %d rows: %w", n.Name, rows, ctx.Err())
		}
	}
}

func (n *Node) call(ctx context.Context, method, path string, body io.Reader, out any) error {
	return n.mesh.call(ctx, n.Name, method, path, body, out)
}

// call asks a node or head over its control socket.
func (m *Mesh) call(ctx context.Context, name, method, path string, body io.Reader, out any) error {
	socket := filepath.Join(m.home, "nodes", name, "control.sock")
	if err := callSocket(ctx, socket, method, path, body, out); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// callSocket sends a request to a node's control socket, which is a link to a
// shorter path where its own would be too long.
func callSocket(ctx context.Context, socket, method, path string, body io.Reader, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if target, err := os.Readlink(socket); err == nil {
		socket = target
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://node"+path, body)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, bytes.TrimSpace(b))
	}
	switch out := out.(type) {
	case nil:
		return nil
	case *[]byte:
		*out = b
		return nil
	}
	return json.Unmarshal(b, out)
}

// Running says that the process has not ended. A frozen one runs.
func (n *Node) Running() bool {
	p := n.process()
	return p != nil && p.running()
}

// Frozen says that Freeze was called, and Thaw not yet.
func (n *Node) Frozen() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.frozen
}

// PID is the process's, or of the last one.
func (n *Node) PID() int {
	if p := n.process(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

func (n *Node) process() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proc
}

func (n *Node) wanted() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.want
}

// Addr is the multiaddr, with its peer id, by which others reach the node.
func (n *Node) Addr() string { return multiaddr(n.public) + "/p2p/" + n.ID }

// LogPath is where the process's output goes, over all restarts.
func (n *Node) LogPath() string { return filepath.Join(n.mesh.cfg.Dir, "logs", n.Name+".log") }

// LogTail is the last few kilobytes of the log.
func (n *Node) LogTail() string { return Tail(n.LogPath(), 4<<10) }

// Tail is the end of a file, or why it can't be read.
func Tail(path string, most int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		f.Seek(-most, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return string(b)
}
