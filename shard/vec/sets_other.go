//go:build !amd64 && !arm64

package vec

func sets() []Kernels {
	const none = "this build has only plain Go"
	return []Kernels{{Name: "avx512", unavailable: none}, {Name: "avx2", unavailable: none}, {Name: "neon", unavailable: none}, twin()}
}
