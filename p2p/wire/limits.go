package wire

// Each limit bounds what a peer can make us allocate, hold or print.
const (
	// MaxFrame bounds the memory that one frame of a stranger can pin.
	MaxFrame = 8 << 20
	// MaxHeader bounds everything of a frame but its payload, and so the whole of
	// a frame without one.
	MaxHeader = 4 << 10
	// MaxOfferFrame bounds a frame on an offer stream: MaxOffersPerAnswer offers
	// of MaxOfferBytes with their signatures.
	MaxOfferFrame = 128 << 10

	// MaxChunkRows and MaxChunkBytes are what a head puts into one prefill frame,
	// so that a decode step never waits long behind it. Stateless frames, which
	// must hold all rows, are bounded by MaxFrame alone.
	MaxChunkRows  = 512
	MaxChunkBytes = 4 << 20

	// MaxHidden and MaxRows keep rows x hidden x size far from overflow.
	MaxHidden = 1 << 16
	MaxRows   = 1 << 16
	// MaxLayers and MaxTokens are beyond any model that we can run.
	MaxLayers = 1 << 10
	MaxTokens = 1 << 24

	// MaxPeer, MaxAddr and MaxAddrs bound names and hints, in bytes and in number.
	MaxPeer  = 128
	MaxAddr  = 256
	MaxAddrs = 8
	// MaxText bounds the words of an Error: they end in a terminal or a log.
	MaxText = 256

	MaxNetwork = 64
	MaxVersion = 32
	MaxRTTs    = 8
	// MaxOfferBytes bounds the signed bytes of an offer.
	MaxOfferBytes = 1 << 10
	// MaxOffersPerAnswer and MaxOffersPerRequest bound the signature checks that
	// one frame can cause.
	MaxOffersPerAnswer  = 64
	MaxOffersPerRequest = 8
	// MaxOfferLife is the longest time between Issued and Expires, in ms.
	MaxOfferLife = 120_000

	maxSignature = 128
)

// limit is the longest body (a frame without its u32) of a kind; 0 = no such kind.
func (k Kind) limit() int {
	switch k {
	case KindActivation, KindResult:
		return MaxFrame - prefix
	case KindOfferRequest, KindOfferAnswer:
		return MaxOfferFrame - prefix
	case KindOpen, KindReady, KindCredit, KindPing, KindLeaving, KindClose, KindError, KindResend, KindAttest, KindAttested:
		return MaxHeader - prefix
	}
	return 0
}
