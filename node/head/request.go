package head

import (
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/shard/chat"
	"github.com/meshnet/meshnet/shard/sample"
)

// DefaultMaxTokens bounds an answer whose request names no bound.
const DefaultMaxTokens = 1024

// Request is one thing to generate. Exactly one of Messages, Text and IDs is the
// prompt: a conversation goes through the model's template, a text is encoded as
// it stands (control tokens included), ids are taken as they are.
type Request struct {
	Session  wire.SessionID // zero: a random one
	Messages []chat.Message
	Text     string
	IDs      []int32

	MaxTokens int // 0: DefaultMaxTokens; never more than what fits the context
	Sampling  sample.Params
	Stop      []string // at most 16; the text ends before the first of them
	IgnoreEOG bool     // go on past the model's end-of-turn tokens
	Stateless bool     // every step computes everything again
	// Whole: nothing of the answer is used before its end. If some of it turns out wrong
	// it is made anew, where it would else end in an error: emit gets the text again from
	// the beginning, after a Delta that says Again.
	Whole bool

	// Logprobs asks for the log probability of each token, TopLogprobs for that
	// many alternatives beside it (at most 20).
	Logprobs    bool
	TopLogprobs int

	// Logits, if set, is called with the logits of every position in order: the
	// prompt's, then each generated token's but the last. logits is only valid
	// during the call.
	Logits func(position int, logits []float32) error
}

// Delta is a piece of the answer as it comes. Text is whole characters; it may be
// empty while a character or a possible stop string is incomplete.
type Delta struct {
	Text   string
	IDs    []int32        // of the tokens since the last Delta
	Tokens []TokenLogprob // of the same tokens, if asked for
	Note   *Note          // for the person who waits; the rest is empty then
	Again  bool           // what came before is void; the rest is empty then
}

// TokenLogprob is one generated token with what it was chosen from.
type TokenLogprob struct {
	ID      int32
	Bytes   []byte // of the token; may be part of a character
	Logprob float32
	Top     []TokenLogprob // most likely first, without Top of their own
}

// Why an answer ended. A failure has none of the first two.
const (
	FinishStop   = "stop"   // the model ended its turn, or a stop string came
	FinishLength = "length" // max_tokens, or the context is full
	FinishError  = "error"
	FinishCancel = "cancelled"
)

// Result is the whole answer with its measurements. With an error it holds what
// came before the error.
type Result struct {
	Session      wire.SessionID
	PromptIDs    []int32
	IDs          []int32 // generated; an end-of-turn token is not among them
	Text         string
	FinishReason string

	FirstToken time.Duration // from the start of the request to the first token
	Prefill    time.Duration // the prompt through the model
	Decode     time.Duration // from the first token to the last
	Stats      BackendStats
}

// PrefillRate is prompt tokens a second, 0 if unknown.
func (r *Result) PrefillRate() float64 { return rate(len(r.PromptIDs), r.Prefill) }

// DecodeRate is generated tokens a second after the first one, 0 if unknown.
func (r *Result) DecodeRate() float64 { return rate(len(r.IDs)-1, r.Decode) }

func rate(n int, d time.Duration) float64 {
	if n <= 0 || d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// WrongRowsError ends an answer of which a part that is out already turned out wrong.
type WrongRowsError struct {
	Finding
	Tokens int // of the answer, from the beginning, that are right
}

func (e *WrongRowsError) Error() string {
	return fmt.Sprintf("%s; the answer is wrong after %d tokens and ends here: ask again, the mesh goes on without that peer", e.Text, e.Tokens)
}

// ErrBadRequest is wrapped by every error that is the asker's fault.
var ErrBadRequest = errors.New("bad request")

// TooLongError says that the prompt leaves no room for a single token.
type TooLongError struct{ Prompt, Context int }

func (e *TooLongError) Error() string {
	return fmt.Sprintf("the prompt has %d tokens or more; with at least one of the answer it must fit the context of %d: shorten it or start a new conversation", e.Prompt, e.Context)
}

func (e *TooLongError) Unwrap() error { return ErrBadRequest }

type requestError struct{ text string }

func (e *requestError) Error() string { return e.text }
func (e *requestError) Unwrap() error { return ErrBadRequest }

func badRequest(format string, args ...any) error {
	return &requestError{fmt.Sprintf(format, args...)}
}

// SessionHex is the form of a session id in headers, logs and JSON.
func SessionHex(id wire.SessionID) string { return hex.EncodeToString(id[:]) }
