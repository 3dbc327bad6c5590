package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"
)

const (
	// readAhead is the bufio before a stream: one wake-up for several small frames.
	readAhead = 16 << 10
	// growStep is how much is allocated on a stranger's word; after that the buffer
	// doubles only as bytes really arrive.
	growStep = 64 << 10
	// keepBuffer is the buffer that a stream keeps after a large frame.
	keepBuffer = 256 << 10
)

// Reader takes frames off a stream. One goroutine uses it.
// Invariant: after an error that is a timeout, ReadFrame goes on where it stopped;
// any other error is final.
type Reader struct {
	br   *bufio.Reader
	max  int
	buf  []byte // of the current frame, prefix included: got of need bytes are there
	got  int
	need int // 0 between frames
	size int
	c    cursor
	err  error
	late func(rest int)
}

// NewReader reads frames of at most max bytes, prefix included; no kind may be
// longer than its own limit in any case.
func NewReader(r io.Reader, max int) *Reader {
	return &Reader{br: bufio.NewReaderSize(r, readAhead), max: max}
}

// OnSlow has f called when a frame has begun that is not here as a whole, with the
// bytes that are to come: whoever sends them should not have all the time of the world.
func (r *Reader) OnSlow(f func(rest int)) { r.late = f }

// ReadFrame gives the next frame. Its payload is valid until the next call. The
// error is io.EOF between two frames, io.ErrUnexpectedEOF within one, a *BadError
// for what is no frame, or the stream's own.
func (r *Reader) ReadFrame() (Frame, error) {
	if r.err != nil {
		return nil, r.err
	}
	f, err := r.read()
	if err != nil {
		if t := (interface{ Timeout() bool })(nil); !errors.As(err, &t) || !t.Timeout() {
			r.err = err
		}
		return nil, err
	}
	return f, nil
}

// FrameBytes is the length of the frame that ReadFrame gave last, prefix included.
func (r *Reader) FrameBytes() int { return r.size }

func (r *Reader) read() (Frame, error) {
	if r.need == 0 {
		if err := r.start(); err != nil {
			return nil, err
		}
	}
	for r.got < r.need {
		if r.got == len(r.buf) {
			grown := make([]byte, min(r.need, 2*len(r.buf)))
			copy(grown, r.buf)
			r.buf = grown
		}
		n, err := r.br.Read(r.buf[r.got:min(r.need, len(r.buf))])
		r.got += n
		if r.got < r.need && err != nil {
			return nil, fmt.Errorf("read frame of %d bytes after %d: %w", r.need, r.got, unexpected(err))
		}
	}
	b := r.buf[prefix:r.need:r.need]
	r.size, r.need, r.got = r.need, 0, 0
	return parseBody(&r.c, b)
}

// start looks at a frame's head, before anything is taken or allocated.
func (r *Reader) start() error {
	h, err := r.br.Peek(head)
	if n, bodyErr := bodyLen(h); bodyErr == nil {
		if r.need = prefix + n; r.need > r.max {
			k := Kind(h[prefix+1])
			r.need = 0
			return bad(k, "length", "%d is over this stream's limit of %d", n, r.max-prefix)
		}
	} else if !errors.Is(bodyErr, ErrShort) {
		return bodyErr
	} else if len(h) == 0 && err == io.EOF {
		return io.EOF
	} else {
		return fmt.Errorf("read frame head: %w", unexpected(err))
	}
	if r.need <= keepBuffer && len(r.buf) > keepBuffer {
		r.buf = nil
	}
	if len(r.buf) < min(r.need, growStep) {
		r.buf = make([]byte, min(growStep, max(r.need, 2*len(r.buf), 1<<10)))
	}
	if rest := r.need - r.br.Buffered(); rest > 0 && r.late != nil {
		r.late(rest)
	}
	return nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Writer puts frames on a stream, each in one Write. Goroutines may share it.
type Writer struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte
	err error
}

func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// WriteFrame gives the bytes written, prefix included. A *BadError wrote nothing
// and the stream is good; any other error is final, as the frame may be cut off.
func (w *Writer) WriteFrame(f Frame) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	b, err := Append(w.buf[:0], f)
	if cap(b) <= keepBuffer {
		w.buf = b[:0]
	}
	if err != nil {
		return 0, err
	}
	n, err := w.w.Write(b)
	if err != nil {
		w.err = fmt.Errorf("write %v frame: %w", f.Kind(), err)
	}
	return n, w.err
}

// WriteFrame writes one frame in one Write, for a stream with few of them.
func WriteFrame(w io.Writer, f Frame) (int, error) { return NewWriter(w).WriteFrame(f) }
