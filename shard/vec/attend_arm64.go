package vec

func (k *Kernels) attendNEON() {
	k.scores[CacheF32] = func(out []float32, stride int, q []float32, rows int, keys []byte, dim int) {
		if rows == 1 {
			scores1NEON(&out[0], &q[0], &keys[0], dim)
		} else {
			scores4NEON(&out[0], stride, &q[0], &keys[0], dim)
		}
	}
	k.mix[CacheF32] = func(acc []float32, w []float32, stride, rows int, values []byte, dim, slot, n int) {
		if rows == 1 {
			mix1NEON(&acc[0], &w[0], &values[4*slot*dim], dim, n)
		} else {
			mix4NEON(&acc[0], &w[0], stride, &values[4*slot*dim], dim, n)
		}
	}
}

//go:noescape
func scores1NEON(out, q *float32, keys *byte, dim int)

//go:noescape
func scores4NEON(out *float32, stride int, q *float32, keys *byte, dim int)

//go:noescape
func mix1NEON(acc, w *float32, values *byte, dim, n int)

//go:noescape
func mix4NEON(acc, w *float32, stride int, values *byte, dim, n int)
