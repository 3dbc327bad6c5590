package token

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// bpe joins the bytes of a word, pair by pair, best rank first; of equal ranks the
// leftmost.
type bpe struct {
	pre    *pre
	bytes  [256]int32
	merges map[uint64]merge
	words  map[string]int32 // whole words that need no merges; nil unless pre says so
}

type merge struct {
	rank, id int32
}

func pair(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// manySymbols is the word length from which a heap beats looking at every pair.
const manySymbols = 48

func (t *Tokenizer) buildBPE(v vocabulary) error {
	p, err := findPre(v.pre)
	if err != nil {
		return err
	}
	if len(v.merges) > maxVocabulary {
		return fmt.Errorf("%d merges, more than %d", len(v.merges), maxVocabulary)
	}
	t.norm, t.addBOS = p.nfc, p.addBOS
	toByte := byteAlphabet()
	err = t.setPieces(func(dst []byte, id int) []byte {
		if t.kinds[id] == normal || t.kinds[id] == unused {
			if out, ok := appendBytes(dst, t.texts[id], toByte); ok {
				return out
			}
		}
		return append(dst, t.texts[id]...)
	})
	if err != nil {
		return err
	}
	ids := make(map[string]int32, len(t.texts))
	for id, text := range t.texts {
		ids[text] = int32(id)
	}
	b := &bpe{pre: p, merges: make(map[uint64]merge, len(v.merges))}
	for i := range b.bytes {
		b.bytes[i] = none
	}
	for r, value := range toByte {
		if id, ok := ids[string(r)]; ok && t.plain(id) {
			b.bytes[value] = id
		}
	}
	for rank, text := range v.merges {
		if err := b.addMerge(t, ids, int32(rank), text); err != nil {
			return err
		}
	}
	if p.wholeWords {
		b.words = make(map[string]int32, len(t.texts))
		for id := range t.texts {
			if t.plain(int32(id)) {
				b.words[string(t.Piece(int32(id)))] = int32(id)
			}
		}
	}
	t.model = b
	return nil
}

// plain says whether ordinary text may become the token: never a control token,
// whatever a file's merges say.
func (t *Tokenizer) plain(id int32) bool {
	return t.kinds[id] != control && t.kinds[id] != unknown
}

func (b *bpe) addMerge(t *Tokenizer, ids map[string]int32, rank int32, text string) error {
	var left, right string
	if i := strings.IndexByte(text[min(1, len(text)):], ' '); i >= 0 {
		left, right = text[:i+1], text[i+2:]
	}
	if left == "" || right == "" {
		return fmt.Errorf("merge %d is %q, not two words", rank, text)
	}
	l, ok1 := ids[left]
	r, ok2 := ids[right]
	id, ok3 := ids[left+right]
	if !ok1 || !ok2 || !ok3 {
		return fmt.Errorf("merge %d %q: the vocabulary lacks one of %q, %q, %q", rank, text, left, right, left+right)
	}
	if _, again := b.merges[pair(l, r)]; !again && t.plain(id) {
		b.merges[pair(l, r)] = merge{rank, id}
	}
	return nil
}

func (b *bpe) encode(dst []int32, text string, _ bool) ([]int32, error) {
	w := word{bpe: b}
	err := b.pre.split(text, func(piece string) (err error) {
		dst, err = w.encode(dst, piece)
		return err
	})
	return dst, err
}

// word is the working space of one Encode.
type word struct {
	*bpe
	ids, ranks []int32
	heap       bigrams[int32]
	prev, next []int32
}

func (w *word) encode(dst []int32, piece string) ([]int32, error) {
	if w.words != nil {
		if id, ok := w.words[piece]; ok {
			return append(dst, id), nil
		}
	}
	w.ids = slices.Grow(w.ids[:0], len(piece))
	for i := 0; i < len(piece); i++ {
		if id := w.bytes[piece[i]]; id != none {
			w.ids = append(w.ids, id)
			continue
		}
		// Vocabularies may leave out bytes that no UTF-8 text has, such as 0xff.
		for _, b := range []byte("\uFFFD") {
			if w.bytes[b] == none {
				return dst, fmt.Errorf("the vocabulary has no token for the byte %#02x of %q", piece[i], clip(piece))
			}
			w.ids = append(w.ids, w.bytes[b])
		}
	}
	if len(w.ids) < manySymbols {
		w.mergeFew()
	} else {
		w.mergeMany()
	}
	return append(dst, w.ids...), nil
}

// clip keeps an error message short.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

func (w *word) rank(left, right int32) int32 {
	if m, ok := w.merges[pair(left, right)]; ok {
		return m.rank
	}
	return math.MaxInt32
}

// mergeFew keeps the rank of every pair and looks for the smallest.
func (w *word) mergeFew() {
	w.ranks = w.ranks[:0]
	for i := 0; i+1 < len(w.ids); i++ {
		w.ranks = append(w.ranks, w.rank(w.ids[i], w.ids[i+1]))
	}
	for {
		best, at := int32(math.MaxInt32), -1
		for i, r := range w.ranks {
			if r < best {
				best, at = r, i
			}
		}
		if at < 0 {
			return
		}
		w.ids[at] = w.merges[pair(w.ids[at], w.ids[at+1])].id
		w.ids = append(w.ids[:at+1], w.ids[at+2:]...)
		w.ranks = append(w.ranks[:at], w.ranks[at+1:]...)
		if at > 0 {
			w.ranks[at-1] = w.rank(w.ids[at-1], w.ids[at])
		}
		if at < len(w.ranks) {
			w.ranks[at] = w.rank(w.ids[at], w.ids[at+1])
		}
	}
}

// mergeMany does the same with a heap and a linked list.
func (w *word) mergeMany() {
	n := len(w.ids)
	w.heap.list = slices.Grow(w.heap.list[:0], n)
	w.prev, w.next = slices.Grow(w.prev[:0], n), slices.Grow(w.next[:0], n)
	push := func(left, right int32) {
		if m, ok := w.merges[pair(w.ids[left], w.ids[right])]; ok {
			w.heap.push(bigram[int32]{order: m.rank, left: left, right: right, id: m.id,
				was: pair(w.ids[left], w.ids[right])})
		}
	}
	for i := range n {
		w.prev = append(w.prev, int32(i)-1)
		w.next = append(w.next, int32(i)+1)
		if i+1 < n {
			push(int32(i), int32(i)+1)
		}
	}
	for len(w.heap.list) > 0 {
		b := w.heap.pop()
		// Stale when either side has been joined since: ids of joined symbols are none.
		if pair(w.ids[b.left], w.ids[b.right]) != b.was || w.next[b.left] != b.right {
			continue
		}
		w.ids[b.left], w.ids[b.right] = b.id, none
		after := w.next[b.right]
		w.next[b.left] = after
		if int(after) < n {
			w.prev[after] = b.left
			push(b.left, after)
		}
		if w.prev[b.left] >= 0 {
			push(w.prev[b.left], b.left)
		}
	}
	k := 0
	for i := int32(0); int(i) < n; i = w.next[i] {
		w.ids[k] = w.ids[i]
		k++
	}
	w.ids = w.ids[:k]
}

// byteAlphabet is GPT-2's: each byte is written as one printable character. The
// printable ones of Latin-1 stand for themselves, the rest for 256, 257, … in order.
func byteAlphabet() map[rune]byte {
	m := make(map[rune]byte, 256)
	next := rune(256)
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			m[rune(b)] = byte(b)
		} else {
			m[next] = byte(b)
			next++
		}
	}
	return m
}

func appendBytes(dst []byte, text string, toByte map[rune]byte) ([]byte, bool) {
	for _, r := range text {
		b, ok := toByte[r]
		if !ok {
			return nil, false
		}
		dst = append(dst, b)
	}
	return dst, true
}

var errNoBytes = errors.New("the vocabulary has neither byte tokens nor an unknown token")
