package wire

import "fmt"

// Error says why an Open or Activation was not done. Nothing was applied.
type Error struct {
	Session SessionID
	Epoch   uint32
	Seq     uint32 // 0 where no step is meant
	Code    Code
	Held    uint32 // with CacheMiss: tokens held
	Retry   uint32 // with Busy: ms
	Peer    string // the peer that the error is about, if not the sender (LinkDown, NotFinite)
	Text    string // for people; at most 256 bytes; never a prompt
}

func (*Error) Kind() Kind { return KindError }

func (f *Error) append(b []byte) []byte {
	b = begin(b, KindError)
	b = appendBin(b, f.Session[:])
	b = appendU32(b, f.Epoch)
	b = appendU32(b, f.Seq)
	b = appendUint(b, uint64(f.Code))
	b = appendU32(b, f.Held)
	b = appendU32(b, f.Retry)
	b = appendStr(b, f.Peer)
	return appendStr(b, cleanText(f.Text, MaxText))
}

func (f *Error) parse(c *cursor) {
	c.fixed("session", f.Session[:])
	f.Epoch = c.u32("epoch")
	f.Seq = c.u32("seq")
	f.Code = Code(c.u8("code"))
	f.Held = c.u32("held")
	f.Retry = c.u32("retry")
	f.Peer = c.str("peer", MaxPeer)
	// Cleaned rather than refused: why a hop failed must not get lost over an accent.
	f.Text = cleanText(c.str("text", MaxText), MaxText)
}

func (f *Error) check() *BadError {
	if f.Code == 0 {
		return bad(KindError, "code", "is missing")
	}
	return checkText(KindError, "peer", f.Peer, MaxPeer)
}

// Code is a reason. Numbers are frozen; Reaction fixes what the other side does.
type Code uint8

const (
	CodeCacheMiss  Code = 1 + iota // holds fewer tokens than Past: re-prefill, same session
	CodeBusy                       // no room now: come back after Retry ms
	CodeDraining                   // leaving: go elsewhere
	CodeWrongModel                 // serves another model: go elsewhere
	CodeWrongRange                 // does not hold the layers: go elsewhere
	CodeNotOwner                   // the session belongs to another head: caller's fault
	CodeStaleEpoch                 // a newer Open exists: caller's fault
	CodeBadFrame                   // unparsable, oversize or out of place: caller's fault
	CodeBadShape                   // rows, hidden, dtype and payload disagree: drop the sender
	CodeNotFinite                  // NaN or infinity among the rows: drop the sender
	CodeTooLong                    // past the declared or the model's length: caller's fault
	CodeDeadline                   // too late, not computed: go elsewhere
	CodeLinkDown                   // can't reach Peer, the next hop: go elsewhere or star
	CodeLimited                    // came over a limited relay circuit: go elsewhere
	CodeInternal                   // failed for a reason of its own: go elsewhere
	CodeWrongCache                 // does not keep caches of the session's type: go elsewhere
)

// Reaction is what a Code asks of whoever receives it.
type Reaction uint8

const (
	Replay    Reaction = 1 + iota // re-prefill under the same session id
	Elsewhere                     // ban for a while, re-plan
	Later                         // wait, then ask again or go elsewhere
	Caller                        // our own fault: report, don't retry
	Drop                          // the named peer lies or is broken: ban, re-plan
)

var codes = [...]struct {
	name     string
	reaction Reaction
}{
	CodeCacheMiss:  {"CACHE_MISS", Replay},
	CodeBusy:       {"BUSY", Later},
	CodeDraining:   {"DRAINING", Elsewhere},
	CodeWrongModel: {"WRONG_MODEL", Elsewhere},
	CodeWrongRange: {"WRONG_RANGE", Elsewhere},
	CodeNotOwner:   {"NOT_OWNER", Caller},
	CodeStaleEpoch: {"STALE_EPOCH", Caller},
	CodeBadFrame:   {"BAD_FRAME", Caller},
	CodeBadShape:   {"BAD_SHAPE", Drop},
	CodeNotFinite:  {"NOT_FINITE", Drop},
	CodeTooLong:    {"TOO_LONG", Caller},
	CodeDeadline:   {"DEADLINE", Elsewhere},
	CodeLinkDown:   {"LINK_DOWN", Elsewhere},
	CodeLimited:    {"LIMITED", Elsewhere},
	CodeInternal:   {"INTERNAL", Elsewhere},
	CodeWrongCache: {"WRONG_CACHE", Elsewhere},
}

// Codes is every code, in the order of their numbers.
func Codes() []Code {
	all := make([]Code, 0, len(codes)-1)
	for c := range codes[1:] {
		all = append(all, Code(c+1))
	}
	return all
}

func (c Code) String() string {
	if c == 0 || int(c) >= len(codes) {
		return fmt.Sprintf("code %d", uint8(c))
	}
	return codes[c].name
}

// Reaction is Elsewhere for a code of a newer peer: whatever it means, another
// peer may not have it.
func (c Code) Reaction() Reaction {
	if c == 0 || int(c) >= len(codes) {
		return Elsewhere
	}
	return codes[c].reaction
}

func (r Reaction) String() string {
	switch r {
	case Replay:
		return "re-prefill"
	case Elsewhere:
		return "go elsewhere"
	case Later:
		return "come back later"
	case Caller:
		return "caller's fault"
	case Drop:
		return "drop the peer"
	}
	return fmt.Sprintf("reaction %d", uint8(r))
}
