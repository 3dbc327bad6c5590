// Package token turns text into token ids and back, by the vocabulary of a model file.
//
// Two families: byte-level BPE (tokenizer.ggml.model "gpt2") and SentencePiece
// ("llama"). Invariant: text becomes a control token only where the caller asked for
// it (special) and set no guard; no byte of the input is lost without an error (a byte
// of no UTF-8 text that the vocabulary lacks becomes U+FFFD). A Tokenizer is immutable
// and safe for concurrent use.
//
// Start reading at Encode; the file's keys are read in read.go, text is cut into
// words in split.go and pre.go, words become ids in bpe.go and spm.go.
package token

import (
	"fmt"
	"slices"
	"sort"

	"golang.org/x/text/unicode/norm"
)

// MaxInput is the longest text that Encode takes, in bytes. It bounds time: a
// megabyte of one letter costs about a second. Callers set lower limits.
const MaxInput = 8 << 20

// kind is a token's type, numbered as in the file.
type kind uint8

const (
	normal  kind = 1
	unknown kind = 2
	control kind = 3
	defined kind = 4 // user-defined: matches verbatim, always
	unused  kind = 5
	byteTok kind = 6
)

const none = int32(-1)

// Tokenizer is a vocabulary and its rules.
type Tokenizer struct {
	texts   []string // as in the file
	kinds   []kind   // after promotion, see classify
	pieces  []byte   // the bytes that each token stands for, back to back
	ends    []uint32 // ends[i] is where token i's bytes end in pieces
	special specials
	longest int // bytes of text that one token stands for, at most
	model   encoder
	norm    bool

	bos, eos    int32
	eog         map[int32]bool
	addBOS      bool
	spacePrefix bool
}

// encoder is a family's algorithm for text without special tokens.
type encoder interface {
	// encode appends the ids of text. start says that nothing or a special
	// token stands before it.
	encode(dst []int32, text string, start bool) ([]int32, error)
}

// Encode returns the ids of text, without BOS. With special, the texts of control
// tokens become these tokens; without, they are text like any other.
// User-defined tokens always match. Invalid UTF-8 keeps its bytes, as far as the
// vocabulary has them. The error says that text is longer than MaxInput or holds a
// byte that the vocabulary lacks.
func (t *Tokenizer) Encode(text string, special bool) ([]int32, error) {
	return t.encode(text, special, nil)
}

// EncodeGuarded is Encode with special tokens on, except that no control token
// may begin at, or reach across, any of the ascending byte positions in guards:
// there the text is somebody's words that only look like a control token.
func (t *Tokenizer) EncodeGuarded(text string, guards []int) ([]int32, error) {
	return t.encode(text, true, guards)
}

func (t *Tokenizer) encode(text string, special bool, guards []int) ([]int32, error) {
	if len(text) > MaxInput {
		return nil, fmt.Errorf("tokenize: text of %d bytes is longer than %d", len(text), MaxInput)
	}
	var (
		dst   = make([]int32, 0, len(text)/3+1)
		err   error
		from  = 0    // where the pending plain text begins
		start = true // nothing or a special token stands before from
	)
	for i := 0; i < len(text); {
		id, n := t.special.match(text[i:], func(id int32, n int) bool {
			if k := t.kinds[id]; k != control && k != unknown {
				return true
			}
			return special && !guarded(guards, i, i+n)
		})
		if n == 0 {
			i++
			continue
		}
		if from < i {
			if dst, err = t.model.encode(dst, text[from:i], start); err != nil {
				return nil, fmt.Errorf("tokenize: %w", err)
			}
		}
		dst = append(dst, id)
		i += n
		from, start = i, true
	}
	if from < len(text) {
		if dst, err = t.model.encode(dst, text[from:], start); err != nil {
			return nil, fmt.Errorf("tokenize: %w", err)
		}
	}
	return dst, nil
}

// guarded says whether one of the ascending positions is in [from, to).
func guarded(positions []int, from, to int) bool {
	i := sort.SearchInts(positions, from)
	return i < len(positions) && positions[i] < to
}

// Normalize returns text in the form that the model was trained on: NFC for the
// Qwen family, unchanged for the others. Encode leaves that to its caller, so that
// its ids are those of the engines that everybody compares with.
func (t *Tokenizer) Normalize(text string) string {
	if !t.norm {
		return text
	}
	return norm.NFC.String(text)
}

