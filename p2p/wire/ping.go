package wire

// Ping asks for, and answers with, a sign of life. On a session's stream it also
// says how far the hop has come; on a heartbeat stream Session is zero.
type Ping struct {
	Session  SessionID
	Epoch    uint32
	Nonce    uint64
	Reply    bool
	LastSeq  uint32 // last Seq applied
	Frames   uint64 // activations applied since Open
	Rows     uint64 // rows computed since Open
	Micros   uint64 // time spent computing them, queueing excluded
	BytesIn  uint64 // bytes of frames received for the session, headers included
	BytesOut uint64
}

func (*Ping) Kind() Kind { return KindPing }

func (f *Ping) append(b []byte) []byte {
	b = begin(b, KindPing)
	b = appendBin(b, f.Session[:])
	b = appendU32(b, f.Epoch)
	b = appendUint(b, f.Nonce)
	b = appendBool(b, f.Reply)
	b = appendU32(b, f.LastSeq)
	b = appendUint(b, f.Frames)
	b = appendUint(b, f.Rows)
	b = appendUint(b, f.Micros)
	b = appendUint(b, f.BytesIn)
	return appendUint(b, f.BytesOut)
}

func (f *Ping) parse(c *cursor) {
	c.fixed("session", f.Session[:])
	f.Epoch = c.u32("epoch")
	f.Nonce = c.u64("nonce")
	f.Reply = c.bool("reply")
	f.LastSeq = c.u32("last_seq")
	f.Frames = c.u64("frames")
	f.Rows = c.u64("rows")
	f.Micros = c.u64("micros")
	f.BytesIn = c.u64("bytes_in")
	f.BytesOut = c.u64("bytes_out")
}

func (f *Ping) check() *BadError { return nil }
