//go:build unix && !linux

package tensor

func adviseHuge(b []byte) {}
