package cache

import (
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// retryAfter is told to a head that finds every entry in use: about the length
// of one prefill chunk, after which some entry is idle again.
const retryAfter = time.Second

// restful: an entry that was idle for this part of the TTL is nobody's at work.
const restful = 20

// Store holds the entries. Safe for use by several goroutines.
type Store struct {
	cfg Config

	mu      sync.Mutex
	closed  bool
	lru     *simplelru.LRU[Key, *record] // use order only: this package makes room itself
	charged int64                        // Σ charge over lru and over dropped records still in use
	stats   Stats                        // the counters
}

// record is an entry as the store sees it.
//
// Invariant: a record is in lru, or it is gone; a gone record is closed as
// soon as pins is 0. While pins is not 0 its state belongs to who pinned it,
// and the store goes by length and bytes as it saw them last.
type record struct {
	key      Key
	owner    string
	state    State
	length   int
	bytes    int64
	reserved int64
	charge   int64 // max(reserved, bytes)
	pins     int
	gone     bool
	used     time.Time
}

// New makes an empty store.
func New(cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	lru, err := simplelru.NewLRU[Key, *record](cfg.MaxSessions, nil)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	return &Store{cfg: cfg, lru: lru}, nil
}

// Admit makes sure that key has an entry for owner with maxBytes reserved, and
// says how many tokens it already holds. An entry that exists is kept and its
// reservation changed; otherwise make is called, once, when there is room.
// Room is made from expired entries, then from idle entries of the same
// session over other layers (a re-route left them behind), then from those idle for
// a twentieth of the TTL, then from owners that hold more than their share, then
// from any; of each, the least recently used first. Who would hold more than its
// share takes nothing from those who don't, while they are at work.
//
// Errors: *FullError, ErrNotOwner (the session is another head's, over
// whatever layers), ErrClosed, or make's own; the entry is then as before, and
// idle entries may have been evicted only when make failed.
func (s *Store) Admit(key Key, owner string, maxBytes int64, make func() (State, error)) (held int, err error) {
	if maxBytes < 0 || key.Start < 0 || key.End <= key.Start {
		return 0, fmt.Errorf("cache: admit session %v with %d bytes: bad range or size", key, maxBytes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, ErrClosed
	}
	s.expire()
	for _, r := range s.lru.Values() {
		if r.key.Session == key.Session && r.owner != owner {
			return 0, ErrNotOwner
		}
	}
	if r, ok := s.lru.Peek(key); ok {
		if err := s.room(r, key, owner, max(maxBytes, r.bytes)-r.charge); err != nil {
			return 0, err
		}
		r.reserved = maxBytes
		s.recharge(r)
		s.touch(r)
		return r.length, nil
	}
	if err := s.room(nil, key, owner, maxBytes); err != nil {
		return 0, err
	}
	state, err := make()
	if err != nil {
		return 0, fmt.Errorf("cache: new state of session %v: %w", key, err)
	}
	r := &record{key: key, owner: owner, state: state, reserved: maxBytes}
	s.lru.Add(key, r)
	s.touch(r)
	r.look()
	s.recharge(r)
	s.shrink()
	return r.length, nil
}

// Acquire pins key's entry: until Release it is neither evicted nor expired.
// Pins count; that one step at a time works on a state is the callers' care.
// Errors: *MissError, ErrNotOwner, ErrClosed.
func (s *Store) Acquire(key Key, owner string) (*Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	r, ok := s.lru.Peek(key)
	if ok && r.owner != owner {
		return nil, ErrNotOwner
	}
	if ok && s.expired(r) {
		s.remove(r)
		s.stats.Expirations++
		ok = false
	}
	if !ok {
		s.stats.Misses++
		return nil, &MissError{Key: key}
	}
	r.pins++
	s.touch(r)
	return &Entry{s: s, r: r}, nil
}

// Drop removes every entry of a session, whoever owns it, and says how many
// there were. A state in use is closed when it is released.
func (s *Store) Drop(session [16]byte) int {
	return s.drop(func(r *record) bool { return r.key.Session == session })
}

// DropOwner removes every entry of an owner.
func (s *Store) DropOwner(owner string) int {
	return s.drop(func(r *record) bool { return r.owner == owner })
}

// DropAll removes every entry.
func (s *Store) DropAll() int {
	return s.drop(func(*record) bool { return true })
}

func (s *Store) drop(which func(*record) bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.lru.Values() {
		if which(r) {
			s.remove(r)
			n++
		}
	}
	return n
}

// Sweep removes expired entries and says how many. The store works without it;
// a caller's ticker gives memory back early.
func (s *Store) Sweep() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.expire()
}

// Stats describes the store now.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Sessions, st.MaxSessions = s.lru.Len(), s.cfg.MaxSessions
	st.Bytes, st.MaxBytes = s.charged, s.cfg.MaxBytes
	st.TTL = s.cfg.TTL
	now := s.cfg.Now()
	for _, r := range s.lru.Values() {
		st.Rows = append(st.Rows, Row{
			Session: hex.EncodeToString(r.key.Session[:4]), Start: r.key.Start, End: r.key.End,
			Len: r.length, Bytes: r.bytes, Reserved: r.reserved,
			Idle: max(0, now.Sub(r.used)), InUse: r.pins > 0,
		})
	}
	return st
}

// Close removes everything; states in use close when they are released.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.DropAll()
}

// Everything below wants s.mu held.

