package wire

// SignedOffer is an Offer as bytes with its signature by the peer's ed25519 key
// over OfferSignPrefix + Payload. The peer id inlines the public key.
type SignedOffer struct {
	Payload   []byte
	Signature []byte
}

// OfferRequest opens an exchange of offers: what the asker says of itself, so that
// one exchange teaches both sides, and a question.
type OfferRequest struct {
	Network string
	Model   Fingerprint   // zero = of any model
	Offers  []SignedOffer // at most MaxOffersPerRequest
}

func (*OfferRequest) Kind() Kind { return KindOfferRequest }

func (f *OfferRequest) append(b []byte) []byte {
	b = begin(b, KindOfferRequest)
	b = appendStr(b, f.Network)
	b = appendBin(b, f.Model[:])
	return appendOffers(b, f.Offers)
}

func (f *OfferRequest) parse(c *cursor) {
	f.Network = c.str("network", MaxNetwork)
	c.fixed("model", f.Model[:])
	f.Offers = c.offers(MaxOffersPerRequest)
}

func (f *OfferRequest) check() *BadError {
	return checkExchange(KindOfferRequest, f.Network, f.Offers, MaxOffersPerRequest)
}

// OfferAnswer answers an OfferRequest with the answerer's own offer first, if it
// serves anything, and the unexpired ones that it knows of others.
type OfferAnswer struct {
	Network string
	Offers  []SignedOffer // at most MaxOffersPerAnswer
}

func (*OfferAnswer) Kind() Kind { return KindOfferAnswer }

func (f *OfferAnswer) append(b []byte) []byte {
	b = begin(b, KindOfferAnswer)
	b = appendStr(b, f.Network)
	return appendOffers(b, f.Offers)
}

func (f *OfferAnswer) parse(c *cursor) {
	f.Network = c.str("network", MaxNetwork)
	f.Offers = c.offers(MaxOffersPerAnswer)
}

func (f *OfferAnswer) check() *BadError {
	return checkExchange(KindOfferAnswer, f.Network, f.Offers, MaxOffersPerAnswer)
}

func appendOffers(b []byte, offers []SignedOffer) []byte {
	b = appendArray(b, len(offers))
	for _, s := range offers {
		b = appendBin(appendBin(appendArray(b, 2), s.Payload), s.Signature)
	}
	return b
}

// offers copies: an offer outlives the frame that it came in.
func (c *cursor) offers(max int) []SignedOffer {
	n := c.array("offers", max)
	if n == 0 {
		return nil
	}
	list := make([]SignedOffer, n)
	for i := range list {
		if m := c.array("offers", 2); m != 2 {
			c.fail("offers", "%d elements instead of payload and signature", m)
		}
		list[i].Payload = append([]byte(nil), c.bin("offer", MaxOfferBytes)...)
		list[i].Signature = append([]byte(nil), c.bin("signature", maxSignature)...)
	}
	return list
}

func checkExchange(k Kind, network string, offers []SignedOffer, max int) *BadError {
	switch {
	case network == "":
		return bad(k, "network", "has no name")
	case len(offers) > max:
		return bad(k, "offers", "%d are over %d", len(offers), max)
	}
	for _, s := range offers {
		if n := len(s.Payload); n == 0 || n > MaxOfferBytes {
			return bad(k, "offer", "%d bytes are not in 1 to %d", n, MaxOfferBytes)
		}
		if n := len(s.Signature); n == 0 || n > maxSignature {
			return bad(k, "signature", "%d bytes are not in 1 to %d", n, maxSignature)
		}
	}
	return checkText(k, "network", network, MaxNetwork)
}
