//go:build amd64 || arm64

package tensor

//go:generate go run ./gen

// quantizeWith wraps an assembly quantizer of blocks blocks at x, whose fields go to dst, stride bytes apart.
func quantizeWith(asm func(x *float32, blocks int, dst *byte, stride int)) func(x []float32, dst []byte, rows, r int) {
	return func(x []float32, dst []byte, rows, r int) {
		blocks := len(x) / blockValues
		if len(dst) < blocks*rows*actBlockBytes || r >= rows {
			panic("tensor: an activation tile is too short")
		}
		if blocks > 0 {
			asm(&x[0], blocks, &dst[4*r], 4*rows)
		}
	}
}
