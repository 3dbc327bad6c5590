package sample

// Logprob is a token and the natural logarithm of its probability.
type Logprob struct {
	ID      int32
	Logprob float32
}

// TopLogprobs lists the n likeliest tokens by the logits as given, from the
// likeliest down (of equals the lowest id first), fewer if logits has fewer. It is nil
// when Next would call the logits an error.
func TopLogprobs(logits []float32, n int) []Logprob {
	norm, err := logSum(logits)
	if err != nil || n <= 0 {
		return nil
	}
	top := make([]Logprob, 0, min(n, len(logits)))
	for id, l := range logits {
		if len(top) == cap(top) && !(l > top[len(top)-1].Logprob) {
			continue
		}
		if len(top) < cap(top) {
			top = append(top, Logprob{})
		}
		i := len(top) - 1
		for ; i > 0 && l > top[i-1].Logprob; i-- {
			top[i] = top[i-1]
		}
		top[i] = Logprob{int32(id), l}
	}
	for i := range top {
		top[i].Logprob = float32(float64(top[i].Logprob) - norm)
	}
	return top
}
