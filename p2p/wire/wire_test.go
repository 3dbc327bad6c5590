package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vmihailenco/msgpack/v5"
)

func mustAppend(t testing.TB, f Frame) []byte {
	t.Helper()
	b, err := Append(nil, f)
	if err != nil {
		t.Fatalf("Append(%v): %v", f.Kind(), err)
	}
	return b
}

// same is what differs, "" for nothing; a nil and an empty slice are the same.
func same(a, b any) string {
	if reflect.DeepEqual(a, b) { // much faster on payloads
		return ""
	}
	return cmp.Diff(a, b, cmpopts.EquateEmpty())
}

func TestParseUndoesAppend(t *testing.T) {
	for _, e := range examples() {
		b := mustAppend(t, e.frame)
		f, n, err := Parse(append(b, 0xff, 0xff))
		if err != nil || n != len(b) {
			t.Fatalf("%s: used %d of %d bytes: %v", e.name, n, len(b), err)
		}
		if d := same(e.frame, f); d != "" {
			t.Errorf("%s: %s", e.name, d)
		}
	}
}

// reference writes v with the msgpack library, fields in the struct's order.
func reference(t *testing.T, enc *msgpack.Encoder, v reflect.Value) {
	t.Helper()
	var err error
	switch v.Kind() {
	case reflect.Pointer:
		reference(t, enc, v.Elem())
	case reflect.Struct:
		n := v.NumField()
		f, framed := v.Addr().Interface().(Frame)
		if framed {
			n++
		}
		err = enc.EncodeArrayLen(n)
		if framed {
			err = errors.Join(err, enc.EncodeUint(uint64(f.Kind())))
		}
		for i := range v.NumField() {
			reference(t, enc, v.Field(i))
		}
	case reflect.Array:
		err = enc.EncodeBytes(v.Slice(0, v.Len()).Bytes())
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			err = enc.EncodeBytes(append([]byte{}, v.Bytes()...))
			break
		}
		err = enc.EncodeArrayLen(v.Len())
		for i := range v.Len() {
			reference(t, enc, v.Index(i))
		}
	case reflect.String:
		err = enc.EncodeString(v.String())
	case reflect.Bool:
		err = enc.EncodeBool(v.Bool())
	case reflect.Int64:
		err = enc.EncodeInt(v.Int())
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		err = enc.EncodeUint(v.Uint())
	default:
		t.Fatalf("no msgpack form for %v", v.Type())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestBytesAreTheLibrarys(t *testing.T) {
	for _, e := range append(examples(),
		example{"widest", &Open{Session: testSession(), Epoch: math.MaxUint32, Role: RoleLink, Start: 999, End: 1000, Hidden: MaxHidden,
			DType: F16, CacheType: MaxCacheType, MaxLen: MaxTokens, Prev: strings.Repeat("p", 31), Next: strings.Repeat("n", 32), NextAddrs: []string{strings.Repeat("a", 256)}}},
		example{"bin16", &Result{Rows: 1, DType: F32, Hidden: 64, Payload: make([]byte, 256)}},
		example{"bin32", &Result{Rows: 256, DType: F32, Hidden: 64, Payload: make([]byte, 65536)}},
	) {
		var ref bytes.Buffer
		reference(t, msgpack.NewEncoder(&ref), reflect.ValueOf(e.frame))
		b := mustAppend(t, e.frame)
		if !bytes.Equal(b[4:], ref.Bytes()) {
			t.Errorf("%s:\n ours % x\nits   % x", e.name, b[4:], ref.Bytes())
		}
		if n := binary.BigEndian.Uint32(b); int(n) != len(b)-4 {
			t.Errorf("%s: length says %d of %d", e.name, n, len(b)-4)
		}
	}
	var ref bytes.Buffer
	reference(t, msgpack.NewEncoder(&ref), reflect.ValueOf(testOffer()))
	if !bytes.Equal(mustOffer(), ref.Bytes()) {
		t.Errorf("offer:\n ours % x\nits   % x", mustOffer(), ref.Bytes())
	}
}

// Another writer may pick wider integers, strings and arrays than needed.
func TestWideFormsAreRead(t *testing.T) {
	for _, tc := range []struct {
		hex  string
		want uint64
	}{
		{"05", 5}, {"cc05", 5}, {"cd0005", 5}, {"ce00000005", 5}, {"cf0000000000000005", 5},
		{"d005", 5}, {"d10005", 5}, {"d200000005", 5}, {"d30000000000000005", 5},
	} {
		c := cursor{b: unhex(t, tc.hex)}
		if v := c.u64("x"); v != tc.want || c.err != nil || c.off != len(c.b) {
			t.Errorf("%s: %d, %v", tc.hex, v, c.err)
		}
	}
	for _, h := range []string{"a3616263", "d903616263", "da0003616263", "db00000003616263"} {
		c := cursor{b: unhex(t, h)}
		if s := c.str("x", 3); s != "abc" || c.err != nil {
			t.Errorf("%s: %q, %v", h, s, c.err)
		}
	}
	for _, h := range []string{"93", "dc0003", "dd00000003"} {
		c := cursor{b: unhex(t, h)}
		if n := c.array("x", 3); n != 3 || c.err != nil {
			t.Errorf("%s: %d, %v", h, n, c.err)
		}
	}
	for _, h := range []string{"ff", "d0ff", "d1ffff", "d2ffffffff", "d3ffffffffffffffff", "c0", "ca00000000", "a0", ""} {
		c := cursor{b: unhex(t, h)}
		if c.u64("x"); c.err == nil {
			t.Errorf("%s was read as an unsigned integer", h)
		}
	}
}

func TestEveryCutIsShort(t *testing.T) {
	for _, e := range examples() {
		b := mustAppend(t, e.frame)
		for n := range b {
			if _, used, err := Parse(b[:n]); !errors.Is(err, ErrShort) || used != 0 {
				t.Fatalf("%s cut to %d of %d bytes: used %d, %v", e.name, n, len(b), used, err)
			}
		}
		// The same cuts with a length that claims to be whole can't be completed.
		for n := 6; n < len(b); n++ {
			cut := bytes.Clone(b[:n])
			binary.BigEndian.PutUint32(cut, uint32(n-4))
			var be *BadError
			if _, _, err := Parse(cut); !errors.As(err, &be) {
				t.Fatalf("%s ending at %d of %d bytes: %v", e.name, n, len(b), err)
			}
		}
	}
	for n := range mustOffer() {
		if _, err := ParseOffer(mustOffer()[:n]); err == nil {
			t.Fatalf("an offer cut to %d bytes was taken", n)
		}
	}
	if _, err := ParseOffer(append(mustOffer(), 0)); err == nil {
		t.Fatal("an offer with a byte behind it was taken")
	}
}

func TestDecodeHeaderIsAtMost64Bytes(t *testing.T) {
	for _, hidden := range []uint32{64, 576, 896, 8192, MaxHidden} {
		// The largest numbers that a healthy decode can reach.
		f := &Activation{Session: testSession(), Epoch: math.MaxUint32, Seq: math.MaxUint32, Mode: Decode, Past: MaxTokens,
			Rows: 1, Want: 1, DType: F32, Hidden: hidden, Deadline: math.MaxUint32, Payload: make([]byte, 4*hidden)}
		if n := len(mustAppend(t, f)) - len(f.Payload); n > 64 {
			t.Errorf("hidden %d: %d bytes of header", hidden, n)
		}
		r := &Result{Session: testSession(), Epoch: math.MaxUint32, Seq: math.MaxUint32, Rows: 1, DType: F32, Hidden: hidden, Payload: f.Payload}
		if n := len(mustAppend(t, r)) - len(r.Payload); n > 64 {
			t.Errorf("result of hidden %d: %d bytes of header", hidden, n)
		}
	}
}

func TestPayloadAliasesTheInput(t *testing.T) {
	b := mustAppend(t, examples()[2].frame)
	f, _, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	p := f.(*Activation).Payload
	if &p[0] != &b[len(b)-len(p)] {
		t.Error("the payload was copied")
	}
	if cap(p) != len(p) {
		t.Error("an append to the payload would write over what follows it")
	}
}

// Every refusal, on both sides: Append must not send what Parse would not take.
func TestRefusals(t *testing.T) {
	act := func(change func(*Activation)) Frame {
		f := *examples()[2].frame.(*Activation)
		change(&f)
		return &f
	}
	open := func(change func(*Open)) Frame {
		f := *examples()[0].frame.(*Open)
		change(&f)
		return &f
	}
	attested := func(change func(*Attested)) Frame {
		f := Attested{End: 1, Rows: 1, Signature: []byte{1}}
		change(&f)
		return &f
	}
	for _, tc := range []struct {
		frame Frame
		field string
		code  Code
	}{
		{open(func(f *Open) { f.Epoch = 0 }), "epoch", CodeBadFrame},
		{open(func(f *Open) { f.Role = 3 }), "role", CodeBadFrame},
		{open(func(f *Open) { f.Start = f.End }), "start, end", CodeBadFrame},
		{open(func(f *Open) { f.End = MaxLayers + 1 }), "start, end", CodeBadFrame},
		{open(func(f *Open) { f.Hidden = 0 }), "hidden", CodeBadFrame},
		{open(func(f *Open) { f.DType = 9 }), "dtype", CodeBadFrame},
		{open(func(f *Open) { f.CacheType = 0 }), "cache_type", CodeBadFrame},
		{open(func(f *Open) { f.CacheType = MaxCacheType + 1 }), "cache_type", CodeBadFrame},
		{open(func(f *Open) { f.MaxLen = MaxTokens + 1 }), "max_len", CodeBadFrame},
		{open(func(f *Open) { f.Next = strings.Repeat("x", MaxPeer+1) }), "next", CodeBadFrame},
		{open(func(f *Open) { f.Prev = "\x1b[2J" }), "prev", CodeBadFrame},
		{open(func(f *Open) { f.Prev = "\xff" }), "prev", CodeBadFrame},
		{open(func(f *Open) { f.NextAddrs = make([]string, MaxAddrs+1) }), "next_addrs", CodeBadFrame},
		{open(func(f *Open) { f.NextAddrs = []string{strings.Repeat("x", MaxAddr+1)} }), "next_addrs", CodeBadFrame},
		{act(func(f *Activation) { f.Mode = 0 }), "cache", CodeBadFrame},
		{act(func(f *Activation) { f.Mode = 5 }), "cache", CodeBadFrame},
		{act(func(f *Activation) { f.Past = MaxTokens + 1 }), "past_len", CodeBadFrame},
		{act(func(f *Activation) { f.Mode = Stateless }), "past_len", CodeBadFrame},
		{act(func(f *Activation) { f.Mode = Refill }), "want", CodeBadFrame}, // it wants a row back
		{act(func(f *Activation) { f.Want = 2 }), "want", CodeBadFrame},
		{act(func(f *Activation) { f.Rows, f.Payload = 0, nil }), "rows", CodeBadShape},
		{act(func(f *Activation) { f.Rows = 2 }), "payload", CodeBadShape},
		{act(func(f *Activation) { f.Rows = MaxRows + 1 }), "rows", CodeBadShape},
		{act(func(f *Activation) { f.Hidden = 0 }), "hidden", CodeBadShape},
		{act(func(f *Activation) { f.Hidden = MaxHidden + 1 }), "hidden", CodeBadShape},
		{act(func(f *Activation) { f.DType = F16 }), "payload", CodeBadShape},
		{act(func(f *Activation) { f.DType = 0 }), "dtype", CodeBadShape},
		{act(func(f *Activation) { f.Payload = f.Payload[:15] }), "payload", CodeBadShape},
		{act(func(f *Activation) { f.Rows, f.Payload = 1<<16, make([]byte, 1<<20-1) }), "payload", CodeBadShape},
		{&Result{Rows: 1, Hidden: 4, DType: F32}, "payload", CodeBadShape},
		{&Result{Rows: 2048, Hidden: 1024, DType: F32, Payload: make([]byte, 8<<20)}, "length", CodeBadFrame},
		{&Error{}, "code", CodeBadFrame},
		{&Resend{}, "rows", CodeBadFrame},
		{&Resend{Rows: MaxRows + 1}, "rows", CodeBadFrame},
		{&Resend{Rows: 1, Past: MaxTokens + 1}, "past_len", CodeBadFrame},
		{&Attest{}, "rows", CodeBadFrame},
		{&Attest{Rows: MaxTokens + 1}, "rows", CodeBadFrame},
		{attested(func(f *Attested) { f.Rows = 0 }), "rows", CodeBadFrame},
		{attested(func(f *Attested) { f.Start = f.End }), "start, end", CodeBadFrame},
		{attested(func(f *Attested) { f.End = MaxLayers + 1 }), "start, end", CodeBadFrame},
		{attested(func(f *Attested) { f.Signature = nil }), "signature", CodeBadFrame},
		{attested(func(f *Attested) { f.Signature = make([]byte, 129) }), "signature", CodeBadFrame},
		{&Error{Code: 1, Peer: strings.Repeat("x", 129)}, "peer", CodeBadFrame},
		{&OfferRequest{}, "network", CodeBadFrame},
		{&OfferRequest{Network: strings.Repeat("x", 65)}, "network", CodeBadFrame},
		{&OfferRequest{Network: "x", Offers: make([]SignedOffer, 9)}, "offers", CodeBadFrame},
		{&OfferAnswer{Network: "x", Offers: make([]SignedOffer, 65)}, "offers", CodeBadFrame},
		{&OfferAnswer{Network: "x", Offers: []SignedOffer{{}}}, "offer", CodeBadFrame},
		{&OfferAnswer{Network: "x", Offers: []SignedOffer{{Payload: make([]byte, 1025)}}}, "offer", CodeBadFrame},
		{&OfferAnswer{Network: "x", Offers: []SignedOffer{{Payload: []byte{1}}}}, "signature", CodeBadFrame},
	} {
		want := &BadError{Kind: tc.frame.Kind(), Field: tc.field, Code: tc.code}
		_, err := Append(nil, tc.frame)
		checkBad(t, "Append", tc.frame, err, want)

		body := tc.frame.append(make([]byte, 4))
		binary.BigEndian.PutUint32(body, uint32(len(body)-4))
		_, _, err = Parse(body)
		checkBad(t, "Parse", tc.frame, err, want)
	}
}

func checkBad(t *testing.T, what string, f Frame, err error, want *BadError) {
	t.Helper()
	var be *BadError
	if !errors.As(err, &be) || be.Field != want.Field && what == "Append" || be.Code != want.Code {
		t.Errorf("%s of a bad %v: %v, want field %q and code %v", what, f.Kind(), err, want.Field, want.Code)
	}
}

func TestHostileBytes(t *testing.T) {
	for name, h := range map[string]string{
		"zero length":                 "00000000",
		"length one":                  "0000000191",
		"length 4 GiB":                "ffffffff",
		"length over the cap":         "00800000",
		"a map":                       "000000108103",
		"kind 0":                      "0000000a9300",
		"kind 13":                     "0000000a930d",
		"a PING of 1 MiB":             "001000009b06",
		"an OPEN of 5 KiB":            "000014009d01",
		"an offer answer of 1 MiB":    "001000009311",
		"too few elements":            "000000049208a1a1",
		"nested arrays":               "body" + "93089191919191919191",
		"session of 1 GiB":            "body" + "9308c64000000001" + "01",
		"session of 15 bytes":         "body" + "9308c40f" + strings.Repeat("00", 15) + "01",
		"payload of 4 GiB - 1":        "body" + "9804c410" + strings.Repeat("00", 16) + "01010101" + "01" + "c6ffffffff" + strings.Repeat("00", 8),
		"text of 4 GiB - 1":           "body" + "9909c410" + strings.Repeat("00", 16) + "010101000000" + "a0" + "dbffffffff" + "00",
		"addresses without end":       "body" + "9d01c410" + strings.Repeat("00", 16) + "01010102" + "c420" + strings.Repeat("00", 32) + "01017f" + "a0a0" + "ddffffffff" + strings.Repeat("00", 18),
		"a byte after the last field": "body" + "9308c410" + strings.Repeat("00", 16) + "0100",
	} {
		if body, ok := strings.CutPrefix(h, "body"); ok {
			h = fmt.Sprintf("%08x", len(body)/2) + body
		}
		var be *BadError
		if _, _, err := Parse(unhex(t, h)); !errors.As(err, &be) {
			t.Errorf("%s: %v", name, err)
		} else if be.Error() == "" {
			t.Errorf("%s: no words", name)
		}
	}
}

func TestErrorTextIsCleanAndShort(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                              "plain",
		"a\x1b[31mb\nc\xff":                  "a [31mb c?",
		strings.Repeat("é", 200):             strings.Repeat("é", 128),
		"x" + strings.Repeat("é", 200):       "x" + strings.Repeat("é", 127),
		strings.Repeat("\xff\xfe", 1_000_00): "?",
	} {
		f, _, err := Parse(mustAppend(t, &Error{Code: CodeInternal, Text: in}))
		if err != nil {
			t.Fatal(err)
		}
		if got := f.(*Error).Text; got != want {
			t.Errorf("%.20q became %q, want %q", in, got, want)
		}
	}
	// A peer that does not clean is cleaned here.
	b := mustAppend(t, &Error{Code: CodeInternal, Text: "abc"})
	b[len(b)-2] = 0x07
	f, _, err := Parse(b)
	if err != nil || f.(*Error).Text != "a c" {
		t.Errorf("%v, %v", f, err)
	}
}

