package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// files makes a root directory.
func files(t *testing.T, content map[string]string) Machine {
	t.Helper()
	root := t.TempDir()
	for path, text := range content {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return At(root)
}

func TestPower(t *testing.T) {
	for name, c := range map[string]struct {
		supplies string // NAME:type,attribute=value,...
		want     Power
	}{
		"laptop, plugged in":          {"AC:Mains,online=1 BAT0:Battery,status=Charging", Mains},
		"full":                        {"AC:Mains,online=1 BAT0:Battery,status=Full", Mains},
		"weak charger":                {"AC:Mains,online=1 BAT0:Battery,status=Discharging", Mains},
		"unplugged":                   {"AC:Mains,online=0 BAT0:Battery,status=Discharging", Battery},
		"unplugged, gauge is lost":    {"AC:Mains,online=0 BAT0:Battery,status=Unknown", Battery},
		"charged over USB":            {"usb0:USB,online=1 BAT0:Battery,status=Charging", Mains},
		"feeds a phone over USB":      {"usb0:USB,online=1 BAT0:Battery,status=Discharging", Battery},
		"kept below full":             {"BAT0:Battery,status=Not_charging", Mains},
		"two, one of them used":       {"BAT0:Battery,status=Not_charging BAT1:Battery,status=Discharging", Battery},
		"desktop with a mouse":        {"hid-1:Battery,status=Discharging,scope=Device", Mains},
		"laptop, plugged, with mouse": {"AC:Mains,online=1 BAT0:Battery,status=Full hid-1:Battery,status=Discharging,scope=Device", Mains},
		"UPS on its battery":          {"ups:UPS,status=Discharging", Battery},
		"no supplies":                 {"", PowerUnknown},
		"nothing but a name":          {"BAT0:", Mains},
		"status of the future":        {"BAT0:Battery,status=Sideways", PowerUnknown},
	} {
		content := map[string]string{}
		for _, s := range strings.Split(c.supplies, " ") {
			dev, attrs, ok := strings.Cut(s, ":")
			if !ok {
				continue
			}
			dir := "sys/class/power_supply/" + dev + "/"
			for i, a := range strings.Split(attrs, ",") {
				if i == 0 {
					content[dir+"type"] = a + "\n"
				} else if k, v, ok := strings.Cut(a, "="); ok {
					content[dir+k] = strings.ReplaceAll(v, "_", " ") + "\n"
				}
			}
		}
		if got := files(t, content).Power(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestCPUTimes(t *testing.T) {
	const stat = "cpu  100 20 30 400 50 6 7 80 9 1\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
	const self = "42 (a) b) (c) S 1 42 42 0 -1 4194304 1 2 3 4 15 8 0 0 20 0 9 0 100 0 0\n"
	for name, c := range map[string]struct {
		stat, self    string
		known         bool
		total, others uint64
	}{
		"as it should be":     {stat, self, true, 693, 163 - 23},
		"own beyond all":      {stat, strings.Replace(self, " 15 8 ", " 150 80 ", 1), true, 693, 0},
		"none":                {"", self, false, 0, 0},
		"an old kernel":       {"cpu 1 2 3 4\n", self, false, 0, 0},
		"no numbers":          {"cpu a b c d e f g h\n", self, false, 0, 0},
		"another line first":  {"intr 1 2 3 4 5 6 7 8 9\n" + stat, self, false, 0, 0},
		"cut off":             {stat, "42 (x", false, 0, 0},
		"negative":            {"cpu  -100 20 30 400 50 6 7 80\n", self, false, 0, 0},
		"own is no number":    {stat, strings.Replace(self, " 15 8 ", " x 8 ", 1), false, 0, 0},
		"larger than the sum": {"cpu  99999999999999999999 2 3 4 5 6 7 8\n", self, false, 0, 0},
	} {
		s := files(t, map[string]string{"proc/stat": c.stat, "proc/self/stat": c.self}).Sample()
		if s.CPUKnown != c.known || s.Total != c.total || s.Others != c.others {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// On a real system the files are what the tables take them for.
func TestRealFiles(t *testing.T) {
	if _, err := os.Stat("/proc/stat"); err != nil {
		return // not Linux: nothing is known
	}
	var m Machine
	if s := m.Sample(); !s.CPUKnown || s.Others > s.Total {
		t.Errorf("%+v", s)
	}
	if n := m.Threads(runtime.GOMAXPROCS(0)); n < 1 || n > runtime.GOMAXPROCS(0) {
		t.Errorf("%d threads of %d", n, runtime.GOMAXPROCS(0))
	}
}

func TestThreads(t *testing.T) {
	siblings := func(groups ...string) map[string]string {
		m := map[string]string{}
		for _, g := range groups {
			for _, cpu := range cpuList(g) {
				m[fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu)] = g + "\n"
			}
		}
		return m
	}
	for name, c := range map[string]struct {
		allowed, cgroup string
		quotas          string // DIR=QUOTA/PERIOD ...
		topology        map[string]string
		most, want      int
	}{
		"two cores":               {"0-1", "/", "", siblings("0", "1"), 2, 2},
		"four cores, SMT":         {"0-7", "/", "", siblings("0,4", "1,5", "2,6", "3,7"), 8, 4},
		"pinned to half of them":  {"0-1,4-5", "/", "", siblings("0,4", "1,5", "2,6", "3,7"), 4, 2},
		"pinned to siblings":      {"0,4", "/", "", siblings("0,4", "1,5", "2,6", "3,7"), 2, 1},
		"GOMAXPROCS":              {"0-7", "/", "", siblings("0", "1", "2", "3", "4", "5", "6", "7"), 3, 3},
		"a quota":                 {"0-7", "/", "/=350000/100000", siblings("0-1", "2-3", "4-5", "6-7"), 4, 3},
		"half a core":             {"0-1", "/", "/=50000/100000", siblings("0", "1"), 2, 1},
		"the quota of a parent":   {"0-7", "/a/b", "/a=100000/100000 /a/b=max/100000", siblings("0", "1", "2", "3", "4", "5", "6", "7"), 8, 1},
		"no quota":                {"0-1", "/a", "/a=max/100000", siblings("0", "1"), 2, 2},
		"nonsense for a quota":    {"0-1", "/../../x", "/=1/0", siblings("0", "1"), 2, 2},
		"topology unknown":        {"0-7", "/", "", nil, 8, 8},
		"nonsense for processors": {"0-99999999", "/", "", nil, 8, 8},
	} {
		content := map[string]string{"proc/self/status": "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t" + c.allowed + "\nMems_allowed:\t1\n"}
		content["proc/self/cgroup"] = "1:cpu:/old\n0::" + c.cgroup + "\n"
		for path, text := range c.topology {
			content[path] = text
		}
		for _, q := range strings.Fields(c.quotas) {
			dir, text, _ := strings.Cut(q, "=")
			content["sys/fs/cgroup"+dir+"/cpu.max"] = strings.Replace(text, "/", " ", 1) + "\n"
		}
		if got := files(t, content).Threads(c.most); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if got := files(t, nil).Threads(5); got != 5 {
		t.Errorf("nothing known: %d, want 5", got)
	}
}

// script runs a watch over a life in 5 s steps: a word is LOAD[b]xSTEPS, the share in percent that others have and whether on
// battery. It returns when the state changed.
func script(t *testing.T, r Rules, life string) string {
	t.Helper()
	w := NewWatch(r)
	at := time.Unix(1000, 0)
	var s Sample
	s.CPUKnown, s.Power = true, Mains
	var out []string
	was := ""
	for _, word := range strings.Fields(life) {
		load, steps, _ := strings.Cut(word, "x")
		n, err := strconv.Atoi(steps)
		if err != nil {
			t.Fatal(err)
		}
		s.Power = Mains
		if l, ok := strings.CutSuffix(load, "b"); ok {
			load, s.Power = l, Battery
		}
		s.CPUKnown = load != "?"
		percent, _ := strconv.Atoi(load)
		for range n {
			s.Total += 1000
			s.Others += uint64(10 * percent)
			if why := w.Step(at, s); why != was {
				out = append(out, fmt.Sprintf("%.0f %s", at.Sub(time.Unix(1000, 0)).Seconds(), why))
				was = why
			}
			at = at.Add(5 * time.Second)
		}
	}
	return strings.Join(out, ", ")
}

func TestWatch(t *testing.T) {
	busy := Rules{Busy: 0.5}
	for name, c := range map[string]struct {
		rules      Rules
		life, want string
	}{
		"free":                     {Rules{Busy: 0.5, Battery: true}, "10x200", ""},
		"never":                    {Rules{}, "100bx200", ""},
		"battery":                  {Rules{Battery: true}, "0x4 0bx10 0x20", "35 on battery, 130 "},
		"a loose plug":             {Rules{Battery: true}, "0x4 0bx2 0x1 0bx2 0x1 0bx2 0x40", ""},
		"unplugged at the start":   {Rules{Battery: true}, "0bx10", "15 on battery"},
		"a short stay on mains":    {Rules{Battery: true}, "0bx5 0x10 0bx5 0x20", "15 on battery, 160 "},
		"battery does not matter":  {busy, "0bx100", ""},
		"busy from the start":      {busy, "100x20", "75 the machine is busy"},
		"a compiler for a minute":  {busy, "0x20 100x6 0x40", ""},
		"busy and free again":      {busy, "0x20 100x20 0x40", "145 the machine is busy, 300 "},
		"just above, just below":   {busy, "0x20 60x20 40x100", "165 the machine is busy"},
		"below half of the limit":  {busy, "0x20 60x20 20x100", "165 the machine is busy, 310 "},
		"ups and downs":            {busy, "0x20 100x13 0x3 100x13 0x3 100x13 0x3", "145 the machine is busy"},
		"files that can't be read": {busy, "?x100", ""},
		"they vanish":              {busy, "100x20 ?x40", "75 the machine is busy, 160 "},
		"busy, then on battery":    {Rules{Busy: 0.5, Battery: true}, "100x20 0bx40 0x40", "75 the machine is busy, 100 on battery, 360 "},
	} {
		if got := script(t, c.rules, c.life); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Whatever the machine does, two changes are pauseAfter apart, and two pauses a minute.
func TestNeverFlaps(t *testing.T) {
	x := uint32(1)
	for range 50 {
		var life []string
		for range 200 {
			x = x*1664525 + 1013904223
			life = append(life, fmt.Sprintf("%d%sx%d", x>>8%101, [2]string{"", "b"}[x>>16%2], 1+x>>20%12))
		}
		last, paused := -1000, -1000
		for _, change := range strings.Split(script(t, Rules{Busy: 0.4, Battery: true}, strings.Join(life, " ")), ", ") {
			at, why, _ := strings.Cut(change, " ")
			s, err := strconv.Atoi(at)
			if err != nil {
				t.Fatalf("%q: %v", change, err)
			}
			if why == "" {
				if s-last < 60 {
					t.Errorf("back after %d s", s-last)
				}
			} else if paused < last && s-last < 15 {
				t.Errorf("paused after %d s", s-last)
			}
			if why != "" {
				paused = s
			}
			if why == "" || paused == s {
				last = s
			}
		}
	}
}
