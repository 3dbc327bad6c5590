package wire

// OfferSignPrefix stands before the payload in what a peer signs, so that the
// signature is good for nothing else.
const OfferSignPrefix = "meshnet offer 2\n"

// Offer is what a peer says that it serves. It travels signed (SignedOffer).
type Offer struct {
	Network       string // name of the mesh, at most 64 bytes
	Model         Fingerprint
	Layers        uint32 // of the whole model
	Peer          string
	Start, End    uint32
	State         OfferState
	Seq           uint64 // rises with every offer of this peer, over restarts too (unix ms at issue works)
	Issued        int64  // unix ms
	Expires       int64  // unix ms, at most 120 s after Issued
	DecodeMicros  uint32 // measured: one row through the whole range
	PrefillMicros uint32 // measured: a row of a full chunk through the whole range
	CacheFree     uint64 // bytes
	CacheBytes    uint64
	CacheTypes    CacheTypes // that it keeps
	Sessions      uint32
	MaxSessions   uint32
	TTLSeconds    uint32
	Addrs         []string // at most 8
	Version       string   // of the engine, at most 32 bytes
	RelayOnly     bool
	RTT           []RTT // to likely neighbours, at most 8
}

// RTT is a measured round trip.
type RTT struct {
	Peer   string
	Micros uint32
}

type OfferState uint8

const (
	Joining OfferState = 1 + iota
	Online
	Draining
)

func (s OfferState) String() string {
	switch s {
	case Joining:
		return "joining"
	case Online:
		return "online"
	case Draining:
		return "draining"
	}
	return "unknown"
}

// offerElements is the length of an offer's array. An offer has no kind: it is
// bytes inside a SignedOffer.
const offerElements = 22

// AppendOffer appends the bytes that SignedOffer.Payload holds. The error is that
// of Validate, or that they are over MaxOfferBytes: leave out addresses or RTTs.
func AppendOffer(b []byte, o *Offer) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return b, err
	}
	start := len(b)
	p := appendArray(b, offerElements)
	p = appendStr(p, o.Network)
	p = appendBin(p, o.Model[:])
	p = appendU32(p, o.Layers)
	p = appendStr(p, o.Peer)
	p = appendU32(p, o.Start)
	p = appendU32(p, o.End)
	p = append(p, byte(o.State))
	p = appendUint(p, o.Seq)
	p = appendUint(p, uint64(o.Issued))
	p = appendUint(p, uint64(o.Expires))
	p = appendU32(p, o.DecodeMicros)
	p = appendU32(p, o.PrefillMicros)
	p = appendUint(p, o.CacheFree)
	p = appendUint(p, o.CacheBytes)
	p = appendUint(p, uint64(o.CacheTypes))
	p = appendU32(p, o.Sessions)
	p = appendU32(p, o.MaxSessions)
	p = appendU32(p, o.TTLSeconds)
	p = appendStrs(p, o.Addrs)
	p = appendStr(p, o.Version)
	p = appendBool(p, o.RelayOnly)
	p = appendArray(p, len(o.RTT))
	for _, r := range o.RTT {
		p = appendU32(appendStr(appendArray(p, 2), r.Peer), r.Micros)
	}
	if n := len(p) - start; n > MaxOfferBytes {
		return b, bad(0, "offer", "%d bytes are over %d", n, MaxOfferBytes)
	}
	return p, nil
}

// ParseOffer parses exactly one offer. The error is a *BadError; whether the offer
// is true, timely and meant for us is for p2p/offer to judge.
func ParseOffer(b []byte) (*Offer, error) {
	if len(b) > MaxOfferBytes {
		return nil, bad(0, "offer", "%d bytes are over %d", len(b), MaxOfferBytes)
	}
	o, c := new(Offer), cursor{b: b}
	if n := c.array("offer", offerElements); n != offerElements {
		c.fail("offer", "%d elements instead of %d", n, offerElements)
	}
	o.Network = c.str("network", MaxNetwork)
	c.fixed("model", o.Model[:])
	o.Layers = c.u32("layers")
	o.Peer = c.str("peer", MaxPeer)
	o.Start = c.u32("start")
	o.End = c.u32("end")
	o.State = OfferState(c.u8("state"))
	o.Seq = c.u64("seq")
	o.Issued = int64(c.uint("issued", 1<<63-1))
	o.Expires = int64(c.uint("expires", 1<<63-1))
	o.DecodeMicros = c.u32("decode_micros")
	o.PrefillMicros = c.u32("prefill_micros")
	o.CacheFree = c.u64("cache_free")
	o.CacheBytes = c.u64("cache_bytes")
	o.CacheTypes = CacheTypes(c.u8("cache_types"))
	o.Sessions = c.u32("sessions")
	o.MaxSessions = c.u32("max_sessions")
	o.TTLSeconds = c.u32("ttl_seconds")
	o.Addrs = c.strs("addrs", MaxAddrs, MaxAddr)
	o.Version = c.str("version", MaxVersion)
	o.RelayOnly = c.bool("relay_only")
	if n := c.array("rtt", MaxRTTs); n > 0 {
		o.RTT = make([]RTT, n)
	}
	for i := range o.RTT {
		if n := c.array("rtt", 2); n != 2 {
			c.fail("rtt", "%d elements instead of peer and micros", n)
		}
		o.RTT[i] = RTT{Peer: c.str("rtt peer", MaxPeer), Micros: c.u32("rtt micros")}
	}
	if c.err == nil && c.off != len(b) {
		c.fail("offer", "%d bytes follow it", len(b)-c.off)
	}
	if c.err == nil {
		c.err = o.Validate()
	}
	if c.err != nil {
		return nil, c.err
	}
	return o, nil
}

// Validate checks what the offer itself can show: ranges, lengths, life. It knows
// neither clock nor signer.
func (o *Offer) Validate() error {
	if e := o.check(); e != nil {
		return e
	}
	return nil
}

func (o *Offer) check() *BadError {
	switch {
	case o.Network == "":
		return bad(0, "network", "has no name")
	case o.Peer == "":
		return bad(0, "peer", "has no name")
	case o.Layers == 0 || o.Layers > MaxLayers:
		return bad(0, "layers", "%d is not in 1 to %d", o.Layers, MaxLayers)
	case o.Start >= o.End || o.End > o.Layers:
		return bad(0, "start, end", "[%d, %d) is no range within %d layers", o.Start, o.End, o.Layers)
	case o.State < Joining || o.State > Draining:
		return bad(0, "state", "%d is not known", o.State)
	case o.Issued < 0 || o.Expires <= o.Issued || o.Expires-o.Issued > MaxOfferLife:
		return bad(0, "expires", "a life from %d to %d is not within 1 to %d ms", o.Issued, o.Expires, MaxOfferLife)
	case o.CacheTypes == 0:
		return bad(0, "cache_types", "names none")
	case len(o.RTT) > MaxRTTs:
		return bad(0, "rtt", "%d measurements are over %d", len(o.RTT), MaxRTTs)
	}
	for _, r := range o.RTT {
		if e := checkText(0, "rtt peer", r.Peer, MaxPeer); e != nil {
			return e
		}
	}
	if e := checkText(0, "network", o.Network, MaxNetwork); e != nil {
		return e
	}
	if e := checkText(0, "peer", o.Peer, MaxPeer); e != nil {
		return e
	}
	if e := checkText(0, "version", o.Version, MaxVersion); e != nil {
		return e
	}
	return checkAddrs(0, "addrs", o.Addrs)
}
