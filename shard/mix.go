package shard

import (
	"math"
	"sync"

	"github.com/meshnet/meshnet/shard/vec"
)

// span is the number of positions whose softmax and weighted sum are computed by
// themselves, a multiple of vec.Chunk: few enough that the keys and values of a
// head stay in a core's cache while several query vectors go over them.
const span = 8 * vec.Chunk

// mixer spreads the query vectors of a pass over the threads.
//
// Invariant: a query vector's result depends on its session alone. Positions are
// cut at multiples of span. Within a span, scores, softmax and weighted sum run in
// the order of positions; the spans' results are merged in their order. Tiles
// share loads, never sums, and threads change who computes a span, nothing else.
type mixer struct {
	tasks  []mixTask
	pieces bool      // the spans of a query vector are split over several tasks
	sums   []spanSum // of each task, with pieces
	starts []int     // the first of the tasks of the same vectors, with pieces
	free   scratchList
}

// mixTask is the query vectors of some rows of one session and of some heads
// that share a key head, over the spans [from, to). Vector i is that of row
// row + i/heads and head head + i%heads.
type mixTask struct {
	row, rows   int
	head, heads int
	from, to    int
}

// spanSum is what a task's query vectors got out of some spans: of each vector
// the highest score, the sum of exp(score - peak), and the values weighted with
// these. A vector that saw nothing has the sum 0.
type spanSum struct {
	peak, sum []float32
	acc       []float32 // vectors x dim
}

func (m *mixer) run(p *pass, a *attention, layer int, q view, out []float32) {
	m.split(p, a)
	p.pool.Run(len(m.tasks), func(i int) {
		s := m.free.get()
		sum := &s.sum
		if m.pieces {
			sum = &m.sums[i]
		}
		a.attend(p, s, sum, layer, &m.tasks[i], q)
		if !m.pieces {
			a.finish(p, &m.tasks[i], sum, out)
		}
		m.free.put(s)
	})
	if m.pieces {
		m.merge(p, a, out)
	}
}

// split makes the tasks: blocks of rows of a session for each key head; if that
// leaves threads idle, single spans of these; if it still does, fewer heads.
func (m *mixer) split(p *pass, a *attention) {
	const block = 16
	threads := p.pool.Threads()
	blocks, spans := 0, 0
	eachBlock(p.rows, block, func(row, end int) {
		blocks++
		spans += a.lastSpan(p, end-1) - a.firstSpan(p, row)
	})
	m.pieces = spans > blocks && threads > 1 && blocks*a.kvHeads < 4*threads
	units := blocks * a.kvHeads
	if m.pieces {
		units = spans * a.kvHeads
	}
	heads := a.group
	switch {
	case units < threads:
		heads = 1
	case units < 2*threads:
		heads = min(heads, vec.Tile)
	}
	m.tasks = m.tasks[:0]
	eachBlock(p.rows, block, func(row, end int) {
		from, to := a.firstSpan(p, row), a.lastSpan(p, end-1)
		for h := 0; h < a.heads; {
			n := min(heads, a.group-h%a.group)
			t := mixTask{row, end - row, h, n, from, to}
			if !m.pieces {
				m.tasks = append(m.tasks, t)
			} else {
				for k := from; k < to; k++ {
					t.from, t.to = k, k+1
					m.tasks = append(m.tasks, t)
				}
			}
			h += n
		}
	})
	if m.pieces {
		for len(m.sums) < len(m.tasks) {
			m.sums = append(m.sums, spanSum{})
		}
	}
}

// eachBlock calls fn for runs of at most most rows of one session.
func eachBlock(rows []rowRef, most int, fn func(row, end int)) {
	for row := 0; row < len(rows); {
		end := row + 1
		for end < len(rows) && end-row < most && rows[end].state == rows[row].state {
			end++
		}
		fn(row, end)
		row = end
	}
}

// firstSpan and lastSpan bound the spans [first, last) that row of p looks at.
func (a *attention) firstSpan(p *pass, row int) int { return a.sees(p.rows[row].pos) / span }
func (a *attention) lastSpan(p *pass, row int) int  { return p.rows[row].pos/span + 1 }

