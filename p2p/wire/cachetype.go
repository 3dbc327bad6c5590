package wire

import (
	"fmt"
	"math/bits"
	"strings"
)

// CacheType says how a session's keys and values are kept on every hop: bits depend
// on the model, the tokens and this. Numbers are frozen; those without a name here
// may be of a newer peer.
type CacheType uint8

const (
	CacheF32 CacheType = 1 + iota
	CacheF16           // binary16, ties to even, finite values held at ±65504
	CacheQ8            // int8, a float32 scale for 32 values of a head's dimension
)

// DefaultCacheType is what a head takes unless told otherwise: docs/decisions/0007-cache-types.md.
const DefaultCacheType = CacheF16

// MaxCacheType is the largest number that an OPEN may name.
const MaxCacheType = 8

var cacheTypeNames = [...]string{CacheF32: "f32", CacheF16: "f16", CacheQ8: "q8"}

func (t CacheType) String() string {
	if t == 0 || int(t) >= len(cacheTypeNames) {
		return fmt.Sprintf("cache type %d", uint8(t))
	}
	return cacheTypeNames[t]
}

// ParseCacheType reads what String writes.
func ParseCacheType(name string) (CacheType, error) {
	for t, n := range cacheTypeNames {
		if n != "" && n == name {
			return CacheType(t), nil
		}
	}
	return 0, fmt.Errorf("cache type %q: give one of %s", name, strings.Join(cacheTypeNames[1:], ", "))
}

// CacheTypes is a set of cache types: bit t-1 stands for type t.
type CacheTypes uint8

// AllCacheTypes are those with a name.
const AllCacheTypes CacheTypes = 1<<(CacheQ8) - 1

// CacheTypesOf is the set of some types.
func CacheTypesOf(types ...CacheType) (s CacheTypes) {
	for _, t := range types {
		if t >= 1 && t <= MaxCacheType {
			s |= 1 << (t - 1)
		}
	}
	return s
}

// Has says that t is in the set.
func (s CacheTypes) Has(t CacheType) bool { return s&CacheTypesOf(t) != 0 }

// Names are the types of the set in words; those of newer peers by number.
func (s CacheTypes) Names() []string {
	var names []string
	for s != 0 {
		i := bits.TrailingZeros8(uint8(s))
		names = append(names, CacheType(i+1).String())
		s &^= 1 << i
	}
	return names
}
