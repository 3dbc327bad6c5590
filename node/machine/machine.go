// Package machine reads how busy the machine is, what feeds it and how many cores it has for us, and decides when a
// volunteer lends it and when not.
//
// Invariant: what is not known never pauses a node.
// Start reading at Watch.Step.
package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Machine is a machine as the files of a Linux system tell it. The zero value is this one. On other systems nothing is known.
type Machine struct{ root string }

// At is the machine whose files are under the directory root.
func At(root string) Machine { return Machine{root} }

func (m Machine) path(path string) string { return filepath.Join("/", m.root, path) }

// Power is what feeds the machine.
type Power int

const (
	PowerUnknown Power = iota
	Mains
	Battery
)

func (p Power) String() string { return [...]string{"unknown", "mains", "battery"}[p] }

// Sample is a look at the machine.
type Sample struct {
	// CPU time since boot, in ticks of the system: of all cores, and what processes other than this one had of it.
	Total, Others uint64
	CPUKnown      bool
	Power         Power
}

// Sample looks.
func (m Machine) Sample() Sample {
	s := Sample{Power: m.Power()}
	total, busy, err := m.cpu()
	if err != nil {
		return s
	}
	own, err := m.own()
	if err != nil {
		return s
	}
	s.Total, s.Others, s.CPUKnown = total, busy-min(busy, own), true
	return s
}

// cpu reads the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; guests are within user.
func (m Machine) cpu() (total, busy uint64, err error) {
	line, err := m.read("proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ = strings.Cut(line, "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return 0, 0, fmt.Errorf("/proc/stat begins with %.80q", line)
	}
	const idle, iowait, steal = 3, 4, 7
	for i, s := range f[1:9] {
		v, err := strconv.ParseUint(s, 10, 56)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat: %w", err)
		}
		total += v
		if i != idle && i != iowait && i != steal {
			busy += v
		}
	}
	return total, busy, nil
}

// own reads this process's time, in the ticks of /proc/stat.
func (m Machine) own() (uint64, error) {
	s, err := m.read("proc/self/stat")
	if err != nil {
		return 0, err
	}
	const user = 11 // fields after the name, which may hold anything but ends with the last bracket
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < user+2 {
		return 0, fmt.Errorf("/proc/self/stat has %d fields", len(f))
	}
	u, err1 := strconv.ParseUint(f[user], 10, 56)
	k, err2 := strconv.ParseUint(f[user+1], 10, 56)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("/proc/self/stat: times %q and %q", f[user], f[user+1])
	}
	return u + k, nil
}

// Power looks at what feeds the machine. A machine without any battery is on mains; one that lists no supplies is unknown.
func (m Machine) Power() Power {
	dir := m.path("sys/class/power_supply")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return PowerUnknown
	}
	var mainsOn, mainsOff, usbOn, battery, discharging, holding bool
	for _, e := range entries {
		attr := func(name string) string {
			b, _ := os.ReadFile(filepath.Join(dir, e.Name(), name))
			return strings.TrimSpace(string(b))
		}
		if attr("scope") == "Device" { // of a mouse or a headset
			continue
		}
		switch attr("type") {
		case "Mains":
			on := attr("online") == "1"
			mainsOn, mainsOff = mainsOn || on, mainsOff || !on
		case "USB":
			usbOn = usbOn || attr("online") == "1"
		case "Battery", "UPS":
			battery = true
			status := attr("status")
			discharging = discharging || status == "Discharging"
			holding = holding || status == "Charging" || status == "Full" || status == "Not charging"
		}
	}
	switch {
	case mainsOn:
		return Mains
	case discharging:
		return Battery
	case usbOn, holding:
		return Mains
	case battery && mainsOff:
		return Battery
	case !battery && len(entries) > 0:
		return Mains
	}
	return PowerUnknown
}

// Threads is how many threads are worth computing with: the cores that this process may use, counted once where they run two
// threads each, and no more than most (GOMAXPROCS, which knows affinity and most quotas) or the quota of its control group.
func (m Machine) Threads(most int) int {
	n := most
	if cores := m.cores(); cores > 0 {
		n = min(n, cores)
	}
	if quota := m.quota(); quota > 0 {
		n = min(n, int(quota))
	}
	return max(n, 1)
}

