//go:build !amd64 && !arm64

package tensor

// kernelSets lists the sets that this machine can run, the best first.
func kernelSets() []*kernelSet { return []*kernelSet{generic()} }

// whyNot says why this machine lacks a kernel set that it might have, and whether its owner should be told unasked.
func whyNot(string) (why error, tell bool) { return nil, false }