// Size is the number of tokens in the vocabulary.
func (t *Tokenizer) Size() int { return len(t.texts) }

// AddBOS says whether the model wants BOS before a prompt.
func (t *Tokenizer) AddBOS() bool { return t.addBOS && t.bos != none }

// BOS is the token that begins a text, if the vocabulary names one.
func (t *Tokenizer) BOS() (int32, bool) { return t.bos, t.bos != none }

// EOS is the token that ends a text, if the vocabulary names one.
func (t *Tokenizer) EOS() (int32, bool) { return t.eos, t.eos != none }

// EOG says whether a model that produced id has ended its turn.
func (t *Tokenizer) EOG(id int32) bool { return t.eog[id] }

// Control says whether id stands for no text: a control token or the unknown one.
func (t *Tokenizer) Control(id int32) bool {
	return id >= 0 && int(id) < len(t.kinds) && (t.kinds[id] == control || t.kinds[id] == unknown)
}

// ControlTexts lists the texts that Encode turns into control tokens only with special.
func (t *Tokenizer) ControlTexts() []string {
	var out []string
	for id, k := range t.kinds {
		if (k == control || k == unknown) && t.texts[id] != "" {
			out = append(out, t.texts[id])
		}
	}
	return out
}

// BeginsControl says whether text begins with the text of a control token.
func (t *Tokenizer) BeginsControl(text string) bool {
	if text == "" {
		return false
	}
	_, n := t.special.match(text, func(id int32, _ int) bool { return t.Control(id) })
	return n > 0
}

// AtLeast is a number of ids that Encode(text) can't come below. It takes no time,
// so a text that is too long for a model can be refused before Encode takes seconds.
func (t *Tokenizer) AtLeast(text string) int {
	return (len(text) + t.longest - 1) / t.longest
}

// Text is the token's name in the vocabulary, "" when there is no such id.
func (t *Tokenizer) Text(id int32) string {
	if id < 0 || int(id) >= len(t.texts) {
		return ""
	}
	return t.texts[id]
}

// Piece is the bytes that id stands for in a text, possibly a part of a character;
// of a control token, its name. It is nil when there is no such id. The slice is
// the tokenizer's own.
func (t *Tokenizer) Piece(id int32) []byte {
	if id < 0 || int(id) >= len(t.ends) {
		return nil
	}
	from := uint32(0)
	if id > 0 {
		from = t.ends[id-1]
	}
	to := t.ends[id]
	return t.pieces[from:to:to]
}

// Decode is the inverse of Encode: the bytes of ids, with control tokens by name
// and without the space that a SentencePiece vocabulary puts in front.
func (t *Tokenizer) Decode(ids []int32) []byte {
	var out []byte
	start := true
	for _, id := range ids {
		p := t.Piece(id)
		if start && t.spacePrefix && len(p) > 0 && p[0] == ' ' {
			p = p[1:]
		}
		start = t.Control(id) || int(id) < len(t.kinds) && id >= 0 && t.kinds[id] == defined
		out = append(out, p...)
	}
	return out
}

// specials finds special tokens in text: the leftmost one, the longest of those
// that begin there. A vocabulary may have thousands that begin alike, so those are
// looked up by each length that occurs.
type specials struct {
	ids     map[string]int32
	lengths [256][]int // by first byte, longest first
}

func newSpecials(texts []string, kinds []kind) (s specials) {
	s.ids = map[string]int32{}
	for id, text := range texts {
		switch kinds[id] {
		case control, defined, unknown:
			if text != "" {
				s.ids[text] = int32(id)
				list := s.lengths[text[0]]
				if !slices.Contains(list, len(text)) {
					s.lengths[text[0]] = append(list, len(text))
				}
			}
		}
	}
	for _, list := range s.lengths {
		slices.SortFunc(list, func(a, b int) int { return b - a })
	}
	return s
}

// match returns the longest special token that text, which is not empty, begins with
// and that ok allows, and its length; 0 when there is none.
func (s *specials) match(text string, ok func(id int32, n int) bool) (int32, int) {
	for _, n := range s.lengths[text[0]] {
		if n > len(text) {
			continue
		}
		if id, found := s.ids[text[:n]]; found && ok(id, n) {
			return id, n
		}
	}
	return none, 0
}
