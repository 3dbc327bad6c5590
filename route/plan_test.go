package route

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
)

var testModel = wire.Fingerprint{1}

// slowest is a twin of Plan's cost in other words: the time of one decode step over
// a finished route, by the rules of the package's documentation.
func slowest(q Query, hops []Hop) float64 {
	offers := map[string]wire.Offer{}
	for _, o := range q.Offers {
		offers[o.Peer] = o
	}
	rtt := func(a, b p2p.PeerID) float64 {
		find := func(a, b p2p.PeerID) (m float64) {
			for _, r := range offers[string(a)].RTT {
				if r.Peer == string(b) {
					m = float64(r.Micros)
				}
			}
			for _, l := range q.Links {
				if l.From == a && l.To == b && l.Micros > 0 {
					m = float64(l.Micros)
				}
			}
			return m
		}
		if m := find(a, b); m > 0 {
			return m
		}
		return find(b, a)
	}
	way := func(a, b p2p.PeerID) float64 {
		if m := rtt(a, b); m > 0 {
			return m / 2
		}
		if x, y := rtt(q.Head, a), rtt(q.Head, b); x > 0 && y > 0 {
			return max(x, y) / 2
		}
		return 5000
	}
	at, sum := q.Head, 0.0
	for _, h := range hops {
		down := slices.ContainsFunc(q.Links, func(l Link) bool { return l.From == at && l.To == h.Peer.ID && l.Down })
		if down {
			sum += way(at, q.Head) + way(q.Head, h.Peer.ID) + 300
		} else {
			sum += way(at, h.Peer.ID)
		}
		o := offers[string(h.Peer.ID)]
		layer := 2000.0
		if o.DecodeMicros > 0 {
			layer = float64(o.DecodeMicros) / float64(o.End-o.Start)
		}
		sum += 300 + layer*float64(h.End-h.Start)
		at = h.Peer.ID
	}
	return sum + way(at, q.Head)
}

// everyRoute is the least time over all routes there are, found by trying them.
func everyRoute(q Query, at int, hops []Hop) float64 {
	if at == q.Layers {
		return slowest(q, hops)
	}
	best := math.Inf(1)
	for _, o := range q.Offers {
		used := slices.ContainsFunc(hops, func(h Hop) bool { return string(h.Peer.ID) == o.Peer })
		if used || int(o.Start) > at || int(o.End) <= at {
			continue
		}
		for end := at + 1; end <= int(o.End); end++ {
			h := Hop{Peer: p2p.Peer{ID: p2p.PeerID(o.Peer)}, Start: at, End: end}
			best = min(best, everyRoute(q, end, append(slices.Clone(hops), h)))
		}
	}
	return best
}

// randomMesh is a small one, with holes, shared layers and strange links.
func randomMesh(r *rand.Rand) Query {
	q := Query{Layers: 1 + r.IntN(6), Model: testModel, Head: "head"}
	for i := range 1 + r.IntN(5) {
		s := r.IntN(q.Layers)
		o := wire.Offer{
			Model: testModel, Layers: uint32(q.Layers), Peer: string(rune('a' + i)), State: wire.Online, CacheTypes: wire.AllCacheTypes,
			Start: uint32(s), End: uint32(s + 1 + r.IntN(q.Layers-s)), DecodeMicros: uint32(r.IntN(20_000)),
		}
		if r.IntN(2) == 0 {
			o.RTT = append(o.RTT, wire.RTT{Peer: string(rune('a' + r.IntN(5))), Micros: uint32(r.IntN(5000))})
		}
		q.Offers = append(q.Offers, o)
	}
	for range r.IntN(6) {
		names := []p2p.PeerID{"a", "b", "c", "d", "e", "head"}
		q.Links = append(q.Links, Link{From: names[r.IntN(6)], To: names[r.IntN(6)], Micros: uint32(r.IntN(8000)), Down: r.IntN(3) == 0})
	}
	// A head is not cut off from a peer that answers it, and the last word on a
	// link counts: keep one statement each.
	seen := map[[2]p2p.PeerID]bool{}
	q.Links = slices.DeleteFunc(q.Links, func(l Link) bool {
		k := [2]p2p.PeerID{l.From, l.To}
		dup := seen[k] || l.From == l.To || l.Down && (l.From == "head" || l.To == "head")
		seen[k] = true
		return dup
	})
	return q
}

