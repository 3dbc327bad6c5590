package shard

import (
	"math"
	"sync"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/tensor"
	"github.com/meshnet/meshnet/shard/vec"
)

// attention is causal softmax attention. A state's chunk of a layer holds, for
// each key head, a key chunk and a value chunk as package vec reads them.
//
// Every query vector's scores, softmax and weighted sum are computed in the
// order of positions from 0, by itself: tiles share loads, never sums.
type attention struct {
	heads, kvHeads, dim int
	group               int // query heads of a key head
	rope                *model.Rope
	qkv                 *linear
	qb, kb, vb          []float32 // nil without bias
	qNorm, kNorm        []float32 // nil without norm
	out                 *tensor.Matrix
	scale               float32
	window              int // positions that one sees, its own included; 0: all
	views               [3]view
}

func (l *loader) attention(d *model.Attention) (*attention, error) {
	a := &attention{
		heads: d.Heads, kvHeads: d.KVHeads, dim: d.HeadDim, group: d.Heads / d.KVHeads, rope: d.Rope,
		scale: d.Scale, window: d.Window,
	}
	var err error
	if a.qkv, err = l.linear("qkv", d.Q, d.K, d.V); err != nil {
		return nil, err
	}
	if a.out, err = l.matrix(d.O); err != nil {
		return nil, err
	}
	for _, v := range []struct {
		to   *[]float32
		from *gguf.Tensor
	}{{&a.qb, d.QBias}, {&a.kb, d.KBias}, {&a.vb, d.VBias}, {&a.qNorm, d.QNorm}, {&a.kNorm, d.KNorm}} {
		if *v.to, err = l.vector(v.from); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *attention) forward(p *pass, layer int) {
	n := len(p.rows)
	v := a.qkv.mul(p, p.h, n, a.views[:])
	width := a.heads * a.dim
	angles := p.angles[a.rope]
	p.spread(n, 4*(a.heads+2*a.kvHeads)*a.dim, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			a.prepare(p, angles, layer, i, v)
		}
	})
	o := p.buffer("attention", n*width)
	p.tasks = a.split(p, p.tasks[:0])
	p.pool.Run(len(p.tasks), func(i int) {
		s := p.attnFree.get()
		a.attend(p, s, layer, p.tasks[i], v[0], o)
		p.attnFree.put(s)
	})
	a.out.Mul(p.pool, o, n, p.y, &p.scratch)
}

// prepare adds the biases, norms and turns q and k, scales q, and puts k and v of row i
// into its state.
func (a *attention) prepare(p *pass, angles *angleTable, layer, i int, v []view) {
	q, k, val := v[0].row(i), v[1].row(i), v[2].row(i)
	if a.qb != nil {
		p.vec.Add(q, a.qb)
	}
	if a.kb != nil {
		p.vec.Add(k, a.kb)
	}
	if a.vb != nil {
		p.vec.Add(val, a.vb)
	}
	cos, sin := angles.row(i)
	turn := p.vec.RopePairs
	if a.rope.Halves {
		turn = p.vec.RopeHalves
	}
	for h := range a.heads {
		head := q[h*a.dim : (h+1)*a.dim]
		if a.qNorm != nil {
			p.vec.RMSNorm(head, head, a.qNorm, p.model.Eps)
		}
		turn(head, cos, sin)
	}
	p.vec.Scale(q, a.scale)
	r := p.rows[i]
	chunk, slot := r.state.rows(layer, r.pos), r.pos%vec.Chunk
	for h := range a.kvHeads {
		head := k[h*a.dim : (h+1)*a.dim]
		if a.kNorm != nil {
			p.vec.RMSNorm(head, head, a.kNorm, p.model.Eps)
		}
		turn(head, cos, sin)
		keys, values := a.part(chunk, h)
		vec.PutKey(keys, slot, head)
		copy(values[slot*a.dim:(slot+1)*a.dim], val[h*a.dim:])
	}
}

// part is the key chunk and the value chunk of a key head.
func (a *attention) part(chunk []float32, kvHead int) (keys, values []float32) {
	n := vec.Chunk * a.dim
	chunk = chunk[2*n*kvHead : 2*n*(kvHead+1)]
	return chunk[:n], chunk[n:]
}

// attentionTask is the query vectors of some rows of one session and of some
// heads that share a key head.
type attentionTask struct {
	row, rows   int
	head, heads int
}

// split makes tasks: blocks of rows of a session for each key head, and single
// heads if that leaves threads idle.
func (a *attention) split(p *pass, tasks []attentionTask) []attentionTask {
	const block = 16
	heads := a.group
	if len(p.rows)*a.kvHeads < 4*p.pool.Threads() {
		heads = 1
	}
	for row := 0; row < len(p.rows); {
		end := row + 1
		for end < len(p.rows) && end-row < block && p.rows[end].state == p.rows[row].state {
			end++
		}
		for h := 0; h < a.heads; h += heads {
			tasks = append(tasks, attentionTask{row, end - row, h, heads})
		}
		row = end
	}
	return tasks
}

// attend computes a task's query vectors, four at a time. The last tile is
// filled up with copies of its last vector, whose results go nowhere.
func (a *attention) attend(p *pass, s *attentionScratch, layer int, t attentionTask, q view, out []float32) {
	n := t.rows * t.heads
	for at := 0; at < n; at += vec.Tile {
		width := vec.Tile
		if n-at == 1 {
			width = 1
		}
		var rows, heads [vec.Tile]int
		for i := range width {
			j := min(at+i, n-1)
			rows[i], heads[i] = t.row+j/t.heads, t.head+j%t.heads
		}
		a.tile(p, s, layer, q, out, rows[:width], heads[:width])
	}
}

