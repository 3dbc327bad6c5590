package shard

import (
	"fmt"

	"github.com/meshnet/meshnet/shard/vec"
)

// State is what one session leaves in layers [start, end): for now rows that
// grow with the session, a key and a value for each position and head. Layers with
// a window keep them all, too, so that a state can be cut anywhere. It holds
// memory in chunks of vec.Chunk positions. It is not safe for concurrent use;
// Forward uses the states of its batch.
type State struct {
	engine     *Engine
	start, end int
	cache      CacheType
	offsets    []int    // where layer start+i begins in a chunk, in bytes
	size       int      // bytes of a chunk, all layers
	chunks     [][]byte // for each vec.Chunk positions
	length     int
	closed     bool
}

// CacheType says how a session's keys and values are kept. It is a property of the
// session: bits depend on the model, the tokens and this.
type CacheType = vec.CacheType

// The types of cache.
const (
	CacheF32 = vec.CacheF32
	CacheF16 = vec.CacheF16
	CacheQ8  = vec.CacheQ8
)

// CacheTypes are all that an engine can keep.
func CacheTypes() []CacheType { return vec.CacheTypes() }

// NewState returns the empty state of a session that passes through layers
// [start, end) of the engine, its keys and values kept as t.
func (e *Engine) NewState(start, end int, t CacheType) (*State, error) {
	if err := e.checkRange(start, end); err != nil {
		return nil, fmt.Errorf("new session state: %w", err)
	}
	if !t.Known() {
		return nil, fmt.Errorf("new session state: %v is not known", t)
	}
	s := &State{engine: e, start: start, end: end, cache: t}
	s.offsets, s.size = e.chunkLayout(start, end, t)
	return s, nil
}

// chunkLayout says where each layer's part of a chunk begins.
func (e *Engine) chunkLayout(start, end int, t CacheType) (offsets []int, size int) {
	for i := start; i < end; i++ {
		offsets = append(offsets, size)
		vectors, dim := e.model.Plan[i].Mixer.StateRow()
		size += vectors * t.PartBytes(dim)
	}
	return offsets, size
}

// StateBytes is the memory that a State of [start, end) takes at maxLen positions.
func (e *Engine) StateBytes(start, end int, t CacheType, maxLen int) int64 {
	if e.checkRange(start, end) != nil || !t.Known() || maxLen <= 0 {
		return 0
	}
	_, size := e.chunkLayout(start, end, t)
	return chunksFor(maxLen) * int64(size)
}

func chunksFor(n int) int64 { return (int64(n) + vec.Chunk - 1) / vec.Chunk }

// Len is the number of positions held.
func (s *State) Len() int { return s.length }

// Range is the layers whose state this is.
func (s *State) Range() (start, end int) { return s.start, s.end }

// Bytes is the memory held now.
func (s *State) Bytes() int64 { return int64(len(s.chunks)) * int64(s.size) }

// Cache is how keys and values are kept.
func (s *State) Cache() CacheType { return s.cache }

// Truncate cuts the state back to its first n positions and says whether that
// was possible. It never is for more than there are.
func (s *State) Truncate(n int) bool {
	if s.closed || n < 0 || n > s.length {
		return false
	}
	s.length = n
	s.drop(int(chunksFor(n)))
	return true
}

// Close frees the memory. Forward refuses a closed state.
func (s *State) Close() {
	s.closed = true
	s.length = 0
	s.drop(0)
}

// drop frees all but the first n chunks.
func (s *State) drop(n int) {
	clear(s.chunks[n:])
	s.chunks = s.chunks[:n]
}

// reserve makes room for n positions.
func (s *State) reserve(n int) {
	for len(s.chunks) < int(chunksFor(n)) {
		s.chunks = append(s.chunks, make([]byte, s.size))
	}
}

// rows is layer's part of the chunk that holds pos.
func (s *State) rows(layer, pos int) []byte {
	return s.chunks[pos/vec.Chunk][s.offsets[layer-s.start]:]
}
