package token

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// meta is how SentencePiece writes a space.
const meta = "▁"

// spm joins neighbouring characters into the piece of the vocabulary with the
// highest score; of equal scores the leftmost. What no piece covers becomes bytes.
type spm struct {
	ids    map[string]int32
	scores []float32
	bytes  [256]int32
	unk    int32
	prefix bool
}

func (t *Tokenizer) buildSPM(v vocabulary) error {
	if len(v.scores) != len(v.tokens) {
		return fmt.Errorf("%d scores for %d tokens", len(v.scores), len(v.tokens))
	}
	t.addBOS = true
	s := &spm{ids: make(map[string]int32, len(v.tokens)), scores: v.scores, unk: none, prefix: true}
	if v.addSpace != nil {
		s.prefix = *v.addSpace
	}
	t.spacePrefix = s.prefix
	for i := range s.bytes {
		s.bytes[i] = none
	}
	for id, text := range v.tokens {
		if math.IsNaN(float64(v.scores[id])) {
			return fmt.Errorf("the score of token %d %q is not a number", id, text)
		}
		switch t.kinds[id] {
		case byteTok:
			b, ok := byteValue(text)
			if !ok {
				return fmt.Errorf("token %d %q has type byte, but is no byte", id, text)
			}
			s.bytes[b] = int32(id)
		case unknown:
			s.unk = int32(id)
		case control:
		default:
			s.ids[text] = int32(id)
		}
	}
	err := t.setPieces(func(dst []byte, id int) []byte {
		switch t.kinds[id] {
		case byteTok:
			b, _ := byteValue(t.texts[id])
			return append(dst, b)
		case normal, unused:
			return append(dst, strings.ReplaceAll(t.texts[id], meta, " ")...)
		}
		return append(dst, t.texts[id]...)
	})
	t.model = s
	return err
}

// symbol is a part of the text, text[from:to]; joined away when to == from.
type symbol struct {
	from, to   int32
	prev, next int32
}

func (s *spm) encode(dst []int32, text string, start bool) ([]int32, error) {
	if s.prefix && start {
		text = " " + text
	}
	text = strings.ReplaceAll(text, " ", meta)
	symbols := make([]symbol, 0, len(text))
	for i := 0; i < len(text); {
		_, n := utf8.DecodeRuneInString(text[i:])
		at := int32(len(symbols))
		symbols = append(symbols, symbol{int32(i), int32(i + n), at - 1, at + 1})
		i += n
	}
	s.merge(text, symbols)
	for i := 0; i < len(symbols); i = int(symbols[i].next) {
		part := text[symbols[i].from:symbols[i].to]
		if id, ok := s.ids[part]; ok {
			dst = append(dst, id)
			continue
		}
		var err error
		if dst, err = s.fallback(dst, part); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

func (s *spm) merge(text string, symbols []symbol) {
	var heap bigrams[float32]
	push := func(left, right int32) {
		a, b := &symbols[left], &symbols[right]
		if id, ok := s.ids[text[a.from:b.to]]; ok {
			heap.push(bigram[float32]{order: -s.scores[id], left: left, right: right, id: id,
				was: uint64(b.to - a.from)})
		}
	}
	for i := 1; i < len(symbols); i++ {
		push(int32(i)-1, int32(i))
	}
	for len(heap.list) > 0 {
		g := heap.pop()
		a, b := &symbols[g.left], &symbols[g.right]
		// Stale when either side has grown or was joined away: the length tells.
		if a.to == a.from || b.to == b.from || uint64(b.to-a.from) != g.was {
			continue
		}
		a.to, a.next = b.to, b.next
		b.from = b.to
		if int(a.next) < len(symbols) {
			symbols[a.next].prev = g.left
			push(g.left, a.next)
		}
		if a.prev >= 0 {
			push(a.prev, g.left)
		}
	}
}

// fallback writes a part that no piece covers as bytes, or as the unknown token in
// a vocabulary without them.
func (s *spm) fallback(dst []int32, part string) ([]int32, error) {
	before := len(dst)
	for i := 0; i < len(part); i++ {
		id := s.bytes[part[i]]
		if id == none {
			if s.unk == none {
				return dst, errNoBytes
			}
			return append(dst[:before], s.unk), nil
		}
		dst = append(dst, id)
	}
	return dst, nil
}
