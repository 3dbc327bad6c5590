package vec

func (k *Kernels) attendAVX2() {
	k.scores[CacheF32] = func(out []float32, stride int, q []float32, rows int, keys []byte, dim int) {
		if rows == 1 {
			scores1AVX2(&out[0], &q[0], &keys[0], dim)
		} else {
			scores4AVX2(&out[0], stride, &q[0], &keys[0], dim)
		}
	}
	k.mix[CacheF32] = func(acc []float32, w []float32, stride, rows int, values []byte, dim, slot, n int) {
		if rows == 1 {
			mix1AVX2(&acc[0], &w[0], &values[4*slot*dim], dim, n)
		} else {
			mix4AVX2(&acc[0], &w[0], stride, &values[4*slot*dim], dim, n)
		}
	}
}

//go:noescape
func scores1AVX2(out, q *float32, keys *byte, dim int)

//go:noescape
func scores4AVX2(out *float32, stride int, q *float32, keys *byte, dim int)

//go:noescape
func mix1AVX2(acc, w *float32, values *byte, dim, n int)

//go:noescape
func mix4AVX2(acc, w *float32, stride int, values *byte, dim, n int)

func (k *Kernels) attendAVX512() {
	k.scores[CacheF32] = func(out []float32, stride int, q []float32, rows int, keys []byte, dim int) {
		if rows == 1 {
			scores1AVX512(&out[0], &q[0], &keys[0], dim)
		} else {
			scores4AVX512(&out[0], stride, &q[0], &keys[0], dim)
		}
	}
	k.mix[CacheF32] = func(acc []float32, w []float32, stride, rows int, values []byte, dim, slot, n int) {
		if rows == 1 {
			mix1AVX512(&acc[0], &w[0], &values[4*slot*dim], dim, n)
		} else {
			mix4AVX512(&acc[0], &w[0], stride, &values[4*slot*dim], dim, n)
		}
	}
}

//go:noescape
func scores1AVX512(out, q *float32, keys *byte, dim int)

//go:noescape
func scores4AVX512(out *float32, stride int, q *float32, keys *byte, dim int)

//go:noescape
func mix1AVX512(acc, w *float32, values *byte, dim, n int)

//go:noescape
func mix4AVX512(acc, w *float32, stride int, values *byte, dim, n int)
