package wire

// Role says who opened a stream.
type Role uint8

const (
	RoleHead Role = 1 + iota // the head that owns the session
	RoleLink                 // the previous hop of a chain
)

// Open is the first frame on an activation stream. From the head it makes a peer
// a hop of a session, from the previous hop it makes a link of the chain.
type Open struct {
	Session   SessionID
	Epoch     uint32 // counts re-routes of the session, from 1
	Role      Role
	Start     uint32 // effective start layer
	End       uint32 // half-open
	Model     Fingerprint
	Hidden    uint32 // values a row
	DType     DType
	CacheType CacheType
	MaxLen    uint32   // tokens that the session may grow to
	Prev      string   // peer id that may send activations besides the head; "" = the head only
	Next      string   // peer id that gets the output; "" = the head, on the head's stream
	NextAddrs []string // hints for reaching Next
}

func (*Open) Kind() Kind { return KindOpen }

func (f *Open) append(b []byte) []byte {
	b = begin(b, KindOpen)
	b = appendBin(b, f.Session[:])
	b = appendU32(b, f.Epoch)
	b = append(b, byte(f.Role))
	b = appendU32(b, f.Start)
	b = appendU32(b, f.End)
	b = appendBin(b, f.Model[:])
	b = appendU32(b, f.Hidden)
	b = append(b, byte(f.DType))
	b = append(b, byte(f.CacheType))
	b = appendU32(b, f.MaxLen)
	b = appendStr(b, f.Prev)
	b = appendStr(b, f.Next)
	return appendStrs(b, f.NextAddrs)
}

func (f *Open) parse(c *cursor) {
	c.fixed("session", f.Session[:])
	f.Epoch = c.u32("epoch")
	f.Role = Role(c.u8("role"))
	f.Start = c.u32("start")
	f.End = c.u32("end")
	c.fixed("model", f.Model[:])
	f.Hidden = c.u32("hidden")
	f.DType = DType(c.u8("dtype"))
	f.CacheType = CacheType(c.u8("cache_type"))
	f.MaxLen = c.u32("max_len")
	f.Prev = c.str("prev", MaxPeer)
	f.Next = c.str("next", MaxPeer)
	f.NextAddrs = c.strs("next_addrs", MaxAddrs, MaxAddr)
}

func (f *Open) check() *BadError {
	switch {
	case f.Epoch == 0:
		return bad(KindOpen, "epoch", "counts from 1")
	case f.Role != RoleHead && f.Role != RoleLink:
		return bad(KindOpen, "role", "%d is not known", f.Role)
	case f.Start >= f.End || f.End > MaxLayers:
		return bad(KindOpen, "start, end", "[%d, %d) is no range of layers within %d", f.Start, f.End, MaxLayers)
	case f.Hidden == 0 || f.Hidden > MaxHidden:
		return bad(KindOpen, "hidden", "%d is not in 1 to %d", f.Hidden, MaxHidden)
	case f.DType.Size() == 0:
		return bad(KindOpen, "dtype", "%d is not known", f.DType)
	case f.CacheType == 0 || f.CacheType > MaxCacheType:
		return bad(KindOpen, "cache_type", "%d is not in 1 to %d", f.CacheType, MaxCacheType)
	case f.MaxLen == 0 || f.MaxLen > MaxTokens:
		return bad(KindOpen, "max_len", "%d is not in 1 to %d", f.MaxLen, MaxTokens)
	}
	if e := checkText(KindOpen, "prev", f.Prev, MaxPeer); e != nil {
		return e
	}
	if e := checkText(KindOpen, "next", f.Next, MaxPeer); e != nil {
		return e
	}
	return checkAddrs(KindOpen, "next_addrs", f.NextAddrs)
}

// Ready answers Open.
type Ready struct {
	Session SessionID
	Epoch   uint32
	Held    uint32 // tokens that the cache holds for (session, start, end)
	Linked  bool   // the link to Next stands; false = output goes to the head (star)
	Credit  uint32 // payload bytes that may be outstanding on this stream
}

func (*Ready) Kind() Kind { return KindReady }

func (f *Ready) append(b []byte) []byte {
	b = begin(b, KindReady)
	b = appendBin(b, f.Session[:])
	b = appendU32(b, f.Epoch)
	b = appendU32(b, f.Held)
	b = appendBool(b, f.Linked)
	return appendU32(b, f.Credit)
}

func (f *Ready) parse(c *cursor) {
	c.fixed("session", f.Session[:])
	f.Epoch = c.u32("epoch")
	f.Held = c.u32("held")
	f.Linked = c.bool("linked")
	f.Credit = c.u32("credit")
}

func (f *Ready) check() *BadError { return nil }

// Leaving says that the peer drains: serve on, but open a replacement.
type Leaving struct {
	Session SessionID
	Epoch   uint32
	Grace   uint32 // ms
}

func (*Leaving) Kind() Kind { return KindLeaving }

func (f *Leaving) append(b []byte) []byte {
	b = begin(b, KindLeaving)
	b = appendBin(b, f.Session[:])
	b = appendU32(b, f.Epoch)
	return appendU32(b, f.Grace)
}

func (f *Leaving) parse(c *cursor) {
	c.fixed("session", f.Session[:])
	f.Epoch = c.u32("epoch")
	f.Grace = c.u32("grace")
}

func (f *Leaving) check() *BadError { return nil }

// Close ends a session on a hop and frees its cache.
type Close struct {
	Session SessionID
	Epoch   uint32
}

func (*Close) Kind() Kind { return KindClose }

func (f *Close) append(b []byte) []byte {
	b = begin(b, KindClose)
	b = appendBin(b, f.Session[:])
	return appendU32(b, f.Epoch)
}

func (f *Close) parse(c *cursor) {
	c.fixed("session", f.Session[:])
	f.Epoch = c.u32("epoch")
}

func (f *Close) check() *BadError { return nil }
