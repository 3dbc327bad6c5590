package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// SessionID names one chat request on every hop, drawn at random by its head.
type SessionID [16]byte

// Fingerprint is the SHA-256 of a model file.
type Fingerprint [32]byte

// Kind is the first element of every frame. Numbers are frozen.
type Kind uint8

const (
	KindOpen Kind = 1 + iota
	KindReady
	KindActivation
	KindResult
	KindCredit
	KindPing
	KindLeaving
	KindClose
	KindError
	KindResend
	KindAttest
	KindAttested

	KindOfferRequest Kind = 16
	KindOfferAnswer  Kind = 17
)

var kindNames = map[Kind]string{
	KindOpen: "OPEN", KindReady: "READY", KindActivation: "ACTIVATION", KindResult: "RESULT",
	KindCredit: "CREDIT", KindPing: "PING", KindLeaving: "LEAVING", KindClose: "CLOSE",
	KindError: "ERROR", KindResend: "RESEND", KindAttest: "ATTEST", KindAttested: "ATTESTED",
	KindOfferRequest: "OFFER_REQUEST", KindOfferAnswer: "OFFER_ANSWER",
}

func (k Kind) String() string {
	if s, ok := kindNames[k]; ok {
		return s
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Frame is any of the structs with a Kind: the frames of a session (*Open to
// *Attested) and those of an offer stream (*OfferRequest, *OfferAnswer).
type Frame interface {
	Kind() Kind
	append(dst []byte) []byte
	parse(c *cursor)
	check() *BadError
}

// prefix is the length of the u32 before every frame.
const prefix = 4

// ErrShort says that the bytes are the beginning of a frame: more may complete it.
var ErrShort = errors.New("frame is cut off")

// BadError says that bytes are no frame and never will be, or that a frame must
// not be sent. Code is what to answer: CodeBadFrame or CodeBadShape.
type BadError struct {
	Kind   Kind // 0 where it could not be told
	Field  string
	Reason string
	Code   Code
}

func (e *BadError) Error() string {
	return fmt.Sprintf("bad %v frame: %s: %s", e.Kind, e.Field, e.Reason)
}

func bad(k Kind, field, format string, args ...any) *BadError {
	return &BadError{Kind: k, Field: field, Reason: fmt.Sprintf(format, args...), Code: CodeBadFrame}
}

// Append appends f with its length prefix. A frame over a limit is a *BadError and
// leaves dst as it was; only an Error's Text is cut and cleaned instead, because
// the error it tells of matters more.
func Append(dst []byte, f Frame) ([]byte, error) {
	if e := f.check(); e != nil {
		return dst, e
	}
	start := len(dst)
	b := append(dst, 0, 0, 0, 0)
	b = f.append(b)
	n := len(b) - start - prefix
	if n > f.Kind().limit() {
		return dst, bad(f.Kind(), "length", "%d bytes are over the limit of %d", n, f.Kind().limit())
	}
	binary.BigEndian.PutUint32(b[start:], uint32(n))
	return b, nil
}

// Parse takes one frame with its length prefix from the front of b and says how
// many bytes it used. The error is ErrShort while b is only a beginning, and a
// *BadError when no further byte can help. A payload aliases b.
func Parse(b []byte) (Frame, int, error) {
	n, err := bodyLen(b)
	if err != nil {
		return nil, 0, err
	}
	if len(b) < prefix+n {
		return nil, 0, ErrShort
	}
	f, err := parseBody(new(cursor), b[prefix:prefix+n:prefix+n])
	if err != nil {
		return nil, 0, err
	}
	return f, prefix + n, nil
}

// head is how much bodyLen wants to see: the length, the array's head, the kind.
const head = prefix + 2

// bodyLen reads the length prefix and refuses it as early as it can be judged, so
// that nobody allocates for, or waits for, a frame that would be refused anyway.
func bodyLen(b []byte) (int, error) {
	if len(b) < prefix {
		return 0, ErrShort
	}
	n := binary.BigEndian.Uint32(b)
	if n < 2 || n > MaxFrame-prefix {
		return 0, bad(0, "length", "%d is not in 2 to %d", n, MaxFrame-prefix)
	}
	if len(b) < head {
		return 0, ErrShort
	}
	k := Kind(b[prefix+1])
	if b[prefix]&0xf0 != 0x90 || k.limit() == 0 {
		return 0, bad(0, "kind", "begins with % x instead of an array and a known kind", b[prefix:head])
	}
	if int(n) > k.limit() {
		return 0, bad(k, "length", "%d is over the limit of %d", n, k.limit())
	}
	return int(n), nil
}

// parseBody parses a frame whose head bodyLen has passed, with the caller's cursor
// so that a Reader can keep one.
func parseBody(c *cursor, b []byte) (Frame, error) {
	f := newFrame(Kind(b[1]))
	*c = cursor{b: b, kind: f.Kind()}
	want := f.Kind().elements()
	if got := c.array("array", want); got != want {
		c.fail("array", "%d elements instead of %d", got, want)
	}
	c.off++ // the kind, a one-byte integer
	f.parse(c)
	if c.err == nil && c.off != len(b) {
		c.fail("array", "%d bytes follow its last element", len(b)-c.off)
	}
	if c.err != nil {
		return nil, c.err
	}
	if e := f.check(); e != nil {
		return nil, e
	}
	return f, nil
}

func newFrame(k Kind) Frame {
	switch k {
	case KindOpen:
		return new(Open)
	case KindReady:
		return new(Ready)
	case KindActivation:
		return new(Activation)
	case KindResult:
		return new(Result)
	case KindCredit:
		return new(Credit)
	case KindPing:
		return new(Ping)
	case KindLeaving:
		return new(Leaving)
	case KindClose:
		return new(Close)
	case KindError:
		return new(Error)
	case KindResend:
		return new(Resend)
	case KindAttest:
		return new(Attest)
	case KindAttested:
		return new(Attested)
	case KindOfferRequest:
		return new(OfferRequest)
	case KindOfferAnswer:
		return new(OfferAnswer)
	}
	panic(fmt.Sprintf("wire: newFrame of %v, which bodyLen refuses", k))
}

// elements counts the array's elements, the kind included; never over 15, so that
// the array's head is one byte and the kind has a fixed place.
func (k Kind) elements() int {
	switch k {
	case KindOpen:
		return 14
	case KindReady:
		return 6
	case KindAttest:
		return 5
	case KindAttested:
		return 10
	case KindActivation:
		return 12
	case KindResult:
		return 8
	case KindPing:
		return 11
	case KindCredit, KindLeaving:
		return 4
	case KindClose, KindOfferAnswer:
		return 3
	case KindOfferRequest:
		return 4
	case KindError:
		return 9
	case KindResend:
		return 8
	}
	return 0
}

// begin appends the array's head and the kind.
func begin(dst []byte, k Kind) []byte {
	return append(dst, 0x90|byte(k.elements()), byte(k))
}
