package shard

import "testing"

// bits runs ids through engines that hold consecutive ranges, cut further at
// cuts, chunk rows at a time, with caches of type c, and names the bits of all logits.
func bits(t *testing.T, h *Head, engines []*Engine, cuts []int, c CacheType, ids []int32, chunk int) string {
	t.Helper()
	x := embed(t, h, ids)
	for _, e := range engines {
		start, last := e.Range()
		for _, end := range append(cuts, last) {
			feed(t, e, newCache(t, e, start, end, c), x, chunk)
			start = end
		}
	}
	return hash(logits(t, h, x))
}

// floatModels have weights that PyTorch computed with; see testdata/README.md.
var floatModels = []string{
	"testdata/llama/model-f16.gguf",
	"testdata/llama3_tied/model-f16.gguf",
	"testdata/qwen2/model-f16.gguf",
	"testdata/qwen3/model-bf16.gguf",
	"testdata/gemma3/model-f16.gguf",
}

var sameModels = append(floatModels[:len(floatModels):len(floatModels)],
	"testdata/llama_q/mix_q41_q50_q51.gguf",
	"testdata/llama_q/q4_k.gguf",
	"testdata/llama_q/mix_q2k_q3k.gguf",
	"testdata/llama_q/mix_iq4_mxfp4.gguf",
)

// The promise of the package, in one hash a model.
func TestSameBitsHoweverComputed(t *testing.T) {
	ids := readGolden(t, "testdata/llama/golden.safetensors").ints["tokens_70"]
	for _, path := range sameModels {
		t.Run(path, func(t *testing.T) {
			m := open(t, path)
			layers := m.Info().Layers
			// The other types of cache with two models: one without windows, one with.
			types := []CacheType{CacheF32}
			if path == sameModels[0] || m.Info().Arch == "gemma3" {
				types = CacheTypes()
			}
			want := map[CacheType]string{}
			for _, cpu := range cpus(t) {
				for _, threads := range []int{1, 2} {
					o := Options{Threads: threads, CPU: cpu}
					h, e := loadHead(t, m, o), load(t, m, 0, layers, o)
					check := func(engines []*Engine, cuts []int, chunk int) {
						t.Helper()
						for _, c := range types {
							got := bits(t, h, engines, cuts, c, ids, chunk)
							if want[c] == "" {
								want[c] = got
							}
							if got != want[c] {
								t.Errorf("%s, %d threads, %d engines, cut at %v, %v, chunks of %d: %s, want %s", cpu, threads, len(engines), cuts, c, chunk, got, want[c])
							}
						}
					}
					whole := []*Engine{e}
					check(whole, nil, len(ids))
					check(whole, nil, 7)
					if cpu == "generic" {
						continue // slow; the rest has no instructions in it
					}
					for _, chunk := range []int{1, 2, 64} {
						check(whole, nil, chunk)
					}
					for cut := 1; cut < layers; cut++ {
						check(whole, []int{cut}, 64)
						check([]*Engine{load(t, m, 0, cut, o), load(t, m, cut, layers, o)}, nil, 64)
					}
				}
			}
			for _, c := range types[1:] {
				if want[c] == want[CacheF32] {
					t.Errorf("caches of %v give the bits of f32", c)
				}
			}
		})
	}
}

// Sessions of several ranges, lengths and types of cache share the batches of one
// engine; each must come out as when it is alone.
func TestSameBitsInABatch(t *testing.T) {
	ids := readGolden(t, "testdata/llama/golden.safetensors").ints["tokens_70"]
	for _, path := range floatModels {
		m := open(t, path)
		h := loadHead(t, m, Options{Threads: 1})
		layers, hidden := m.Info().Layers, m.Info().Hidden
		type session struct {
			start, end int
			ids        []int32
			steps      []int // rows of each step
		}
		sessions := []session{
			{0, layers, ids, []int{30, 1, 1, 38}},
			{0, layers, ids[5:40], []int{1, 1, 1, 32}},
			{1, layers, ids[:64], []int{61, 1, 1, 1}},
			{0, 2, ids[3:60], []int{20, 30, 6, 1}},
			{2, 3, ids[9:20], []int{2, 3, 5, 1}},
		}
		for _, cpu := range cpus(t) {
			for _, threads := range []int{1, 2} {
				if cpu == "generic" && threads == 1 {
					continue // slow
				}
				e := load(t, m, 0, layers, Options{Threads: threads, CPU: cpu})
				alone := make([]string, len(sessions))
				together := make([][]float32, len(sessions))
				states := make([]*State, len(sessions))
				for i, s := range sessions {
					x := embed(t, h, s.ids)
					together[i] = clone(x)
					c := CacheTypes()[i%3]
					feed(t, e, newCache(t, e, s.start, s.end, c), x, len(s.ids))
					alone[i] = hash(x)
					states[i] = newCache(t, e, s.start, s.end, c)
				}
				at := make([]int, len(sessions))
				for step := range 4 {
					var batch []Item
					for i, s := range sessions {
						n := s.steps[step]
						batch = append(batch, Item{states[i], n, together[i][at[i]*hidden : (at[i]+n)*hidden]})
						at[i] += n
					}
					if step%2 == 1 { // the order must not matter either
						batch[0], batch[4] = batch[4], batch[0]
					}
					forward(t, e, batch...)
				}
				for i, x := range together {
					if got := hash(x); got != alone[i] {
						t.Errorf("%s, %s, %d threads: session %d of layers [%d, %d) differs in a batch", path, cpu, threads, i, sessions[i].start, sessions[i].end)
					}
				}
			}
		}
	}
}

