package p2ptest

import (
	"context"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/meshnet/meshnet/p2p"
)

// pair is one stream with its two ends. Everything in it is guarded by Network.mu.
type pair struct {
	net      *Network
	protocol string
	a, b     stream // a opened it
	limited  bool
	dead     bool          // reset
	changed  chan struct{} // closed and replaced when anything here changes
}

// pipe is the bytes on their way to one end.
type pipe struct {
	chunks []chunk
	size   int
	limit  int
	last   time.Time // arrival of the last chunk: nothing overtakes
}

// chunk is bytes, or the end of them: io.EOF or ErrReset.
type chunk struct {
	at   time.Time
	data []byte
	end  error
}

type stream struct {
	pair        *pair
	peer        *Peer
	other       *stream
	in          pipe
	framer      framer
	turn        chan struct{} // holds one token: who writes
	dead        bool          // reset for this end; the other still reads what came before
	closed      bool
	writeClosed bool
	readBy      time.Time
	writeBy     time.Time
}

func (n *Network) newPair(from, to *Peer, protocol string) *pair {
	p := &pair{net: n, protocol: protocol, limited: n.link(from.id, to.id).limited, changed: make(chan struct{})}
	p.a = stream{pair: p, peer: from, other: &p.b, turn: make(chan struct{}, 1), in: pipe{limit: n.buffer}}
	p.b = stream{pair: p, peer: to, other: &p.a, turn: make(chan struct{}, 1), in: pipe{limit: n.buffer}}
	n.streams[p] = struct{}{}
	return p
}

func (p *pair) joins(id p2p.PeerID) bool { return p.a.peer.id == id || p.b.peer.id == id }

func (p *pair) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *pair) reset() {
	p.dead = true
	p.a.in.chunks, p.b.in.chunks = nil, nil
	delete(p.net.streams, p)
	p.wake()
}

func (s *stream) open() bool { return !s.closed && !s.dead && !s.pair.dead }

func (s *stream) Remote() p2p.PeerID { return s.other.peer.id }
func (s *stream) Limited() bool      { return s.pair.limited }

// RemoteIP is for p2p.Origin.
func (s *stream) RemoteIP() netip.Addr { return s.other.peer.ip }

// verdict is what a call does next: return err, or try again at a time (zero: only
// when something changes).
type verdict struct {
	done bool
	err  error
	at   time.Time
}

// loop calls try, under the lock, until it is done. A frozen peer's calls stand still.
func (s *stream) loop(try func(now time.Time) verdict) error {
	n := s.pair.net
	for {
		n.mu.Lock()
		var v verdict
		var changed <-chan struct{}
		if s.peer.frozen { // and may stay so longer than the stream lives
			changed = n.changed
		} else {
			v = try(time.Now())
			changed = s.pair.changed
		}
		n.mu.Unlock()
		if v.done {
			return v.err
		}
		wait(context.Background(), changed, v.at)
	}
}

func (s *stream) hole() bool { return s.pair.net.link(s.peer.id, s.other.peer.id).hole }

func expired(by, now time.Time) bool { return !by.IsZero() && !now.Before(by) }

// sooner is the earlier of two times, where zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (s *stream) Read(p []byte) (int, error) {
	var got int
	err := s.loop(func(now time.Time) verdict {
		switch {
		case s.pair.dead || s.dead:
			return verdict{done: true, err: ErrReset}
		case s.closed:
			return verdict{done: true, err: io.ErrClosedPipe}
		case expired(s.readBy, now):
			return verdict{done: true, err: os.ErrDeadlineExceeded}
		case len(p) == 0:
			return verdict{done: true}
		case len(s.in.chunks) == 0 || s.hole():
			return verdict{at: s.readBy}
		}
		c := &s.in.chunks[0]
		switch {
		case now.Before(c.at):
			return verdict{at: sooner(c.at, s.readBy)}
		case c.end != nil:
			if c.end == ErrReset {
				s.pair.reset()
				return verdict{done: true, err: ErrReset}
			}
			return verdict{done: true, err: c.end}
		}
		got = copy(p, c.data)
		s.in.size -= got
		if c.data = c.data[got:]; len(c.data) == 0 {
			s.in.chunks = s.in.chunks[1:]
		}
		s.pair.wake()
		return verdict{done: true}
	})
	return got, err
}

