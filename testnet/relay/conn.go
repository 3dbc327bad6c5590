package relay

import (
	"io"
	"net"
	"sync"
	"time"
)

const (
	chunkBytes = 32 << 10
	// inFlight chunks bound what a direction of a connection holds: 4 MiB, enough for
	// 100 Mbit/s over 300 ms.
	inFlight = 128
)

// conn is one forwarded connection: ends[0] dialled us, ends[1] we dialled.
type conn struct {
	link    *Link
	ends    [2]*net.TCPConn
	forward bool // ends[0] is the link's a
	done    chan struct{}
	once    sync.Once
}

// chunk is bytes and when they are due, or the end of them.
type chunk struct {
	due  time.Time
	data []byte
	end  error // io.EOF: the sender closed; else it reset
}

// abort resets both ends.
func (c *conn) abort() {
	c.once.Do(func() {
		close(c.done)
		for _, e := range c.ends {
			refuse(e)
		}
	})
}

// run forwards in both directions until both have ended.
func (c *conn) run() {
	var wg sync.WaitGroup
	for from := range 2 {
		direction := from
		if !c.forward {
			direction = 1 - from
		}
		queue := make(chan chunk, inFlight)
		wg.Go(func() { c.take(direction, c.ends[from], queue) })
		wg.Go(func() { c.give(direction, c.ends[1-from], queue) })
	}
	wg.Wait()
	c.once.Do(func() { close(c.done) })
	for _, e := range c.ends {
		e.Close()
	}
}

// take reads one end into the queue, which it closes.
func (c *conn) take(direction int, src *net.TCPConn, queue chan<- chunk) {
	defer close(queue)
	buf := make([]byte, chunkBytes)
	var last time.Time
	for {
		n, err := src.Read(buf)
		if n > 0 {
			last = c.link.due(direction, n, last)
			if !c.push(queue, chunk{due: last, data: append([]byte(nil), buf[:n]...)}) {
				return
			}
		}
		if err != nil {
			c.push(queue, chunk{due: c.link.due(direction, 0, last), end: err})
			return
		}
	}
}

func (c *conn) push(queue chan<- chunk, k chunk) bool {
	select {
	case queue <- k:
		return true
	case <-c.done:
		return false
	}
}

// give writes the queue to the other end, each chunk when it is due and the link
// lets it pass.
func (c *conn) give(direction int, dst *net.TCPConn, queue <-chan chunk) {
	for k := range queue {
		if !c.until(k.due) || !c.link.passes(c.done) {
			c.abort()
			continue // until take has seen it and closes the queue
		}
		switch {
		case k.end == io.EOF:
			dst.CloseWrite()
			continue
		case k.end != nil:
			c.abort()
			continue
		}
		c.link.count(direction, len(k.data)) // before: who has read them may look
		if _, err := dst.Write(k.data); err != nil {
			c.abort()
		}
	}
}

func (c *conn) until(due time.Time) bool {
	wait := time.Until(due)
	if wait <= 0 {
		return true
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.done:
		return false
	}
}
