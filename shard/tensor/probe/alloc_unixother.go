//go:build unix && !linux

package probe

func adviseHuge([]byte) {}
