//go:build !amd64 && !arm64

package tensor

// kernelSets lists the sets that this machine can run, the best first.
func kernelSets() []*kernelSet { return []*kernelSet{generic()} }