// attend computes the query vectors of t, vec.Tile at a time.
func (a *attention) attend(p *pass, s *mixScratch, sum *spanSum, layer int, t *mixTask, q view) {
	n := t.rows * t.heads
	sum.reset(n, a.dim)
	s.grow(n, a.dim)
	var tiles [vec.Tile]int
	for at := 0; at < n; at += vec.Tile {
		w := min(n-at, vec.Tile)
		for i := range w {
			j := at + i
			head := t.head + j%t.heads
			query := s.query[at*a.dim:]
			for d, x := range q.row(t.row + j/t.heads)[head*a.dim : (head+1)*a.dim] {
				query[d*w+i] = x
			}
		}
	}
	for k := t.from; k < t.to; k++ {
		for at := 0; at < n; at += vec.Tile {
			w := min(n-at, vec.Tile)
			for i := range w {
				tiles[i] = at + i
			}
			a.tile(p, s, sum, layer, t, s.query[at*a.dim:], tiles[:w], k)
		}
	}
}

// tile computes the query vectors at of t over span k and merges what they get
// into sum. Their positions ascend.
//
// Scores are computed for whole chunks, from the one that holds the first position
// that any of them sees. What a vector doesn't see there gets the weight 0 and is
// left out of its sum.
func (a *attention) tile(p *pass, s *mixScratch, sum *spanSum, layer int, t *mixTask, query []float32, at []int, k int) {
	width, dim := len(at), a.dim
	state, kvHead := p.rows[t.row].state, t.head/a.group
	var from, to [vec.Tile]int // what each sees of the span
	for i, v := range at {
		pos := p.rows[t.row+v/t.heads].pos
		from[i] = max(k*span, a.sees(pos))
		to[i] = max(from[i], min((k+1)*span, pos+1))
	}
	base, end := from[0]/vec.Chunk*vec.Chunk, to[width-1]
	if base >= end {
		return
	}
	for j := base; j < end; j += vec.Chunk {
		keys, _ := a.part(state, state.rows(layer, j), kvHead)
		p.vec.Scores(state.cache, s.scores[j-base:], span, query, width, keys, dim)
	}
	var peak, total [vec.Tile]float32
	for i := range at {
		if from[i] == to[i] {
			continue
		}
		mine := s.scores[i*span : (i+1)*span]
		for j := range from[i] - base {
			mine[j] = float32(math.Inf(-1))
		}
		peak[i], total[i] = p.vec.Softmax(mine, to[i]-base)
	}
	acc := s.acc[:width*dim]
	clear(acc)
	// All of them see positions lo to hi-1; each by itself sees some before, some after.
	hi := to[0]
	lo := min(from[width-1], hi)
	mix := func(i, from, to int) {
		forChunks(from, to, func(j, slot, n int) {
			_, values := a.part(state, state.rows(layer, j), kvHead)
			p.vec.Mix(state.cache, acc[i*dim:(i+1)*dim], s.scores[i*span+j-base:], n, 1, values, dim, slot, n)
		})
	}
	for i := range at {
		mix(i, from[i], min(lo, to[i]))
	}
	forChunks(lo, hi, func(j, slot, n int) {
		_, values := a.part(state, state.rows(layer, j), kvHead)
		p.vec.Mix(state.cache, acc, s.scores[j-base:], span, width, values, dim, slot, n)
	})
	for i, v := range at {
		mix(i, max(hi, from[i]), to[i])
		if from[i] < to[i] {
			sum.merge(p.vec, v, peak[i], total[i], acc[i*dim:(i+1)*dim])
		}
	}
}

// forChunks calls fn for the parts of the positions [from, to) that lie in one
// chunk: n positions from j, which is slot in its chunk.
func forChunks(from, to int, fn func(j, slot, n int)) {
	for j := from; j < to; {
		slot := j % vec.Chunk
		n := min(vec.Chunk-slot, to-j)
		fn(j, slot, n)
		j += n
	}
}

