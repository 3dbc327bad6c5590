package hop

import (
	"sync"

	"github.com/meshnet/meshnet/p2p/wire"
)

const (
	// KeepSession and KeepBytes bound what a peer keeps of its own output: 4096 rows
	// of 4096 values a session, and eight such sessions, but in all never more than
	// the keepShare-th part of what its cache may hold.
	KeepSession = 64 << 20
	KeepBytes   = 512 << 20
	keepShare   = 4

	keepBlock = 64 << 10 // kept rows are allocated by this much, or by a row
)

// keeper is what a peer keeps of what it gave to others, to give it again.
//
// Invariant: used is the sum of the blocks of m, at most total; a kept that is not
// in m any more takes nothing in.
type keeper struct {
	session, total int64

	mu   sync.Mutex
	used int64
	m    map[wire.SessionID]*kept
}

// kept are the output rows of one session for its first tokens, or none: rows that
// do not begin with the first token are of no use to who lost everything. One
// goroutine at a time uses it, but for its end.
type kept struct {
	in     *keeper
	end    uint32 // layers before it are in the rows
	dtype  wire.DType
	cache  wire.CacheType // the rows came out of layers that kept theirs so
	row    int            // bytes
	rows   int
	blocks [][]byte
	gone   bool // under in.mu
}

func newKeeper(session, total, cache int64) *keeper {
	if session == 0 {
		session = KeepSession
	}
	if total == 0 {
		total = min(KeepBytes, cache/keepShare)
	}
	return &keeper{session: session, total: total, m: map[wire.SessionID]*kept{}}
}

// of is what is kept for a session; rows after other layers are of no use and go.
func (k *keeper) of(o *wire.Open) *kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	if old := k.m[o.Session]; old != nil {
		if old.end == o.End && old.dtype == o.DType && old.cache == o.CacheType {
			return old
		}
		k.drop(old)
	}
	n := &kept{in: k, end: o.End, dtype: o.DType, cache: o.CacheType, row: int(o.Hidden) * o.DType.Size()}
	k.m[o.Session] = n
	return n
}

// forget frees what is kept for a session.
func (k *keeper) forget(id wire.SessionID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if old := k.m[id]; old != nil {
		k.drop(old)
		delete(k.m, id)
	}
}

// drop ends a kept. The lock is held.
func (k *keeper) drop(e *kept) {
	k.used -= int64(len(e.blocks)) * int64(e.block())
	e.gone, e.blocks, e.rows = true, nil, 0
}

// bytes are held now.
func (k *keeper) bytes() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.used
}

func (e *kept) perBlock() int { return max(1, keepBlock/e.row) }
func (e *kept) block() int    { return e.perBlock() * e.row }

// put takes the rows of the tokens from past on in place of what it has of them.
// Over a bound, or with a gap before them, it keeps nothing.
func (e *kept) put(past int, data []byte) {
	e.in.mu.Lock()
	defer e.in.mu.Unlock()
	if e.gone {
		return
	}
	if past > e.rows {
		e.resize(0)
		return
	}
	end := past + len(data)/e.row
	if !e.resize(end) {
		e.resize(0)
		return
	}
	per := e.perBlock()
	for n := past; n < end; {
		i := n % per
		c := copy(e.blocks[n/per][i*e.row:], data)
		data, n = data[c:], n+c/e.row
	}
}

// resize makes room for exactly so many rows, if the bounds allow it. The lock is held.
func (e *kept) resize(rows int) bool {
	per := e.perBlock()
	blocks, size := (rows+per-1)/per, int64(e.block())
	grow := int64(blocks-len(e.blocks)) * size
	if int64(blocks)*size > e.in.session || grow > 0 && e.in.used+grow > e.in.total {
		return false
	}
	for len(e.blocks) < blocks {
		e.blocks = append(e.blocks, make([]byte, size))
	}
	clear(e.blocks[blocks:])
	e.blocks, e.rows = e.blocks[:blocks], rows
	e.in.used += grow
	return true
}

// get is a copy of rows, or how many there are if not all of them.
func (e *kept) get(past, rows int) (data []byte, have int) {
	e.in.mu.Lock()
	defer e.in.mu.Unlock()
	if past+rows > e.rows {
		return nil, e.rows
	}
	per := e.perBlock()
	data = make([]byte, 0, rows*e.row)
	for n := past; n < past+rows; {
		i := n % per
		c := min(per-i, past+rows-n)
		data = append(data, e.blocks[n/per][i*e.row:(i+c)*e.row]...)
		n += c
	}
	return data, e.rows
}