// A session cut back and continued must go on as if the rest had never been;
// rows beyond one pass, beyond several chunks and beyond windows must not show
// either.
func TestSameBitsOverPassesAndCuts(t *testing.T) {
	gemma := "testdata/gemma3/model-f16.gguf"
	for _, c := range []struct {
		name, path string
		rows       int
		cache      CacheType
	}{
		{"tiny", tinyFile(t), 1100, CacheF32}, // three passes, three spans
		{"window 600", withKeys(t, gemma, map[string]any{"gemma3.attention.sliding_window": uint32(600), "gemma3.context_length": uint32(1024)}), 900, CacheQ8},
		{"window 16", gemma, 400, CacheF16},
		{"window 100", withKeys(t, gemma, map[string]any{"gemma3.attention.sliding_window": uint32(100)}), 400, CacheQ8},
		{"window 1", withKeys(t, gemma, map[string]any{"gemma3.attention.sliding_window": uint32(1)}), 400, CacheF32},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := open(t, c.path)
			h := loadHead(t, m, Options{Threads: 2})
			layers, hidden := m.Info().Layers, m.Info().Hidden
			var ids []int32
			for i := range c.rows {
				ids = append(ids, int32(i*i*31+7*i)%384)
			}
			e := load(t, m, 0, layers, Options{Threads: 2})
			want := embed(t, h, ids)
			feed(t, e, newCache(t, e, 0, layers, c.cache), want, len(ids))
			for _, cpu := range cpus(t) {
				other := load(t, m, 0, layers, Options{Threads: 1, CPU: cpu})
				chunks, rows := []int{1, 37, 64, 513}, c.rows
				if cpu == "generic" { // slow
					chunks, rows = []int{37}, 140
				}
				for _, chunk := range chunks {
					x := embed(t, h, ids[:rows])
					feed(t, other, newCache(t, other, 0, layers, c.cache), x, chunk)
					if hash(x) != hash(want[:len(x)]) {
						t.Errorf("%s: %d rows in chunks of %d differ from all at once", cpu, rows, chunk)
					}
				}
			}
			// Few rows that look at several spans: these are split over the threads.
			if c.rows > span {
				for _, cpu := range cpus(t) {
					if cpu == "generic" { // slow
						continue
					}
					for _, threads := range []int{2, 3} {
						other := load(t, m, 0, layers, Options{Threads: threads, CPU: cpu})
						for _, chunk := range []int{1, 7, 37} {
							x := embed(t, h, ids)
							feed(t, other, newCache(t, other, 0, layers, c.cache), x, chunk)
							if hash(x) != hash(want) {
								t.Errorf("%s, %d threads: %d rows in chunks of %d differ from all at once", cpu, threads, c.rows, chunk)
							}
						}
					}
				}
			}
			s := newCache(t, e, 0, layers, c.cache)
			for _, cut := range []int{0, 1, 63, 64, 65, 150} {
				if !s.Truncate(min(cut, s.Len())) {
					t.Fatalf("cannot cut to %d", cut)
				}
				at := s.Len()
				x := embed(t, h, ids[at:at+250])
				feed(t, e, s, x, 250)
				if hash(x) != hash(want[at*hidden:(at+250)*hidden]) {
					t.Errorf("250 rows after a cut to %d differ", at)
				}
				if cut == 65 {
					x = embed(t, h, ids[s.Len():400])
					feed(t, e, s, x, 64)
				}
			}
		})
	}
}

// The one hash that every machine must find, whatever its architecture: peers
// compare bytes. It was the same on amd64 (all kernel sets), 386 and arm64. A change of
// it is a change of the network's numerics and needs a new protocol version.
func TestBitsAreThoseOfEveryMachine(t *testing.T) {
	for _, c := range []struct {
		path  string
		cache CacheType
		want  string
	}{
		{tinyFile(t), CacheF32, "c4270611b0997f6f"},
		{tinyFile(t), CacheF16, "31cc4f96c04aa81d"},
		{tinyFile(t), CacheQ8, "53a43438322a1255"},
		{"testdata/qwen3/model-bf16.gguf", CacheF32, "2285ae17513175ba"},
		{"testdata/qwen3/model-bf16.gguf", CacheQ8, "4a29fa97e37f78e9"},
		{"testdata/gemma3/model-f16.gguf", CacheF32, "2ebfeadf90b458e6"},
		{"testdata/gemma3/model-f16.gguf", CacheF16, "0240c6019ab292c1"},
		{withKeys(t, "testdata/gemma3/model-f16.gguf", map[string]any{"gemma3.final_logit_softcapping": float32(5)}), CacheF32, "4e8aea31ab9163cb"},
	} {
		m := open(t, c.path)
		h := loadHead(t, m, Options{Threads: 1})
		var ids []int32
		for i := range 100 {
			ids = append(ids, int32(i*37%m.Info().Vocab))
		}
		e := load(t, m, 0, m.Info().Layers, Options{Threads: 1})
		if got := bits(t, h, []*Engine{e}, nil, c.cache, ids, len(ids)); got != c.want {
			t.Errorf("%s, %v: the logits hash to %s with %s, want %s", m.Info().Arch, c.cache, got, e.CPU(), c.want)
		}
	}
}