// merge joins the pieces of each row and head in the order of spans.
func (m *mixer) merge(p *pass, a *attention, out []float32) {
	// Tasks of the same vectors follow one another.
	first := m.starts[:0]
	for i, t := range m.tasks {
		if i == 0 || t.row != m.tasks[i-1].row || t.head != m.tasks[i-1].head {
			first = append(first, i)
		}
	}
	m.starts = first
	p.spread(len(first), 4*a.group*a.dim, func(lo, hi int) {
		for _, i := range first[lo:hi] {
			t, sum := &m.tasks[i], &m.sums[i]
			for j := i + 1; j < len(m.tasks) && m.tasks[j].row == t.row && m.tasks[j].head == t.head; j++ {
				other := &m.sums[j]
				for v, total := range other.sum {
					if total != 0 {
						sum.merge(p.vec, v, other.peak[v], total, other.acc[v*a.dim:(v+1)*a.dim])
					}
				}
			}
			a.finish(p, t, sum, out)
		}
	})
}

// finish writes the weighted means of a task's vectors to out.
func (a *attention) finish(p *pass, t *mixTask, sum *spanSum, out []float32) {
	for v, total := range sum.sum {
		row, head := t.row+v/t.heads, t.head+v%t.heads
		mean := out[(row*a.heads+head)*a.dim:][:a.dim]
		copy(mean, sum.acc[v*a.dim:])
		p.vec.Scale(mean, 1/total)
	}
}

// reset makes s the sums of n vectors that saw nothing.
func (s *spanSum) reset(n, dim int) {
	if cap(s.peak) < n {
		s.peak, s.sum = make([]float32, n), make([]float32, n)
	}
	if cap(s.acc) < n*dim {
		s.acc = make([]float32, n*dim)
	}
	s.peak, s.sum, s.acc = s.peak[:n], s.sum[:n], s.acc[:n*dim]
	clear(s.sum)
}

// merge adds to vector v what it got out of the next span. The sums are kept
// relative to the higher of both peaks.
func (s *spanSum) merge(k *vec.Kernels, v int, peak, sum float32, acc []float32) {
	mine := s.acc[v*len(acc) : (v+1)*len(acc)]
	switch was := s.peak[v]; {
	case s.sum[v] == 0:
		copy(mine, acc)
		s.peak[v], s.sum[v] = peak, sum
	case peak <= was:
		w := vec.Exp(peak - was)
		k.ScaleAdd(mine, acc, w, mine)
		s.sum[v] = vec.FMA(sum, w, s.sum[v])
	default:
		w := vec.Exp(was - peak)
		k.ScaleAdd(mine, mine, w, acc)
		s.peak[v], s.sum[v] = peak, vec.FMA(s.sum[v], w, sum)
	}
}

// mixScratch is the memory of one task under way.
type mixScratch struct {
	query  []float32 // tiles of vec.Tile vectors, interleaved
	acc    []float32 // vec.Tile x dim
	scores []float32 // vec.Tile x span
	sum    spanSum
}

func (s *mixScratch) grow(vectors, dim int) {
	if s.scores == nil {
		s.scores = make([]float32, vec.Tile*span)
	}
	if cap(s.acc) < vec.Tile*dim {
		s.acc = make([]float32, vec.Tile*dim)
	}
	if cap(s.query) < vectors*dim {
		s.query = make([]float32, vectors*dim)
	}
	s.acc, s.query = s.acc[:vec.Tile*dim], s.query[:vectors*dim]
}

// scratchList lends scratch memory to the tasks that run at once.
type scratchList struct {
	mu   sync.Mutex
	free []*mixScratch
}

func (f *scratchList) get() *mixScratch {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.free); n > 0 {
		s := f.free[n-1]
		f.free = f.free[:n-1]
		return s
	}
	return &mixScratch{}
}

func (f *scratchList) put(s *mixScratch) {
	f.mu.Lock()
	f.free = append(f.free, s)
	f.mu.Unlock()
}