// TestPlanIsBest compares Plan with every route there is, over random small meshes.
func TestPlanIsBest(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 7))
		q := randomMesh(r)
		again := fmt.Sprintf("go test -run TestPlanIsBest (seed %d): %+v", seed, q)
		best := everyRoute(q, 0, nil)
		got, err := Plan(q)
		if math.IsInf(best, 1) {
			var gap *GapError
			if !errors.As(err, &gap) {
				t.Fatalf("%s: a route %v where there is none", again, got)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if c := slowest(q, got.Hops); c > best+0.5 {
			t.Fatalf("%s: %v costs %.1f µs, the best %.1f", again, got, c, best)
		}
		if d := float64(got.PredictedMicros()) - best; math.Abs(d) > float64(len(got.Hops)) {
			t.Fatalf("%s: predicts %d µs, costs %.1f", again, got.PredictedMicros(), best)
		}
		shuffled := q
		shuffled.Offers = slices.Clone(q.Offers)
		r.Shuffle(len(q.Offers), func(i, j int) {
			shuffled.Offers[i], shuffled.Offers[j] = shuffled.Offers[j], shuffled.Offers[i]
		})
		if other, _ := Plan(shuffled); other.String() != got.String() {
			t.Fatalf("%s: %v, with the offers in another order %v", again, got, other)
		}
	}
}

// TestMend: hops that stay do so with their layers, what is between is planned, and
// the times are those of the route that comes out.
func TestMend(t *testing.T) {
	mended := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 8))
		q := randomMesh(r)
		planned, err := Plan(q)
		if err != nil {
			continue
		}
		again := fmt.Sprintf("go test -run TestMend (seed %d): %+v, planned %v", seed, q, planned)
		var stay, lost []Hop
		gaps := 0
		for _, h := range planned.Hops {
			if r.IntN(2) == 0 {
				stay = append(stay, h)
				continue
			}
			if len(lost) == 0 || lost[len(lost)-1].End != h.Start {
				gaps++
			}
			lost = append(lost, h)
		}
		if len(lost) > 0 && r.IntN(2) == 0 { // the peer is gone, not only its rows
			q.Banned = map[p2p.PeerID]bool{lost[0].Peer.ID: true}
		}
		got, err := Mend(q, stay)
		if err != nil {
			if gaps < 2 && len(q.Banned) == 0 {
				t.Fatalf("%s: %v stay: %v", again, stay, err)
			}
			continue
		}
		mended++
		at, seen := 0, map[p2p.PeerID]bool{}
		for _, h := range got.Hops {
			if h.Start != at || h.End <= at || seen[h.Peer.ID] || q.Banned[h.Peer.ID] {
				t.Fatalf("%s: %v is no route", again, got)
			}
			at, seen[h.Peer.ID] = h.End, true
		}
		for _, h := range stay {
			if !slices.ContainsFunc(got.Hops, func(g Hop) bool { return g.Peer.ID == h.Peer.ID && g.Start == h.Start && g.End == h.End }) {
				t.Fatalf("%s: %v did not stay in %v", again, h, got)
			}
		}
		if c := slowest(q, got.Hops); at != q.Layers || math.Abs(c-float64(got.PredictedMicros())) > float64(len(got.Hops)) {
			t.Fatalf("%s: %v ends at layer %d, predicts %d µs, costs %.1f", again, got, at, got.PredictedMicros(), c)
		}
		if gaps == 0 && got.String() != planned.String() {
			t.Fatalf("%s: all stay, and it became %v", again, got)
		}
	}
	if mended < 1000 {
		t.Errorf("only %d meshes were mended", mended)
	}
	for _, stay := range [][]Hop{{{Peer: p2p.Peer{ID: "a"}, Start: 2, End: 9}}, {{Peer: p2p.Peer{ID: "x"}, Start: 0, End: 4}}, {{Peer: p2p.Peer{ID: "a"}, Start: 2, End: 4}, {Peer: p2p.Peer{ID: "b"}, Start: 0, End: 2}}} {
		q := Query{Layers: 4, Model: testModel, Head: "head", Offers: []wire.Offer{
			{Model: testModel, Layers: 4, Peer: "a", End: 4, State: wire.Online, CacheTypes: wire.AllCacheTypes}, {Model: testModel, Layers: 4, Peer: "b", End: 4, State: wire.Online, CacheTypes: wire.AllCacheTypes},
		}}
		if got, err := Mend(q, stay); err == nil {
			t.Errorf("%v stay: %v", stay, got)
		}
	}
}