func TestCodesAreFrozen(t *testing.T) {
	for _, tc := range []struct {
		n        int
		name     string
		code     Code
		reaction Reaction
	}{
		{1, "CACHE_MISS", CodeCacheMiss, Replay},
		{2, "BUSY", CodeBusy, Later},
		{3, "DRAINING", CodeDraining, Elsewhere},
		{4, "WRONG_MODEL", CodeWrongModel, Elsewhere},
		{5, "WRONG_RANGE", CodeWrongRange, Elsewhere},
		{6, "NOT_OWNER", CodeNotOwner, Caller},
		{7, "STALE_EPOCH", CodeStaleEpoch, Caller},
		{8, "BAD_FRAME", CodeBadFrame, Caller},
		{9, "BAD_SHAPE", CodeBadShape, Drop},
		{10, "NOT_FINITE", CodeNotFinite, Drop},
		{11, "TOO_LONG", CodeTooLong, Caller},
		{12, "DEADLINE", CodeDeadline, Elsewhere},
		{13, "LINK_DOWN", CodeLinkDown, Elsewhere},
		{14, "LIMITED", CodeLimited, Elsewhere},
		{15, "INTERNAL", CodeInternal, Elsewhere},
		{16, "WRONG_CACHE", CodeWrongCache, Elsewhere},
	} {
		if int(tc.code) != tc.n || tc.code.String() != tc.name || tc.code.Reaction() != tc.reaction {
			t.Errorf("%d %v %v, want %v", tc.code, tc.code, tc.code.Reaction(), tc)
		}
	}
	if n := len(Codes()); n != 16 {
		t.Errorf("%d codes", n)
	}
	for _, c := range []Code{0, 17, 255} {
		if c.Reaction() != Elsewhere || !strings.HasPrefix(c.String(), "code ") {
			t.Errorf("unknown code %d: %v, %v", c, c, c.Reaction())
		}
	}
	for k, n := range map[Kind]int{KindOpen: 1, KindReady: 2, KindActivation: 3, KindResult: 4, KindCredit: 5, KindPing: 6,
		KindLeaving: 7, KindClose: 8, KindError: 9, KindOfferRequest: 16, KindOfferAnswer: 17} {
		if int(k) != n {
			t.Errorf("%v is %d, was frozen as %d", k, k, n)
		}
	}
}

