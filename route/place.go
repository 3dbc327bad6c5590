package route

import (
	"fmt"

	"github.com/meshnet/meshnet/p2p/wire"
)

// Place chooses the layers that a newcomer should serve: of all ranges that its
// memory (bytes) holds, each as long as possible, the one with the most layers
// that nobody offers, then the most that one peer offers, and so on; of equal
// ones the longest, then the first. layerBytes has the size of every layer.
// Offers of leaving peers do not count, those of joining ones do.
func Place(layers int, layerBytes []int64, memory int64, offers []wire.Offer) (start, end int, err error) {
	if layers <= 0 || len(layerBytes) != layers {
		return 0, 0, fmt.Errorf("place a range: %d layers with %d sizes", layers, len(layerBytes))
	}
	holders, most := make([]int, layers), 0
	for _, o := range offers {
		if o.State == wire.Draining || o.RelayOnly {
			continue
		}
		for l := int(o.Start); l < int(min(int64(o.End), int64(layers))); l++ {
			holders[l]++
			most = max(most, holders[l])
		}
	}
	var best []int // how many layers of the range have 0, 1, 2, ... holders
	for s := range layers {
		e, room := s, memory
		counts := make([]int, most+1)
		for e < layers && layerBytes[e] <= room {
			room -= layerBytes[e]
			counts[holders[e]]++
			e++
		}
		if e > s && (best == nil || needier(counts, best)) {
			best, start, end = counts, s, e
		}
	}
	if best == nil {
		least := layerBytes[0]
		for _, b := range layerBytes {
			least = min(least, b)
		}
		return 0, 0, fmt.Errorf("place a range: %d bytes of memory hold no layer, the smallest has %d: give more with --memory", memory, least)
	}
	return start, end, nil
}

func needier(a, b []int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] > b[i]
		}
	}
	return false
}
