package wire

import (
	"bytes"
	"encoding/binary"
	"math"
)

// The examples of docs/wire.md, in its order; other tests use them as a corpus.

func testSession() (s SessionID) {
	for i := range s {
		s[i] = byte(0xa0 + i)
	}
	return s
}

func testModel() (m Fingerprint) {
	for i := range m {
		m[i] = byte(i)
	}
	return m
}

func testDigest(first byte) (d Digest) {
	for i := range d {
		d[i] = first + 3*byte(i)
	}
	return d
}

func f32le(x ...float32) []byte {
	var b []byte
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

type example struct {
	name  string
	frame Frame
}

func examples() []example {
	s, signed := testSession(), []SignedOffer{{Payload: mustOffer(), Signature: bytes.Repeat([]byte{0x5a}, 64)}}
	return []example{
		{"OPEN", &Open{Session: s, Epoch: 1, Role: RoleHead, Start: 12, End: 24, Model: testModel(), Hidden: 576,
			DType: F32, CacheType: CacheF16, MaxLen: 2048, Prev: "ann", Next: "bob", NextAddrs: []string{"/ip4/192.0.2.7/tcp/4001"}}},
		{"READY", &Ready{Session: s, Epoch: 1, Held: 300, Linked: true, Credit: 512 << 10}},
		{"ACTIVATION", &Activation{Session: s, Epoch: 1, Seq: 301, Mode: Decode, Past: 300, Rows: 1, Want: 1,
			DType: F32, Hidden: 4, Deadline: 2000, Payload: f32le(1, -2, 0.5, 3)}},
		{"RESULT", &Result{Session: s, Epoch: 1, Seq: 301, Rows: 1, DType: F32, Hidden: 4, Payload: f32le(0, 1, 2, 3)}},
		{"CREDIT", &Credit{Session: s, Epoch: 1, Bytes: 64 << 10}},
		{"PING", &Ping{Session: s, Epoch: 1, Nonce: 1 << 40, Reply: true, LastSeq: 301, Frames: 2, Rows: 301,
			Micros: 150_000, BytesIn: 700_000, BytesOut: 2_400}},
		{"LEAVING", &Leaving{Session: s, Epoch: 1, Grace: 30_000}},
		{"CLOSE", &Close{Session: s, Epoch: 1}},
		{"ERROR", &Error{Session: s, Epoch: 2, Seq: 302, Code: CodeCacheMiss, Held: 128, Text: "the session was evicted"}},
		{"RESEND", &Resend{Session: s, Epoch: 2, Seq: 303, Past: 128, Rows: 113, Deadline: 7000, Back: true}},
		{"ATTEST", &Attest{Session: s, Epoch: 2, Seq: 1<<31 + 4, Rows: 300}},
		{"ATTESTED", &Attested{Session: s, Epoch: 2, Seq: 1<<31 + 4, Start: 12, End: 24, Rows: 300,
			In: testDigest(1), Out: testDigest(2), Signature: bytes.Repeat([]byte{0x5b}, 64)}},
		{"OFFER_REQUEST", &OfferRequest{Network: "home", Model: testModel()}},
		{"OFFER_ANSWER", &OfferAnswer{Network: "home", Offers: signed}},
	}
}

func testOffer() *Offer {
	return &Offer{Network: "home", Model: testModel(), Layers: 30, Peer: "ann", Start: 10, End: 20, State: Online,
		Seq: 1_796_076_000_000, Issued: 1_796_076_000_000, Expires: 1_796_076_120_000, DecodeMicros: 4_200,
		PrefillMicros: 900, CacheFree: 1 << 30, CacheBytes: 2 << 30, CacheTypes: AllCacheTypes, Sessions: 1, MaxSessions: 16, TTLSeconds: 600,
		Addrs: []string{"/ip4/192.0.2.7/tcp/4001"}, Version: "0.1.0", RTT: []RTT{{Peer: "bob", Micros: 850}}}
}

func mustOffer() []byte {
	b, err := AppendOffer(nil, testOffer())
	if err != nil {
		panic(err)
	}
	return b
}
