//go:build !linux

package bench

// resident is not known here.
func resident() int64 { return 0 }
