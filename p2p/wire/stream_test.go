package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func allExamples(t testing.TB) []byte {
	var b []byte
	for _, e := range examples() {
		b = append(b, mustAppend(t, e.frame)...)
	}
	return b
}

func TestReaderGivesFramesFromAnyChunks(t *testing.T) {
	big := &Activation{Session: testSession(), Epoch: 1, Mode: Prefill, Rows: 300, DType: F32, Hidden: 1024, Payload: bytes.Repeat([]byte{1, 2, 3, 4}, 300*1024)}
	stream := append(allExamples(t), mustAppend(t, big)...)
	stream = append(stream, allExamples(t)...)
	want := append(append(examples(), example{"big", big}), examples()...)
	for name, in := range map[string]io.Reader{
		"whole": bytes.NewReader(stream), "bytes": iotest.OneByteReader(bytes.NewReader(stream)),
		"halves": iotest.HalfReader(bytes.NewReader(stream)), "data with EOF": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		r := NewReader(in, MaxFrame)
		for i, e := range want {
			f, err := r.ReadFrame()
			if err != nil {
				t.Fatalf("%s: frame %d (%s): %v", name, i, e.name, err)
			}
			if d := same(e.frame, f); d != "" {
				t.Fatalf("%s: frame %d (%s): %s", name, i, e.name, d)
			}
			if n := len(mustAppend(t, e.frame)); r.FrameBytes() != n {
				t.Fatalf("%s: frame %d has %d bytes, not %d", name, i, n, r.FrameBytes())
			}
		}
		for range 2 {
			if _, err := r.ReadFrame(); err != io.EOF {
				t.Fatalf("%s: the end is %v", name, err)
			}
		}
	}
}

func TestReaderNamesACutStream(t *testing.T) {
	b := mustAppend(t, examples()[2].frame)
	for n := 1; n < len(b); n++ {
		if _, err := NewReader(bytes.NewReader(b[:n]), MaxFrame).ReadFrame(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut after %d of %d bytes: %v", n, len(b), err)
		}
	}
}

// stutter gives a timeout before every byte.
type stutter struct {
	r    io.Reader
	turn bool
}

func (s *stutter) Read(p []byte) (int, error) {
	if s.turn = !s.turn; s.turn {
		return 0, os.ErrDeadlineExceeded
	}
	return s.r.Read(p[:1])
}

func TestReaderGoesOnAfterATimeout(t *testing.T) {
	r := NewReader(&stutter{r: bytes.NewReader(allExamples(t))}, MaxFrame)
	var timeouts int
	for _, e := range examples() {
		for {
			f, err := r.ReadFrame()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				timeouts++
				continue
			}
			if err != nil || same(e.frame, f) != "" {
				t.Fatalf("%s: %v, %v", e.name, f, err)
			}
			break
		}
	}
	if timeouts < len(allExamples(t)) {
		t.Errorf("only %d timeouts", timeouts)
	}
}

func TestReaderStaysDeadAfterABadFrame(t *testing.T) {
	stream := append(unhex(t, "0000000a9300"), allExamples(t)...)
	r := NewReader(bytes.NewReader(stream), MaxFrame)
	var be *BadError
	for range 2 {
		if _, err := r.ReadFrame(); !errors.As(err, &be) {
			t.Fatal(err)
		}
	}
}

func TestReaderKeepsItsOwnLimit(t *testing.T) {
	f := &Result{Rows: 64, DType: F32, Hidden: 64, Payload: make([]byte, 4*64*64)}
	b := mustAppend(t, f)
	if _, err := NewReader(bytes.NewReader(b), len(b)).ReadFrame(); err != nil {
		t.Error(err)
	}
	var be *BadError
	if _, err := NewReader(bytes.NewReader(b), len(b)-1).ReadFrame(); !errors.As(err, &be) || be.Kind != KindResult {
		t.Error(err)
	}
}

// A stranger who declares 8 MiB and sends little costs little.
func TestReaderAllocatesWhatArrives(t *testing.T) {
	declared := append(unhex(t, "007ffff09c03"), make([]byte, 100<<10)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		if _, err := NewReader(bytes.NewReader(declared), MaxFrame).ReadFrame(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / 10; n > 512<<10 {
		t.Errorf("%d bytes allocated for 100 KiB that came", n)
	}
}

type countWriter struct {
	bytes.Buffer
	writes int
	fail   error
}

func (c *countWriter) Write(p []byte) (int, error) {
	c.writes++
	if c.fail != nil {
		return len(p) / 2, c.fail
	}
	return c.Buffer.Write(p)
}

func TestWriterWritesOnceAFrame(t *testing.T) {
	var out countWriter
	w := NewWriter(&out)
	for i, e := range examples() {
		n, err := w.WriteFrame(e.frame)
		if err != nil || n != len(mustAppend(t, e.frame)) || out.writes != i+1 {
			t.Fatalf("%s: %d bytes, %d writes, %v", e.name, n, out.writes, err)
		}
	}
	if !bytes.Equal(out.Bytes(), allExamples(t)) {
		t.Error("other bytes than Append's")
	}
	if _, err := w.WriteFrame(&Error{}); err == nil || out.writes != len(examples()) {
		t.Error("a bad frame was written")
	}
	if _, err := w.WriteFrame(&Close{}); err != nil {
		t.Errorf("a bad frame spoilt the stream: %v", err)
	}
	out.fail = errors.New("reset")
	for range 2 {
		if _, err := w.WriteFrame(&Close{}); err == nil || !strings.Contains(err.Error(), "CLOSE") {
			t.Error(err)
		}
	}
	if out.writes != len(examples())+2 {
		t.Error("wrote to a stream that had failed")
	}
}

func TestSteadyDecodeAllocatesOnlyTheFrame(t *testing.T) {
	f := &Activation{Session: testSession(), Epoch: 1, Seq: 7, Mode: Decode, Past: 9, Rows: 1, Want: 1, DType: F32, Hidden: 896, Payload: make([]byte, 4*896)}
	stream := bytes.NewBuffer(nil)
	r, w := NewReader(stream, MaxFrame), NewWriter(stream)
	n := testing.AllocsPerRun(100, func() {
		if _, err := w.WriteFrame(f); err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadFrame(); err != nil {
			t.Fatal(err)
		}
	})
	if n > 1 {
		t.Errorf("%v allocations a frame", n)
	}
}
