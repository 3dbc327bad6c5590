//go:build !amd64

package vec

func sets() []Kernels {
	const none = "only amd64 builds have them"
	return []Kernels{{Name: "avx512", unavailable: none}, {Name: "avx2", unavailable: none}, twin()}
}