// cores counts the physical cores among the allowed processors; 0: not known.
func (m Machine) cores() int {
	status, err := m.read("proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, ok := strings.Cut(status, "\nCpus_allowed_list:")
	if !ok {
		return 0
	}
	list, _, _ := strings.Cut(rest, "\n")
	seen := map[string]bool{}
	for _, cpu := range cpuList(strings.TrimSpace(list)) {
		siblings, err := m.read(fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
		if err != nil {
			return 0
		}
		seen[strings.TrimSpace(siblings)] = true
	}
	return len(seen)
}

const maxCPUs = 1 << 13 // that Linux can have

// cpuList reads "0-3,8"; nil if it is none.
func cpuList(s string) []int {
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, err1 := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil || a < 0 || b < a || b >= maxCPUs {
			return nil
		}
		for i := a; i <= b; i++ {
			out = append(out, i)
		}
	}
	return out
}

// quota is the cores' worth of time that the process's control group (version 2) and those above it allow; 0: no limit known.
func (m Machine) quota() float64 {
	groups, err := m.read("proc/self/cgroup")
	if err != nil {
		return 0
	}
	least := 0.0
	for line := range strings.Lines(groups) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for dir := filepath.Clean("/" + path); ; dir = filepath.Dir(dir) {
			if q := m.groupQuota(dir); q > 0 && (least == 0 || q < least) {
				least = q
			}
			if dir == "/" {
				break
			}
		}
	}
	return least
}

func (m Machine) groupQuota(dir string) float64 {
	s, err := m.read(filepath.Join("sys/fs/cgroup", dir, "cpu.max"))
	if err != nil {
		return 0
	}
	f := strings.Fields(s) // "max 100000" or "150000 100000"
	if len(f) != 2 {
		return 0
	}
	quota, err1 := strconv.ParseUint(f[0], 10, 56)
	period, err2 := strconv.ParseUint(f[1], 10, 56)
	if err1 != nil || err2 != nil || period == 0 {
		return 0
	}
	return float64(quota) / float64(period)
}

func (m Machine) read(path string) (string, error) {
	b, err := os.ReadFile(m.path(path))
	return string(b), err
}

// Rules say when a volunteer pauses. The zero value: never.
type Rules struct {
	Battery bool
	// Busy: other processes had more than this share of the machine's CPU time over BusyWindow; 0: does not matter. The node comes
	// back below half of it.
	Busy float64
}

const (
	// BusyWindow is the time over which the others' share counts.
	BusyWindow = time.Minute
	// pauseAfter and resumeAfter: for how long the reason must hold, or be gone. Together they are the shortest time between
	// two pauses.
	pauseAfter  = 15 * time.Second
	resumeAfter = time.Minute
	// LookEvery is how often Run is meant to look.
	LookEvery = 5 * time.Second
)

// Watch decides from samples whether to pause. One goroutine uses it.
type Watch struct {
	rules   Rules
	window  []look
	why     string    // of the present pause; "": none
	against time.Time // since when the samples speak for the other state; zero: they don't
}

type look struct {
	at            time.Time
	total, others uint64
}

// NewWatch begins unpaused.
func NewWatch(r Rules) *Watch { return &Watch{rules: r} }

// Step takes a sample and says why to pause now; "": don't.
func (w *Watch) Step(at time.Time, s Sample) string {
	reason := w.reason(at, s)
	if (reason == "") == (w.why == "") {
		w.against = time.Time{}
		if reason != "" {
			w.why = reason
		}
		return w.why
	}
	if w.against.IsZero() {
		w.against = at
	}
	hold := pauseAfter
	if reason == "" {
		hold = resumeAfter
	}
	if at.Sub(w.against) >= hold {
		w.why, w.against = reason, time.Time{}
	}
	return w.why
}

// reason is what speaks for a pause now.
func (w *Watch) reason(at time.Time, s Sample) string {
	if w.rules.Battery && s.Power == Battery {
		w.share(at, s)
		return "on battery"
	}
	share, known := w.share(at, s)
	limit := w.rules.Busy
	if w.why != "" {
		limit /= 2
	}
	if w.rules.Busy > 0 && known && share > limit {
		return "the machine is busy"
	}
	return ""
}

// share is what others had of the machine over the window, once the samples cover it.
func (w *Watch) share(at time.Time, s Sample) (float64, bool) {
	if !s.CPUKnown {
		w.window = nil
		return 0, false
	}
	w.window = append(w.window, look{at, s.Total, s.Others})
	// The first is the last one that is a window old.
	first := 0
	for i, l := range w.window {
		if at.Sub(l.at) >= BusyWindow {
			first = i
		}
	}
	w.window = slices.Delete(w.window, 0, first)
	from := w.window[0]
	if at.Sub(from.at) < BusyWindow || s.Total <= from.total || s.Others < from.others {
		return 0, false
	}
	return float64(s.Others-from.others) / float64(s.Total-from.total), true
}

// Run looks at every tick until ctx ends, and calls changed with the reason of each new pause and "" at its end.
func (m Machine) Run(ctx context.Context, r Rules, ticks <-chan time.Time, changed func(why string)) {
	w, was := NewWatch(r), ""
	for {
		select {
		case <-ctx.Done():
			return
		case at := <-ticks:
			if why := w.Step(at, m.Sample()); why != was {
				was = why
				changed(why)
			}
		}
	}
}