// TestPlanScripts runs testdata/plan.txt: blocks of offers, links and a plan, each
// with the answer below its "----".
func TestPlanScripts(t *testing.T) {
	runScripts(t, "plan", func(t *testing.T, lines []string) string {
		q := Query{Model: testModel, Head: "head"}
		for _, line := range lines {
			if err := queryLine(&q, strings.Fields(line)); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
		r, err := Plan(q)
		if err != nil {
			return err.Error()
		}
		out := r.String()
		for _, h := range r.Hops {
			out += " " + strconv.Itoa(int(h.PredictedMicros))
		}
		return out
	})
}

// queryLine reads one line of a script into a query.
func queryLine(q *Query, f []string) error {
	switch f[0] {
	case "layers":
		n, err := strconv.Atoi(f[1])
		q.Layers = n
		return err
	case "cache":
		c, err := wire.ParseCacheType(f[1])
		q.Cache = c
		return err
	case "offer": // offer NAME START:END [MICROS a layer] [state] [keeps=TYPE,TYPE]
		o := wire.Offer{Model: q.Model, Layers: uint32(q.Layers), Peer: f[1], State: wire.Online, CacheTypes: wire.AllCacheTypes, Seq: uint64(len(q.Offers)), Addrs: []string{"x"}}
		if _, err := fmt.Sscanf(f[2], "%d:%d", &o.Start, &o.End); err != nil {
			return err
		}
		for _, w := range f[3:] {
			if types, ok := strings.CutPrefix(w, "keeps="); ok {
				o.CacheTypes = 0
				for _, name := range strings.Split(types, ",") {
					c, err := wire.ParseCacheType(name)
					if err != nil {
						return err
					}
					o.CacheTypes |= wire.CacheTypesOf(c)
				}
				continue
			}
			switch w {
			case "draining":
				o.State = wire.Draining
			case "joining":
				o.State = wire.Joining
			case "relay":
				o.RelayOnly = true
			case "foreign":
				o.Model = wire.Fingerprint{99}
			default:
				m, err := strconv.Atoi(w)
				if err != nil {
					return err
				}
				o.DecodeMicros = uint32(m) * (o.End - o.Start)
			}
		}
		q.Offers = append(q.Offers, o)
	case "link": // link FROM TO MICROS|down
		l := Link{From: p2p.PeerID(f[1]), To: p2p.PeerID(f[2]), Down: f[3] == "down"}
		if !l.Down {
			m, err := strconv.Atoi(f[3])
			if err != nil {
				return err
			}
			l.Micros = uint32(m)
		}
		q.Links = append(q.Links, l)
	case "ban":
		if q.Banned == nil {
			q.Banned = map[p2p.PeerID]bool{}
		}
		q.Banned[p2p.PeerID(f[1])] = true
	default:
		return errors.New("unknown line")
	}
	return nil
}

// runScripts runs the blocks of the files testdata/PREFIX*.txt. A block is a
// comment that names it ("# ..."), lines, "----", and the expected output.
func runScripts(t *testing.T, prefix string, run func(t *testing.T, lines []string) string) {
	files, err := filepath.Glob("testdata/" + prefix + "*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(strings.TrimSpace(string(data)), "\n\n") {
			name, rest, _ := strings.Cut(block, "\n")
			in, want, ok := strings.Cut(rest, "\n----\n")
			if !ok || !strings.HasPrefix(name, "# ") {
				t.Fatalf("%s: a block is \"# name\", lines, \"----\", output:\n%s", file, block)
			}
			t.Run(name[2:], func(t *testing.T) {
				if got := run(t, strings.Split(in, "\n")); got != strings.TrimSpace(want) {
					t.Errorf("%s\n%s\ngot:\n%s\nwant:\n%s", file, in, got, want)
				}
			})
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	if _, err := Plan(Query{}); err == nil {
		t.Error("a route over no layers")
	}
	// Two offers of one peer: the later one counts.
	q := Query{Layers: 4, Model: testModel, Offers: []wire.Offer{
		{Model: testModel, Layers: 4, Peer: "a", State: wire.Online, CacheTypes: wire.AllCacheTypes, End: 4, Seq: 2},
		{Model: testModel, Layers: 4, Peer: "a", State: wire.Draining, End: 4, Seq: 3},
	}}
	if r, err := Plan(q); err == nil {
		t.Errorf("an overtaken offer was used: %v", r)
	}
}

// TestPlanHostile: many peers whose offers make the search come back to them again
// and again still end in a route that covers all layers once.
func TestPlanHostile(t *testing.T) {
	const layers = 64
	q := Query{Layers: layers, Model: testModel, Head: "head"}
	for i := range 40 {
		o := wire.Offer{Model: testModel, Layers: layers, Peer: fmt.Sprint("p", i), State: wire.Online, CacheTypes: wire.AllCacheTypes, End: layers, DecodeMicros: 64_000 * 20}
		if i%2 == 1 {
			o.Start, o.End, o.DecodeMicros = uint32(i), uint32(i+2), 1
		}
		q.Offers = append(q.Offers, o)
		q.Links = append(q.Links, Link{From: "head", To: p2p.PeerID(o.Peer), Micros: 1})
	}
	r, err := Plan(q)
	if err != nil {
		t.Fatal(err)
	}
	at, seen := 0, map[p2p.PeerID]bool{}
	for _, h := range r.Hops {
		if h.Start != at || h.End <= h.Start || seen[h.Peer.ID] {
			t.Fatalf("no route: %v", r)
		}
		at, seen[h.Peer.ID] = h.End, true
	}
	if at != layers {
		t.Fatalf("covers %d layers: %v", at, r)
	}
}

func TestPlace(t *testing.T) {
	equal := func(n int) []int64 { return slices.Repeat([]int64{100}, n) }
	on := func(s, e uint32) wire.Offer { return wire.Offer{Start: s, End: e, State: wire.Online} }
	tests := []struct {
		name       string
		bytes      []int64
		memory     int64
		offers     []wire.Offer
		start, end int
		fails      bool
	}{
		{"an empty mesh", equal(10), 450, nil, 0, 4, false},
		{"what is missing", equal(10), 450, []wire.Offer{on(0, 4)}, 4, 8, false},
		{"the gap in the middle", equal(10), 300, []wire.Offer{on(0, 4), on(7, 10)}, 4, 7, false},
		{"a small rest, with what fits around", equal(10), 400, []wire.Offer{on(0, 8)}, 6, 10, false},
		{"held once before held twice", equal(6), 300, []wire.Offer{on(0, 6), on(0, 3)}, 3, 6, false},
		{"everything", equal(10), 5000, []wire.Offer{on(0, 8)}, 0, 10, false},
		{"who leaves does not count", equal(4), 200, []wire.Offer{on(0, 2), {Start: 2, End: 4, State: wire.Draining}}, 2, 4, false},
		{"who joins counts", equal(4), 200, []wire.Offer{{Start: 0, End: 2, State: wire.Joining}}, 2, 4, false},
		{"layers differ in bytes", []int64{500, 100, 100, 100}, 350, nil, 1, 4, false},
		{"too little memory", equal(4), 99, nil, 0, 0, true},
		{"an offer beyond the model", equal(4), 200, []wire.Offer{on(2, 4_000_000_000)}, 0, 2, false},
	}
	for _, tt := range tests {
		s, e, err := Place(len(tt.bytes), tt.bytes, tt.memory, tt.offers)
		if s != tt.start || e != tt.end || (err != nil) != tt.fails {
			t.Errorf("%s: [%d, %d) %v, want [%d, %d)", tt.name, s, e, err, tt.start, tt.end)
		}
	}
	if _, _, err := Place(3, nil, 1, nil); err == nil {
		t.Error("sizes of other layers were taken")
	}
}
