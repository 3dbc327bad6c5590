package wire

// CacheMode says what an activation does with the session's cache.
type CacheMode uint8

const (
	Prefill   CacheMode = 1 + iota // append rows; more than past_len is cut first
	Decode                         // as Prefill, for the single row of a step
	Stateless                      // neither reads nor writes the cache: all rows are here
	Refill                         // append what the cache lacks of the rows, for this hop alone
)

func (m CacheMode) String() string {
	switch m {
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	case Stateless:
		return "stateless"
	case Refill:
		return "refill"
	}
	return "unknown"
}

// Activation carries rows into a hop.
type Activation struct {
	Session  SessionID
	Epoch    uint32
	Seq      uint32 // step number within the session, rises by one a frame, over all epochs
	Mode     CacheMode
	Past     uint32 // tokens that the cache must hold before
	Rows     uint32
	Want     uint32 // last rows whose result the head needs; 0 = acknowledge only
	DType    DType
	Hidden   uint32
	Deadline uint32 // ms until nobody waits any more
	Payload  []byte // rows x hidden
}

func (*Activation) Kind() Kind { return KindActivation }

func (f *Activation) append(b []byte) []byte {
	b = begin(b, KindActivation)
	b = appendBin(b, f.Session[:])
	b = appendU32(b, f.Epoch)
	b = appendU32(b, f.Seq)
	b = append(b, byte(f.Mode))
	b = appendU32(b, f.Past)
	b = appendU32(b, f.Rows)
	b = appendU32(b, f.Want)
	b = append(b, byte(f.DType))
	b = appendU32(b, f.Hidden)
	b = appendU32(b, f.Deadline)
	return appendBin(b, f.Payload)
}

func (f *Activation) parse(c *cursor) {
	c.fixed("session", f.Session[:])
	f.Epoch = c.u32("epoch")
	f.Seq = c.u32("seq")
	f.Mode = CacheMode(c.u8("cache"))
	f.Past = c.u32("past_len")
	f.Rows = c.u32("rows")
	f.Want = c.u32("want")
	f.DType = DType(c.u8("dtype"))
	f.Hidden = c.u32("hidden")
	f.Deadline = c.u32("deadline")
	f.Payload = c.bin("payload", MaxFrame)
}

func (f *Activation) check() *BadError {
	switch {
	case f.Mode < Prefill || f.Mode > Refill:
		return bad(KindActivation, "cache", "mode %d is not known", f.Mode)
	case f.Past > MaxTokens:
		return bad(KindActivation, "past_len", "%d is over %d", f.Past, MaxTokens)
	case f.Mode == Stateless && f.Past != 0:
		return bad(KindActivation, "past_len", "is %d in a stateless frame, which has no past", f.Past)
	case f.Rows == 0:
		return shape(KindActivation, "rows", "there are none")
	case f.Mode == Refill && f.Want != 0:
		return bad(KindActivation, "want", "is %d in a refill, whose rows go nowhere", f.Want)
	case f.Want > f.Rows:
		return bad(KindActivation, "want", "%d of %d rows", f.Want, f.Rows)
	}
	return checkShape(KindActivation, f.Rows, f.Hidden, f.DType, f.Payload)
}

// Result answers an Activation: from the last hop in a chain, from every hop in a star.
type Result struct {
	Session SessionID
	Epoch   uint32
	Seq     uint32
	Rows    uint32 // = min(Want, rows sent); all rows when the head forwards them (star)
	DType   DType
	Hidden  uint32
	Payload []byte
}

func (*Result) Kind() Kind { return KindResult }

func (f *Result) append(b []byte) []byte {
	b = begin(b, KindResult)
	b = appendBin(b, f.Session[:])
	b = appendU32(b, f.Epoch)
	b = appendU32(b, f.Seq)
	b = appendU32(b, f.Rows)
	b = append(b, byte(f.DType))
	b = appendU32(b, f.Hidden)
	return appendBin(b, f.Payload)
}

func (f *Result) parse(c *cursor) {
	c.fixed("session", f.Session[:])
	f.Epoch = c.u32("epoch")
	f.Seq = c.u32("seq")
	f.Rows = c.u32("rows")
	f.DType = DType(c.u8("dtype"))
	f.Hidden = c.u32("hidden")
	f.Payload = c.bin("payload", MaxFrame)
}

func (f *Result) check() *BadError {
	return checkShape(KindResult, f.Rows, f.Hidden, f.DType, f.Payload)
}

func shape(k Kind, field, format string, args ...any) *BadError {
	e := bad(k, field, format, args...)
	e.Code = CodeBadShape
	return e
}

// checkShape holds rows, hidden, dtype and payload against each other.
func checkShape(k Kind, rows, hidden uint32, t DType, payload []byte) *BadError {
	switch {
	case t.Size() == 0:
		return shape(k, "dtype", "%d is not known", t)
	case rows > MaxRows:
		return shape(k, "rows", "%d is over %d", rows, MaxRows)
	case hidden == 0 || hidden > MaxHidden:
		return shape(k, "hidden", "%d is not in 1 to %d", hidden, MaxHidden)
	}
	if want := int(rows) * int(hidden) * t.Size(); want != len(payload) {
		return shape(k, "payload", "%d bytes, but %d rows of %d %v are %d", len(payload), rows, hidden, t, want)
	}
	return nil
}

// Resend asks a hop for rows that it gave away before, as it kept them: they go
// where its output goes, in an Activation of mode Refill to the next hop or, where
// the head forwards, in a Result to the head. With Back they go to the head anyway.
type Resend struct {
	Session  SessionID
	Epoch    uint32
	Seq      uint32 // of the Activation or Result that carries them
	Past     uint32 // position of the first row
	Rows     uint32
	Deadline uint32 // ms until nobody waits any more
	Back     bool   // to the head, in a chain too
}

func (*Resend) Kind() Kind { return KindResend }

func (f *Resend) append(b []byte) []byte {
	b = begin(b, KindResend)
	b = appendBin(b, f.Session[:])
	b = appendU32(b, f.Epoch)
	b = appendU32(b, f.Seq)
	b = appendU32(b, f.Past)
	b = appendU32(b, f.Rows)
	b = appendU32(b, f.Deadline)
	return appendBool(b, f.Back)
}

func (f *Resend) parse(c *cursor) {
	c.fixed("session", f.Session[:])
	f.Epoch = c.u32("epoch")
	f.Seq = c.u32("seq")
	f.Past = c.u32("past_len")
	f.Rows = c.u32("rows")
	f.Deadline = c.u32("deadline")
	f.Back = c.bool("back")
}

func (f *Resend) check() *BadError {
	switch {
	case f.Past > MaxTokens:
		return bad(KindResend, "past_len", "%d is over %d", f.Past, MaxTokens)
	case f.Rows == 0 || f.Rows > MaxRows:
		return bad(KindResend, "rows", "%d is not in 1 to %d", f.Rows, MaxRows)
	}
	return nil
}

// Credit gives back payload bytes that the receiver has taken off the stream.
type Credit struct {
	Session SessionID
	Epoch   uint32
	Bytes   uint32
}

func (*Credit) Kind() Kind { return KindCredit }

func (f *Credit) append(b []byte) []byte {
	b = begin(b, KindCredit)
	b = appendBin(b, f.Session[:])
	b = appendU32(b, f.Epoch)
	return appendU32(b, f.Bytes)
}

func (f *Credit) parse(c *cursor) {
	c.fixed("session", f.Session[:])
	f.Epoch = c.u32("epoch")
	f.Bytes = c.u32("bytes")
}

func (f *Credit) check() *BadError { return nil }
