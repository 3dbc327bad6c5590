package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/meshnet/meshnet/testnet"
)

// Report is what --json prints.
type Report struct {
	Seed     uint64           `json:"seed"`
	Model    string           `json:"model"`
	Chats    int              `json:"chats"`
	Seconds  float64          `json:"seconds"`
	Schedule string           `json:"schedule"` // the same for the same flags
	Faults   int              `json:"faults"`
	ByKind   map[string]int   `json:"faults_by_kind"`
	Skipped  int              `json:"skipped"` // faults that the mesh could not take
	Answers  int              `json:"answers"`
	Pieces   int              `json:"pieces"` // of text that the clients got
	Wrong    int              `json:"wrong"`
	Lost     int              `json:"lost"`
	Failures []string         `json:"failures,omitempty"`
	Trouble  []string         `json:"trouble,omitempty"` // nodes that did not do what they should
	Recovery map[string]Times `json:"recovery_ms"`

	// After the last answer, of the process that does the most.
	IdleCPUPercent float64 `json:"idle_cpu_percent"`
	Goroutines     [2]int  `json:"goroutines"` // before the chats and after
	Descriptors    [2]int  `json:"descriptors"`
	Sessions       int     `json:"sessions_left"`
	LogBytesPerS   float64 `json:"log_bytes_per_s"` // while the chats ran
}

// Times are the recoveries of one kind, in ms from the fault to the next token of
// a client whose route used the victim. For kinds that should disturb nobody (drain,
// join) they are the longest silences of such clients within ten seconds.
type Times struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// watch is one client that a fault should disturb.
type watch struct {
	kind string
	at   time.Time
	chat *chat
}

// watch remembers the chats that a fault hits and says how many they are.
func (r *run) watch(f fault, at time.Time, uses map[*chat][]string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for c, route := range uses {
		if f.Kind == join || on(f, c.head, route) {
			r.watched = append(r.watched, watch{f.Kind, at, c})
			n++
		}
	}
	return n
}

const (
	// afterFault are the silences among which the one is that the fault made: a
	// token or two may have been on their way already.
	afterFault = 3
	// calm is how long a fault that should disturb nobody is watched.
	calm = 10 * time.Second
)

// recovery is the time from a fault to the token that ends the silence it made.
// It is false for an answer that ended or failed without one more.
func (w watch) recovery() (time.Duration, bool) {
	c := w.chat
	c.mu.Lock()
	defer c.mu.Unlock()
	i, _ := slices.BinarySearchFunc(c.tokens, w.at, time.Time.Compare)
	later := c.tokens[i:]
	if len(later) == 0 {
		return 0, false
	}
	gentle := w.kind == drain || w.kind == join
	last, longest, end := w.at, time.Duration(-1), time.Time{}
	if gentle && i > 0 {
		last = c.tokens[i-1]
	}
	for k, t := range later {
		if gentle && last.Sub(w.at) > calm || !gentle && k == afterFault {
			break
		}
		if t.Sub(last) > longest {
			longest, end = t.Sub(last), t
		}
		last = t
	}
	if gentle {
		return longest, true
	}
	return end.Sub(w.at), true
}

// measure fills in the recoveries.
func (rep *Report) measure(watched []watch) {
	by := map[string][]float64{}
	for _, w := range watched {
		if d, ok := w.recovery(); ok {
			by[w.kind] = append(by[w.kind], float64(d.Microseconds())/1000)
		}
	}
	for kind, ms := range by {
		slices.Sort(ms)
		at := func(p int) float64 { return ms[(len(ms)*p+99)/100-1] }
		rep.Recovery[kind] = Times{N: len(ms), P50: at(50), P99: at(99), Max: ms[len(ms)-1]}
	}
}

// before notes how things are before the first chat.
func (r *run) before() {
	r.report.Goroutines[0], r.report.Descriptors[0] = r.most("go_goroutines"), r.most("process_open_fds")
}

// most is the highest value of a gauge among the nodes.
func (r *run) most(gauge string) int {
	most := 0
	for _, h := range r.nodes {
		text, err := r.mesh.Node(h.Name).Metrics(context.Background())
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if v, ok := strings.CutPrefix(line, gauge+" "); ok {
				if f, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil {
					most = max(most, int(f))
				}
			}
		}
	}
	return most
}

// after lets the mesh come to rest and looks whether it does.
func (r *run) after(ctx context.Context, api *testnet.API) {
	pids := map[string]int{}
	var logs int64
	size := func(path string) {
		if info, err := os.Stat(path); err == nil {
			logs += info.Size()
		}
	}
	for _, h := range r.nodes {
		n := r.mesh.Node(h.Name)
		if !n.Running() {
			r.note(h.Name + " has ended by itself: " + testnet.Tail(n.LogPath(), 500))
			continue
		}
		pids[h.Name] = n.PID()
		size(n.LogPath())
	}
	if api != nil {
		pids[r.cfg.apiHead] = api.PID()
		size(api.LogPath())
	}
	r.report.LogBytesPerS = float64(logs) / r.report.Seconds
	wait := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	wait(3 * time.Second) // a session is freed within 2 s
	began, used := time.Now(), map[string]time.Duration{}
	for name, pid := range pids {
		used[name] = cpuTime(pid)
	}
	wait(4 * time.Second)
	for name, pid := range pids {
		busy := 100 * (cpuTime(pid) - used[name]).Seconds() / time.Since(began).Seconds()
		if busy > 5 {
			r.note(fmt.Sprintf("%s uses %.1f %% of a CPU with nothing to do", name, busy))
		}
		r.report.IdleCPUPercent = max(r.report.IdleCPUPercent, busy)
	}
	r.report.Goroutines[1], r.report.Descriptors[1] = r.most("go_goroutines"), r.most("process_open_fds")
	for _, h := range r.nodes {
		if s, err := r.mesh.Node(h.Name).Status(ctx); err == nil && len(s.Sessions) > 0 {
			r.report.Sessions += len(s.Sessions)
			r.note(fmt.Sprintf("%s keeps %d sessions that nobody uses", h.Name, len(s.Sessions)))
		}
	}
}

// cpuTime is what a process has used so far, 0 for none. A tick of the kernel is 10 ms.
func cpuTime(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	var ticks int64
	for _, s := range f[11:13] {
		n, _ := strconv.ParseInt(s, 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func (rep *Report) print(w io.Writer) {
	fmt.Fprintf(w, "\nseed %d, schedule %s, %.0f s, %d chats: %d faults (%d skipped), %d answers, %d wrong, %d lost\n",
		rep.Seed, rep.Schedule, rep.Seconds, rep.Chats, rep.Faults, rep.Skipped, rep.Answers, rep.Wrong, rep.Lost)
	for _, kind := range slices.Sorted(maps.Keys(rep.Recovery)) {
		t := rep.Recovery[kind]
		fmt.Fprintf(w, "  %-8s n %4d  p50 %8.1f ms  p99 %8.1f ms  max %8.1f ms\n", kind, t.N, t.P50, t.P99, t.Max)
	}
	fmt.Fprintf(w, "at rest: %.1f %% CPU, goroutines %d -> %d, descriptors %d -> %d, %d sessions left; logs %.0f bytes/s\n",
		rep.IdleCPUPercent, rep.Goroutines[0], rep.Goroutines[1], rep.Descriptors[0], rep.Descriptors[1], rep.Sessions, rep.LogBytesPerS)
	for _, f := range append(rep.Failures, rep.Trouble...) {
		fmt.Fprintln(w, f)
	}
}
