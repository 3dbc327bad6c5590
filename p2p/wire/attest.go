package wire

import "encoding/binary"

// Digest is the last link of a chain over the rows of a session: see docs/wire.md.
type Digest [32]byte

// Attest asks a hop to sign what it received and sent of a session so far.
type Attest struct {
	Session SessionID
	Epoch   uint32
	Seq     uint32 // of the Attested, or of the Error
	Rows    uint32 // of the tokens [0, Rows)
}

func (*Attest) Kind() Kind { return KindAttest }

func (f *Attest) append(b []byte) []byte {
	b = begin(b, KindAttest)
	b = appendBin(b, f.Session[:])
	b = appendU32(b, f.Epoch)
	b = appendU32(b, f.Seq)
	return appendU32(b, f.Rows)
}

func (f *Attest) parse(c *cursor) {
	c.fixed("session", f.Session[:])
	f.Epoch = c.u32("epoch")
	f.Seq = c.u32("seq")
	f.Rows = c.u32("rows")
}

func (f *Attest) check() *BadError { return checkAttested(KindAttest, f.Rows) }

func checkAttested(k Kind, rows uint32) *BadError {
	if rows == 0 || rows > MaxTokens {
		return bad(k, "rows", "%d is not in 1 to %d", rows, MaxTokens)
	}
	return nil
}

// Attested answers Attest.
type Attested struct {
	Session   SessionID
	Epoch     uint32
	Seq       uint32 // of the Attest
	Start     uint32 // first of the layers that it computed
	End       uint32 // half-open
	Rows      uint32
	In        Digest // of the rows before the first layer
	Out       Digest // of the rows after the last
	Signature []byte // of Statement
}

func (*Attested) Kind() Kind { return KindAttested }

func (f *Attested) append(b []byte) []byte {
	b = begin(b, KindAttested)
	b = appendBin(b, f.Session[:])
	b = appendU32(b, f.Epoch)
	b = appendU32(b, f.Seq)
	b = appendU32(b, f.Start)
	b = appendU32(b, f.End)
	b = appendU32(b, f.Rows)
	b = appendBin(b, f.In[:])
	b = appendBin(b, f.Out[:])
	return appendBin(b, f.Signature)
}

func (f *Attested) parse(c *cursor) {
	c.fixed("session", f.Session[:])
	f.Epoch = c.u32("epoch")
	f.Seq = c.u32("seq")
	f.Start = c.u32("start")
	f.End = c.u32("end")
	f.Rows = c.u32("rows")
	c.fixed("in", f.In[:])
	c.fixed("out", f.Out[:])
	f.Signature = append([]byte(nil), c.bin("signature", maxSignature)...)
}

func (f *Attested) check() *BadError {
	switch n := len(f.Signature); {
	case f.Start >= f.End || f.End > MaxLayers:
		return bad(KindAttested, "start, end", "[%d, %d) is no range of layers within %d", f.Start, f.End, MaxLayers)
	case n == 0 || n > maxSignature:
		return bad(KindAttested, "signature", "%d bytes are not in 1 to %d", n, maxSignature)
	}
	return checkAttested(KindAttested, f.Rows)
}

// attestSignPrefix keeps the signature from being one of anything else.
const attestSignPrefix = "meshnet attest 1\n"

// Statement is what a hop signs: f without epoch and seq, in fixed places, after
// the model, the form of the rows that were digested and how the hop kept its state,
// which the rows depend on.
func (f *Attested) Statement(model Fingerprint, t DType, c CacheType) []byte {
	b := append([]byte(attestSignPrefix), model[:]...)
	b = append(b, f.Session[:]...)
	b = binary.BigEndian.AppendUint32(b, f.Start)
	b = binary.BigEndian.AppendUint32(b, f.End)
	b = append(b, byte(t), byte(c))
	b = binary.BigEndian.AppendUint32(b, f.Rows)
	b = append(b, f.In[:]...)
	return append(b, f.Out[:]...)
}
