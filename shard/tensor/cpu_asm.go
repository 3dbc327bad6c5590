//go:build amd64 || arm64

package tensor

//go:generate go run ./gen

// quantizeBlocks is how many blocks one call quantizes: some 10 us, as assembly cannot be stopped for the collector.
const quantizeBlocks = 512

// quantizeWith wraps an assembly quantizer of blocks blocks at x, whose fields go to dst, stride bytes apart.
func quantizeWith(asm func(x *float32, blocks int, dst *byte, stride int)) func(x []float32, dst []byte, rows, r int) {
	return func(x []float32, dst []byte, rows, r int) {
		blocks := len(x) / blockValues
		if len(dst) < blocks*rows*actBlockBytes || r >= rows {
			panic("tensor: an activation tile is too short")
		}
		for at := 0; at < blocks; at += quantizeBlocks {
			asm(&x[at*blockValues], min(quantizeBlocks, blocks-at), &dst[at*rows*actBlockBytes+4*r], 4*rows)
		}
	}
}
