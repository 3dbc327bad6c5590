package token

import "cmp"

// bigram is two neighbouring symbols that may be joined.
type bigram[O cmp.Ordered] struct {
	order       O // smaller joins first; of equals the leftmost
	left, right int32
	id          int32
	was         uint64 // what the symbols were when this was noted, to see that it is stale
}

// bigrams is a binary heap; its own, because container/heap boxes every element.
type bigrams[O cmp.Ordered] struct {
	list []bigram[O]
}

func (h *bigrams[O]) less(i, j int) bool {
	a, b := &h.list[i], &h.list[j]
	if a.order != b.order {
		return a.order < b.order
	}
	return a.left < b.left
}

func (h *bigrams[O]) push(b bigram[O]) {
	h.list = append(h.list, b)
	for i := len(h.list) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			return
		}
		h.list[i], h.list[up] = h.list[up], h.list[i]
		i = up
	}
}

func (h *bigrams[O]) pop() bigram[O] {
	top, last := h.list[0], len(h.list)-1
	h.list[0] = h.list[last]
	h.list = h.list[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return top
		}
		if down+1 < last && h.less(down+1, down) {
			down++
		}
		if !h.less(down, i) {
			return top
		}
		h.list[i], h.list[down] = h.list[down], h.list[i]
		i = down
	}
}