// sees is the first position that pos looks at.
func (a *attention) sees(pos int) int {
	if a.window == 0 {
		return 0
	}
	return max(0, pos+1-a.window)
}

// tile computes len(rows) query vectors, which share a state and a key head.
// Their positions ascend.
//
// Scores are computed for whole chunks from the one that holds the first position
// that any of them sees. What a vector doesn't see there gets the weight 0 and is
// left out of its sum.
func (a *attention) tile(p *pass, s *attentionScratch, layer int, q view, out []float32, rows, heads []int) {
	width, dim := len(rows), a.dim
	state := p.rows[rows[0]].state
	kvHead := heads[0] / a.group
	first, last := p.rows[rows[0]].pos, p.rows[rows[width-1]].pos
	base := a.sees(first) / vec.Chunk * vec.Chunk
	stride := int(chunksFor(last+1))*vec.Chunk - base
	s.grow(width*dim, width*stride)
	query, acc, scores := s.query[:width*dim], s.acc[:width*dim], s.scores[:width*stride]
	for t, row := range rows {
		for d, x := range q.row(row)[heads[t]*dim : (heads[t]+1)*dim] {
			query[d*width+t] = x
		}
	}
	for j := base; j <= last; j += vec.Chunk {
		keys, _ := a.part(state.rows(layer, j), kvHead)
		p.vec.Scores(scores[j-base:], stride, query, width, keys, dim)
	}
	var inv [vec.Tile]float32
	for t, row := range rows {
		pos, mine := p.rows[row].pos, scores[t*stride:(t+1)*stride]
		for j := range a.sees(pos) - base {
			mine[j] = float32(math.Inf(-1))
		}
		inv[t] = p.vec.Softmax(mine, pos+1-base)
	}
	clear(acc)
	// All of them see positions lo to hi-1; each by itself sees some before, some after.
	hi := first + 1
	lo := min(a.sees(last), hi)
	mix := func(t, from, to int) {
		forChunks(from, to, func(j, slot, n int) {
			_, values := a.part(state.rows(layer, j), kvHead)
			p.vec.Mix(acc[t*dim:(t+1)*dim], scores[t*stride+j-base:], n, 1, values[slot*dim:], dim, n)
		})
	}
	for t, row := range rows {
		mix(t, a.sees(p.rows[row].pos), lo)
	}
	forChunks(lo, hi, func(j, slot, n int) {
		_, values := a.part(state.rows(layer, j), kvHead)
		p.vec.Mix(acc, scores[j-base:], stride, width, values[slot*dim:], dim, n)
	})
	for t, row := range rows {
		pos, part := p.rows[row].pos, acc[t*dim:(t+1)*dim]
		mix(t, max(hi, a.sees(pos)), pos+1)
		p.vec.Scale(part, inv[t])
		copy(out[row*a.heads*dim+heads[t]*dim:], part)
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

// attentionScratch is one task's memory.
type attentionScratch struct {
	query, acc, scores []float32
}

func (s *attentionScratch) grow(vectors, scores int) {
	if cap(s.query) < vectors {
		s.query, s.acc = make([]float32, vectors), make([]float32, vectors)
	}
	if cap(s.scores) < scores {
		s.scores = make([]float32, scores+scores/2)
	}
	s.query, s.acc, s.scores = s.query[:cap(s.query)], s.acc[:cap(s.acc)], s.scores[:cap(s.scores)]
}

// freeList lends scratch memory to the tasks that run at once.
type freeList struct {
	mu   sync.Mutex
	free []*attentionScratch
}

func (f *freeList) get() *attentionScratch {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.free); n > 0 {
		s := f.free[n-1]
		f.free = f.free[:n-1]
		return s
	}
	return &attentionScratch{}
}

func (f *freeList) put(s *attentionScratch) {
	f.mu.Lock()
	f.free = append(f.free, s)
	f.mu.Unlock()
}

// angleTable is the cosines and sines of a pass's rows for one Rope.
type angleTable struct {
	angles   *vec.Angles
	half     int
	cos, sin []float32 // rows x half
}

func (t *angleTable) row(i int) (cos, sin []float32) {
	return t.cos[i*t.half : (i+1)*t.half], t.sin[i*t.half : (i+1)*t.half]
}

// addAngles makes a table for each Rope of the layers.
func (p *pass) addAngles(layers []model.Layer) {
	for _, ly := range layers {
		a, ok := ly.Mixer.(*model.Attention)
		if !ok || p.angles[a.Rope] != nil {
			continue
		}
		r := a.Rope
		p.angles[r] = &angleTable{half: r.Dims / 2, angles: vec.NewAngles(r.Dims, r.Base, r.Scale, r.Factors)}
	}
}

// findAngles fills the tables for the positions of p.rows.
func (p *pass) findAngles() {
	n := len(p.rows)
	for _, t := range p.angles {
		if cap(t.cos) < n*t.half {
			t.cos, t.sin = make([]float32, n*t.half), make([]float32, n*t.half)
		}
		t.cos, t.sin = t.cos[:n*t.half], t.sin[:n*t.half]
		p.spread(n, 100*t.half, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				cos, sin := t.row(i)
				t.angles.At(p.rows[i].pos, cos, sin)
			}
		})
	}
}
