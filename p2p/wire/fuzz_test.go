package wire

import (
	"bytes"
	"errors"
	"testing"
)

// Whatever parses must be sendable and parse to the same again; whatever does not
// must be called short or bad.
func FuzzParse(f *testing.F) {
	for _, e := range examples() {
		f.Add(mustAppend(f, e.frame))
	}
	f.Add(unhex(f, "0000000a93089191919191919191"))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, n, err := Parse(b)
		if err != nil {
			var be *BadError
			if short, bad := errors.Is(err, ErrShort), errors.As(err, &be); short == bad || fr != nil || n != 0 {
				t.Fatalf("%v, %d, %v", fr, n, err)
			}
			return
		}
		again, err := Append(nil, fr)
		if err != nil {
			t.Fatalf("parsed, but can't be sent: %v", err)
		}
		if len(again) > n {
			t.Fatalf("%d bytes became %d", n, len(again))
		}
		fr2, _, err := Parse(again)
		if err != nil || same(fr, fr2) != "" {
			t.Fatalf("%v: %s", err, same(fr, fr2))
		}
	})
}

func FuzzParseOffer(f *testing.F) {
	f.Add(mustOffer())
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ParseOffer(b)
		if err != nil {
			return
		}
		again, err := AppendOffer(nil, o)
		if err != nil {
			t.Fatalf("parsed, but can't be sent: %v", err)
		}
		o2, err := ParseOffer(again)
		if err != nil || same(o, o2) != "" {
			t.Fatalf("%v: %s", err, same(o, o2))
		}
	})
}

// A Reader sees the same frames in a stream as Parse in the bytes.
func FuzzReader(f *testing.F) {
	f.Add(allExamples(f))
	f.Add(allExamples(f)[:100])
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b), MaxFrame)
		for {
			want, n, perr := Parse(b)
			got, rerr := r.ReadFrame()
			if (perr == nil) != (rerr == nil) {
				t.Fatalf("Parse: %v, Reader: %v", perr, rerr)
			}
			if perr != nil {
				return
			}
			if d := same(want, got); d != "" {
				t.Fatal(d)
			}
			b = b[n:]
		}
	})
}

// FuzzFloats: a payload is refused, or all of its values are finite and go back to the
// same bytes.
func FuzzFloats(f *testing.F) {
	f.Add([]byte{0, 0, 0x80, 0x3f}, false)
	f.Add([]byte{0, 0, 0xc0, 0x7f}, false)
	f.Add([]byte{0, 0x7c, 1, 0}, true)
	f.Add([]byte{0xff, 0x7b}, true)
	f.Fuzz(func(t *testing.T, b []byte, half bool) {
		typ := F32
		if half {
			typ = F16
		}
		x := make([]float32, len(b)/typ.Size())
		if err := Floats(x, b, typ); err != nil {
			return
		}
		if !Finite(x) {
			t.Fatalf("%v passes as finite", x)
		}
		again, err := AppendFloats(nil, x, typ)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%x became %x, %v", b, again, err)
		}
	})
}
