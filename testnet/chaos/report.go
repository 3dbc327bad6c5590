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
	Seed     uint64         `json:"seed"`
	Model    string         `json:"model"`
	Chats    int            `json:"chats"`
	Seconds  float64        `json:"seconds"`
	Schedule string         `json:"schedule"` // the same for the same flags
	Faults   int            `json:"faults"`
	ByKind   map[string]int `json:"faults_by_kind"`
	Skipped  int            `json:"skipped"` // faults that the mesh could not take
	Answers  int            `json:"answers"`
	Pieces   int            `json:"pieces"` // of text that the clients got
	Wrong    int            `json:"wrong"`
	Lost     int            `json:"lost"`
	Failures []string       `json:"failures,omitempty"`
	Trouble  []string       `json:"trouble,omitempty"` // nodes that did not do what they should

	// Recoveries by kind of fault. Those of chats that had no token yet are apart, since
	// they hold the rest of the prompt; so are those during which another fault struck.
	Recovery      map[string]Times `json:"recovery_ms"`
	WithoutReplay map[string]Times `json:"without_replay_ms"` // the same, less the time for computing rows again
	Noticed       map[string]Times `json:"noticed_ms"`        // the same, until the head knew
	Overlapping   map[string]Times `json:"overlapping_ms"`
	Prompt        map[string]Times `json:"prompt_ms"`
	OverGoal      []string         `json:"over_goal,omitempty"` // one line each: what the head did meanwhile

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

	Each []float64 `json:"each"` // rising, so that several runs can be put together
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
	for _, part := range []struct {
		name string
		of   map[string]Times
	}{
		{"from the fault to the next token", rep.Recovery}, {"of it not for computing again", rep.WithoutReplay}, {"of it until the head knew", rep.Noticed},
		{"while another fault struck", rep.Overlapping}, {"before the first token", rep.Prompt},
	} {
		if len(part.of) > 0 {
			fmt.Fprintf(w, "%s, ms:\n", part.name)
		}
		for _, kind := range slices.Sorted(maps.Keys(part.of)) {
			t := part.of[kind]
			fmt.Fprintf(w, "  %-8s n %4d  p50 %8.1f  p99 %8.1f  max %8.1f\n", kind, t.N, t.P50, t.P99, t.Max)
		}
	}
	for _, line := range rep.OverGoal {
		fmt.Fprintln(w, "over its goal:", line)
	}
	fmt.Fprintf(w, "at rest: %.1f %% CPU, goroutines %d -> %d, descriptors %d -> %d, %d sessions left; logs %.0f bytes/s\n",
		rep.IdleCPUPercent, rep.Goroutines[0], rep.Goroutines[1], rep.Descriptors[0], rep.Descriptors[1], rep.Sessions, rep.LogBytesPerS)
	for _, f := range append(rep.Failures, rep.Trouble...) {
		fmt.Fprintln(w, f)
	}
}