func TestOfferRefusals(t *testing.T) {
	for name, change := range map[string]func(*Offer){
		"no network":      func(o *Offer) { o.Network = "" },
		"no peer":         func(o *Offer) { o.Peer = "" },
		"empty range":     func(o *Offer) { o.Start = o.End },
		"past the model":  func(o *Offer) { o.End = o.Layers + 1 },
		"absurd model":    func(o *Offer) { o.Layers = MaxLayers + 1 },
		"no cache":        func(o *Offer) { o.CacheTypes = 0 },
		"no state":        func(o *Offer) { o.State = 0 },
		"no life":         func(o *Offer) { o.Expires = o.Issued },
		"too long a life": func(o *Offer) { o.Expires = o.Issued + 120_001 },
		"overflow":        func(o *Offer) { o.Issued, o.Expires = -1<<63, 1<<62 },
		"9 addresses":     func(o *Offer) { o.Addrs = make([]string, 9) },
		"9 measurements":  func(o *Offer) { o.RTT = make([]RTT, 9) },
		"control bytes":   func(o *Offer) { o.Version = "a\nb" },
		"over 1 KiB": func(o *Offer) {
			o.Addrs = []string{strings.Repeat("a", 256), strings.Repeat("b", 256), strings.Repeat("c", 256), strings.Repeat("d", 256)}
		},
	} {
		o := testOffer()
		change(o)
		if b, err := AppendOffer([]byte("keep"), o); err == nil || string(b) != "keep" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	o, err := ParseOffer(mustOffer())
	if err != nil {
		t.Fatal(err)
	}
	if d := same(testOffer(), o); d != "" {
		t.Error(d)
	}
}

func TestOffersOutliveTheirFrame(t *testing.T) {
	b := mustAppend(t, &OfferRequest{Network: "home", Offers: []SignedOffer{{Payload: []byte{1}, Signature: []byte{2}}}})
	f, _, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	clear(b) // the reader's buffer is used again
	if o := f.(*OfferRequest).Offers[0]; o.Payload[0] != 1 || o.Signature[0] != 2 {
		t.Error("the offer aliases the frame")
	}
}

func TestNames(t *testing.T) {
	for want, s := range map[string]fmt.Stringer{
		"prefill": Prefill, "decode": Decode, "stateless": Stateless, "f32": F32, "f16": F16, "dtype 7": DType(7),
		"joining": Joining, "online": Online, "draining": Draining, "PING": KindPing, "kind 99": Kind(99),
		"re-prefill": Replay, "drop the peer": Drop, "reaction 9": Reaction(9),
	} {
		if s.String() != want {
			t.Errorf("%q is called %q", want, s)
		}
	}
}