// room evicts idle records until extra more bytes fit, and, when keep is nil,
// one more record too. It evicts nothing at all if that would not be enough.
func (s *Store) room(keep *record, key Key, owner string, extra int64) error {
	slots := s.lru.Len() - s.cfg.MaxSessions
	h := s.holdings()
	mine := h.of(owner)
	mine.bytes += extra
	if keep == nil {
		slots++
		mine.entries++
	}
	bytes := extra - (s.cfg.MaxBytes - s.charged)
	var victims []*record
	for slots > 0 || bytes > 0 {
		r := s.victim(keep, key, owner, h, victims)
		if r == nil {
			return s.full(keep, extra)
		}
		victims = append(victims, r)
		slots--
		bytes -= r.charge
		lost := h.of(r.owner)
		lost.entries--
		lost.bytes -= r.charge
	}
	for _, r := range victims {
		s.remove(r)
		s.stats.Evictions++
	}
	return nil
}

func (s *Store) full(keep *record, extra int64) *FullError {
	e := &FullError{NeedBytes: extra, MaxBytes: s.cfg.MaxBytes, Sessions: s.lru.Len(), MaxSessions: s.cfg.MaxSessions, RetryAfter: retryAfter}
	if keep != nil {
		e.NeedBytes += keep.charge
	}
	if e.NeedBytes > s.cfg.MaxBytes {
		e.RetryAfter = 0
	}
	return e
}

// victim is the next record to go for an owner who needs room, nil if none may:
// one that the same session left behind over other layers, then one idle for long,
// then one of an owner with more than its share, then, but not for an owner who has
// more than that itself, any. Within each, the least recently used.
func (s *Store) victim(keep *record, key Key, owner string, h holdings, but []*record) (best *record) {
	const none = 4
	rank, now := none, s.cfg.Now()
	greedy := s.over(owner, h)
	for _, r := range s.lru.Values() { // oldest first
		if r == keep || r.pins > 0 || slices.Contains(but, r) {
			continue
		}
		k := none
		switch {
		case r.key.Session == key.Session:
			k = 0
		case now.Sub(r.used) >= s.cfg.TTL/restful:
			k = 1
		case s.over(r.owner, h):
			k = 2
		case !greedy:
			k = 3
		}
		if k < rank {
			best, rank = r, k
		}
	}
	return best
}

// holdings is what each owner has.
type holdings map[string]*holding

type holding struct {
	entries int
	bytes   int64
}

func (s *Store) holdings() holdings {
	h := holdings{}
	for _, r := range s.lru.Values() {
		x := h.of(r.owner)
		x.entries++
		x.bytes += r.charge
	}
	return h
}

func (h holdings) of(owner string) *holding {
	if h[owner] == nil {
		h[owner] = &holding{}
	}
	return h[owner]
}

// over says that an owner has more than its share of the entries or bytes. Whoever
// has a single session is never over it.
func (s *Store) over(owner string, h holdings) bool {
	x := h.of(owner)
	return x.entries > 1 && (x.entries > s.cfg.MaxSessions/len(h) || x.bytes > s.cfg.MaxBytes/int64(len(h)))
}

// shrink evicts idle records, oldest first, while the charges are over budget.
func (s *Store) shrink() {
	for _, r := range s.lru.Values() {
		if s.charged <= s.cfg.MaxBytes {
			return
		}
		if r.pins == 0 {
			s.remove(r)
			s.stats.Evictions++
		}
	}
}

func (s *Store) expired(r *record) bool {
	return r.pins == 0 && s.cfg.Now().Sub(r.used) >= s.cfg.TTL
}

func (s *Store) expire() (n int) {
	for _, r := range s.lru.Values() {
		if s.expired(r) {
			s.remove(r)
			s.stats.Expirations++
			n++
		}
	}
	return n
}

func (s *Store) touch(r *record) {
	r.used = s.cfg.Now()
	s.lru.Get(r.key)
}

func (s *Store) recharge(r *record) {
	s.charged -= r.charge
	r.charge = max(r.reserved, r.bytes)
	s.charged += r.charge
}

// look is for whoever may touch the state: its user, or nobody uses it.
func (r *record) look() { r.length, r.bytes = r.state.Len(), r.state.Bytes() }

func (s *Store) remove(r *record) {
	s.lru.Remove(r.key)
	r.gone = true
	s.bury(r)
}

// bury closes a record that is gone and that nobody uses. Until then its bytes
// stay charged: the memory is still taken.
func (s *Store) bury(r *record) {
	if r.gone && r.pins == 0 {
		s.charged -= r.charge
		r.state.Close()
	}
}

// Entry is a pinned state.
type Entry struct {
	s                *Store
	r                *record
	missed, released bool
}

// State is the entry's state, to be used until Release.
func (e *Entry) State() State { return e.r.state }

// Seek makes the state hold exactly past tokens. Holding more, it is cut back;
// holding less, or too much and impossible to cut, it is a *MissError that
// says how much is of use, and Release will count a miss instead of a hit.
func (e *Entry) Seek(past int) error {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	held := e.r.state.Len()
	if past >= 0 && (held == past || held > past && e.r.state.Truncate(past)) {
		return nil
	}
	if held > past {
		held = 0
	}
	e.missed = true
	return &MissError{Key: e.r.key, Held: held}
}

// Release ends the use and counts it as a hit or miss: the state's bytes are counted anew and the entry is
// the most recently used. A second Release does nothing.
func (e *Entry) Release() {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	if e.released {
		return
	}
	e.released = true
	e.r.pins--
	if e.missed {
		e.s.stats.Misses++
	} else {
		e.s.stats.Hits++
	}
	if e.r.pins == 0 {
		e.r.look()
		e.s.recharge(e.r)
	}
	if e.r.gone {
		e.s.bury(e.r)
		return
	}
	e.s.touch(e.r)
	e.s.shrink()
}