func (s *stream) Write(p []byte) (int, error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	var written int
	for written < len(p) {
		used, err := s.writePart(p[written:])
		written += used
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// writePart writes up to the end of one frame.
func (s *stream) writePart(p []byte) (int, error) {
	n, r := s.pair.net, route{s.peer.id, s.other.peer.id}
	n.mu.Lock()
	f := &s.framer
	if f.fresh() {
		f.keep = n.watched(r, s.pair.protocol)
	}
	held := len(f.have)
	used, done := f.next(p)
	n.count(r.from, r.to).Bytes += int64(used)
	var fault *Fault
	var sent Sent
	if done {
		sent = Sent{From: r.from, To: r.to, Protocol: s.pair.protocol, Kind: f.kind(), Bytes: f.size}
		n.told(sent)
		n.count(r.from, r.to).Frames[f.kind()]++
		if f.keep {
			fault = n.frameFault(r, s.pair.protocol, f.kind())
		}
	}
	part := p[:used]
	switch {
	case f.keep && done:
		part = append([]byte(nil), f.have...)
	case f.keep && f.blind && held > 0: // it was no frame: let go of what was held
		part = append(append([]byte(nil), f.have[:held]...), part...)
		f.keep = false
	case f.keep && !f.blind:
		part = nil
	}
	if done || f.blind {
		f.reset()
	}
	n.mu.Unlock()

	err := s.strike(part, fault, sent)
	if err != nil {
		return 0, err
	}
	return used, nil
}

// strike sends a part as its fault wants it.
func (s *stream) strike(part []byte, fault *Fault, sent Sent) error {
	if fault == nil {
		return s.send(part, 0, false)
	}
	n := s.pair.net
	if fault.Edit != nil {
		part = fault.Edit(part)
	}
	var err error
	switch fault.Do {
	case Drop:
	case ResetBefore:
		err = s.send(nil, fault.Delay, true)
	case ResetMiddle:
		err = s.send(part[:len(part)/2], fault.Delay, true)
	case ResetAfter:
		err = s.send(part, fault.Delay, true)
	default:
		cut := [...]int{After: len(part), Middle: len(part) / 2, Before: 0}[fault.At]
		err = s.send(part[:cut], fault.Delay, false)
		if fault.On != nil {
			fault.On(n, sent)
		}
		if err == nil && cut < len(part) {
			err = s.send(part[cut:], fault.Delay, false)
		}
	}
	if fault.Do != Pass && fault.On != nil {
		fault.On(n, sent)
	}
	if fault.Then != nil {
		fault.Then(n)
	}
	return err
}

// send puts b on its way as room comes up, and a reset behind it if wanted.
func (s *stream) send(b []byte, delay time.Duration, reset bool) error {
	return s.loop(func(now time.Time) verdict {
		switch {
		case s.pair.dead || s.dead || s.other.dead && !s.hole():
			return verdict{done: true, err: ErrReset}
		case s.closed || s.writeClosed:
			return verdict{done: true, err: io.ErrClosedPipe}
		case expired(s.writeBy, now):
			return verdict{done: true, err: os.ErrDeadlineExceeded}
		case s.other.closed: // nobody reads: gone, as on yamux
			return verdict{done: true}
		}
		in := &s.other.in
		if room := min(in.limit-in.size, len(b)); room > 0 {
			s.put(chunk{data: append([]byte(nil), b[:room]...)}, now, delay)
			b = b[room:]
		}
		if len(b) > 0 {
			return verdict{at: s.writeBy}
		}
		if reset {
			s.put(chunk{end: ErrReset}, now, delay)
			s.dead = true
		}
		return verdict{done: true}
	})
}

// put appends to the other end's pipe, after everything that is there.
func (s *stream) put(c chunk, now time.Time, delay time.Duration) {
	in := &s.other.in
	c.at = now.Add(s.pair.net.link(s.peer.id, s.other.peer.id).latency + delay)
	if c.at.Before(in.last) {
		c.at = in.last
	}
	in.last = c.at
	in.size += len(c.data)
	in.chunks = append(in.chunks, c)
	s.pair.wake()
}

func (s *stream) CloseWrite() error { return s.end(false) }

func (s *stream) Close() error { return s.end(true) }

func (s *stream) end(all bool) error {
	return s.loop(func(now time.Time) verdict {
		if s.pair.dead || s.dead {
			if all {
				return verdict{done: true}
			}
			return verdict{done: true, err: ErrReset}
		}
		if !s.writeClosed {
			if f := &s.framer; f.keep && len(f.have) > 0 { // a frame cut off by its sender
				s.put(chunk{data: append([]byte(nil), f.have...)}, now, 0)
				f.reset()
			}
			s.put(chunk{end: io.EOF}, now, 0)
			s.writeClosed = true
		}
		if all && !s.closed {
			s.closed = true
			s.in.chunks, s.in.size = nil, 0
			if s.other.closed {
				delete(s.pair.net.streams, s.pair)
			}
		}
		s.pair.wake()
		return verdict{done: true}
	})
}

func (s *stream) Reset() error {
	return s.loop(func(now time.Time) verdict {
		s.abort(now)
		return verdict{done: true}
	})
}

// abort resets the stream from this end. Through a black hole the other end can't
// know: it finds the reset when the link heals.
func (s *stream) abort(now time.Time) {
	switch {
	case s.pair.dead || s.dead:
	case s.hole() && !s.other.dead:
		s.dead = true
		s.other.in.chunks, s.other.in.size = nil, 0
		s.put(chunk{end: ErrReset}, now, 0)
	default:
		s.pair.reset()
	}
}

func (s *stream) SetDeadline(t time.Time) error {
	return s.set(func() { s.readBy, s.writeBy = t, t })
}

func (s *stream) SetReadDeadline(t time.Time) error {
	return s.set(func() { s.readBy = t })
}

func (s *stream) SetWriteDeadline(t time.Time) error {
	return s.set(func() { s.writeBy = t })
}

func (s *stream) set(f func()) error {
	s.pair.net.mu.Lock()
	defer s.pair.net.mu.Unlock()
	f()
	s.pair.wake()
	return nil
}
