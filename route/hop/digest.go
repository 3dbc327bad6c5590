package hop

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/meshnet/meshnet/p2p/wire"
)

// maxAttests bounds the ATTESTs of a session that wait: each costs a signature.
const maxAttests = 16

// rowsDomain begins every chain.
const rowsDomain = "meshnet rows 1\n"

// Chain digests the rows of a session in the order of their tokens, so that two who
// have the same digest after n rows had the same n rows. The zero Chain has none.
type Chain struct {
	d []wire.Digest // after 1, 2, ... rows
}

// Rows is how many it has digested.
func (c *Chain) Rows() int { return len(c.d) }

// At is the digest after n rows.
func (c *Chain) At(n int) wire.Digest {
	if n == 0 {
		return sha256.Sum256([]byte(rowsDomain))
	}
	return c.d[n-1]
}

// Cut takes back all but the first n rows.
func (c *Chain) Cut(n int) { c.d = c.d[:min(n, len(c.d))] }

// Put digests rows from position past on, in place of what it had of them; row is
// the bytes of one. With a gap before them it stays as it is.
func (c *Chain) Put(past int, data []byte, row int) { c.set(past, c.links(past, data, row)) }

// links are the digests that Put would add; none after a gap.
func (c *Chain) links(past int, data []byte, row int) []wire.Digest {
	if past > len(c.d) {
		return nil
	}
	d := c.At(past)
	links := make([]wire.Digest, 0, len(data)/row)
	h := sha256.New()
	for ; len(data) >= row; data = data[row:] {
		h.Reset()
		h.Write(d[:])
		h.Write(data[:row])
		h.Sum(d[:0])
		links = append(links, d)
	}
	return links
}

func (c *Chain) set(past int, links []wire.Digest) {
	if past <= len(c.d) {
		c.d = append(c.d[:past], links...)
	}
}

// PutRows is Put of rows x hidden values as they are on the wire.
func (c *Chain) PutRows(past int, x []float32, hidden int, t wire.DType) error {
	data, err := payloadFor(x, t)
	if err != nil {
		return fmt.Errorf("digest rows: %w", err)
	}
	c.Put(past, data, hidden*t.Size())
	return nil
}

// chains are what a hop digests of a session. Its worker's; a later epoch over the
// same layers and dtype takes them over.
type chains struct{ in, out Chain }

// counted digests rows that the cache has taken: links of those that came in, from
// before they were computed, and x, what they have become.
func (ss *session) counted(past int, links []wire.Digest, x []float32) {
	ss.chains.in.set(past, links)
	if err := ss.chains.out.PutRows(past, x, ss.srv.cfg.Hidden, ss.open.DType); err != nil {
		ss.chains.out.Cut(past) // deliver says why
	}
}

// inLinks digests rows before they are computed, which is done in place.
func (ss *session) inLinks(past int, x []float32) []wire.Digest {
	data, err := payloadFor(x, ss.open.DType)
	if err != nil {
		return nil // nothing is counted from there on
	}
	return ss.chains.in.links(past, data, ss.srv.cfg.Hidden*ss.open.DType.Size())
}

// attestAsked checks a head's ATTEST and puts it into the inbox.
func (ss *session) attestAsked(c *conn, f *wire.Attest, head bool) error {
	if !head || f.Session != ss.open.Session || f.Epoch != ss.open.Epoch {
		return errors.New("ATTEST out of place")
	}
	if ss.attests.Add(1) > maxAttests {
		return errors.New("too many ATTESTs wait")
	}
	return ss.queue(item{attest: f, from: c})
}

// attest signs what the session has counted.
func (ss *session) attest(q *wire.Attest) {
	defer ss.attests.Add(-1)
	if have := min(ss.chains.in.Rows(), ss.chains.out.Rows()); uint32(have) < q.Rows {
		ss.tell(wire.Error{Seq: q.Seq, Code: wire.CodeCacheMiss, Held: uint32(have), Text: fmt.Sprintf("%d rows are digested", have)})
		return
	}
	o := ss.open
	a := &wire.Attested{
		Session: o.Session, Epoch: o.Epoch, Seq: q.Seq, Start: o.Start, End: o.End, Rows: q.Rows,
		In: ss.chains.in.At(int(q.Rows)), Out: ss.chains.out.At(int(q.Rows)),
	}
	err := errors.New("this peer has no key")
	if sign := ss.srv.cfg.Sign; sign != nil {
		a.Signature, err = sign(a.Statement(o.Model, o.DType, o.CacheType))
	}
	if err != nil {
		ss.tell(wire.Error{Seq: q.Seq, Code: wire.CodeInternal, Text: "sign: " + err.Error()})
		return
	}
	ss.srv.count.attested.Add(1)
	_ = ss.head.write(a, 0) // a broken stream is seen by its reader
}

// Verifier says whether sig is a peer's signature of msg.
type Verifier func(peer string, msg, sig []byte) error

// Attest has a hop sign what it received and sent of the tokens [0, rows), and
// checks the signature. It is as Kept otherwise: with CodeCacheMiss the hop counts
// fewer rows, and nothing of the circuit is the worse for that; an answer that is not
// signed by the hop breaks it.
func (c *Circuit) Attest(ctx context.Context, hop, rows int, verify Verifier) (*wire.Attested, error) {
	if hop < 0 || hop >= len(c.legs) || rows <= 0 || rows > wire.MaxTokens || verify == nil {
		return nil, fmt.Errorf("attest %d rows of hop %d of %d", rows, hop, len(c.legs))
	}
	w := &back{leg: hop, rows: uint32(rows), verify: verify}
	err := c.ask(ctx, w, func(seq uint32) wire.Frame {
		return &wire.Attest{Session: c.req.Session, Epoch: c.req.Epoch, Seq: seq, Rows: uint32(rows)}
	})
	if err != nil {
		return nil, err
	}
	return w.signed, nil
}

// attested takes a hop's answer to ATTEST.
func (c *Circuit) attested(l *leg, f *wire.Attested, nonsense func(wire.Code, string) *Error) *Error {
	c.mu.Lock()
	w := c.backs.take(f.Seq, l.i)
	c.mu.Unlock()
	h := l.hop
	switch {
	case w == nil || w.verify == nil || f.Session != c.req.Session || f.Epoch != c.req.Epoch:
		return nonsense(wire.CodeBadFrame, "an ATTESTED that was not asked for")
	case f.Rows != w.rows || int(f.Start) != h.Start || int(f.End) != h.End:
		return nonsense(wire.CodeBadFrame, fmt.Sprintf("attests %d rows of layers [%d, %d), asked for %d of [%d, %d)", f.Rows, f.Start, f.End, w.rows, h.Start, h.End))
	}
	if err := w.verify(string(h.Peer.ID), f.Statement(c.req.Model, c.req.DType, c.req.Cache), f.Signature); err != nil {
		return nonsense(wire.CodeBadFrame, "ATTESTED: "+err.Error())
	}
	c.mu.Lock()
	w.signed = f
	c.mu.Unlock()
	close(w.done)
	return nil
}
