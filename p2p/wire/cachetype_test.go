package wire

import (
	"slices"
	"testing"
)

// Numbers are frozen: they stand in OPEN and, as bits, in offers.
func TestCacheTypes(t *testing.T) {
	for i, name := range []string{"f32", "f16", "q8"} {
		c, err := ParseCacheType(name)
		if err != nil || int(c) != i+1 || c.String() != name || CacheTypesOf(c) != 1<<i || !AllCacheTypes.Has(c) {
			t.Errorf("%s: %d, %v, %v", name, c, c, err)
		}
	}
	for _, name := range []string{"", "q4", "F16", "cache type 0"} {
		if c, err := ParseCacheType(name); err == nil {
			t.Errorf("%q is %v", name, c)
		}
	}
	if AllCacheTypes.Has(0) || AllCacheTypes.Has(4) || AllCacheTypes.Has(9) || AllCacheTypes.Has(255) {
		t.Errorf("%b has types without a name", AllCacheTypes)
	}
	// A newer peer keeps more.
	if got, want := CacheTypes(0b1000_0101).Names(), []string{"f32", "q8", "cache type 8"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
