package tensor

import "encoding/binary"

// lanePacker packs one unit of one row. scales and lines are those of its group, cut so that they begin with the row's lane: a scale
// of two bytes at scales[0], dword k of the lane at lines[64*k]. It says whether the scales are finite.
type lanePacker struct {
	values int // of the row, packed by a call
	bytes  int // of the file
	pack   func(scales, lines []byte, lane int, raw []byte) bool
}

// lanePackers are shorter ways, one for each form. What they write is what fillRow writes.
var lanePackers = [numForms]lanePacker{
	formQ8:    {32, 34, packQ8},
	formQ4z:   {32, 18, packQ4z},
	formQ4m:   {32, 20, packQ4m},
	formQ5z:   {32, 22, packQ5z},
	formQ5m:   {32, 24, packQ5m},
	formQ4k:   {256, 144, packQ4k},
	formQ5k:   {256, 176, packQ5k},
	formQ6k:   {256, 210, packQ6k},
	formQ2k:   {256, 84, packQ2k},
	formQ3k:   {256, 110, packQ3k},
	formIQ4nl: {32, 18, packQ4z}, // the bytes are Q4_0's, their meaning is not
	formIQ4xs: {256, 136, packIQ4xs},
	formMXFP4: {32, 17, packMXFP4},
	formF32:   {4, 16, packF32},
	formF16:   {4, 8, packF16},
	formBF16:  {4, 8, packBF16},
}

// fill packs the rows of a panel, nil rows being padding. It returns a row, and the column near which that is not finite, or -1.
func (f *form) fill(panel []byte, rows *[panelRows][]byte, cols int) (row, column int) {
	k := &lanePackers[f.id]
	if cols%k.values != 0 {
		for r, raw := range rows {
			if raw == nil {
				break
			}
			if bad := f.fillRow(panel, r, raw, cols); bad >= 0 {
				return r, bad
			}
		}
		return 0, -1
	}
	for g := range panelGroups {
		lanes := rows[g*groupRows:][:groupRows]
		for u := range cols / k.values {
			scales, lines := panel, panel[f.lines(u*max(1, k.values/blockValues), g):]
			if f.float() {
				lines = panel[f.lines(u*k.values, g):]
			} else {
				scales = panel[f.scales(u, g):]
			}
			for lane, raw := range lanes {
				if raw == nil {
					break
				}
				width := 4
				if f.float() {
					width = f.lineBytes / groupRows
				}
				if !k.pack(scales[2*lane:], lines[width*lane:], lane, raw[u*k.bytes:][:k.bytes]) {
					return g*groupRows + lane, f.fillRow(panel, g*groupRows+lane, raw, cols) // which knows the column
				}
			}
		}
	}
	return 0, -1
}

func packQ8(scales, lines []byte, _ int, raw []byte) bool {
	_, _ = raw[33], lines[7*64+3]
	le.PutUint16(scales, le.Uint16(raw))
	for k := range 4 {
		v := le.Uint64(raw[2+8*k:]) ^ 0x8080808080808080
		le.PutUint32(lines[128*k:], uint32(v))
		le.PutUint32(lines[128*k+64:], uint32(v>>32))
	}
	return finiteHalf(raw)
}

// putNibbles stores 16 bytes of nibbles: a block of the file has them as a line has.
func putNibbles(lines, raw []byte) {
	_, _ = raw[15], lines[3*64+3]
	for k := range 4 {
		le.PutUint32(lines[64*k:], le.Uint32(raw[4*k:]))
	}
}

// spreadBits moves bit 4k+b to bit k of byte b.
func spreadBits(x uint32) uint32 {
	// In the index of a bit, kkkbb becomes bbkkk: each b is swapped past the three k.
	x = deltaSwap(x, 0x0c0c0c0c, 2)
	x = deltaSwap(x, 0x00f000f0, 4)
	x = deltaSwap(x, 0x0000ff00, 8)
	x = deltaSwap(x, 0x22222222, 1)
	x = deltaSwap(x, 0x0c0c0c0c, 2)
	return deltaSwap(x, 0x00f000f0, 4)
}

// deltaSwap swaps the bits of mask with those n above them.
func deltaSwap(x, mask uint32, n int) uint32 {
	t := (x ^ x>>n) & mask
	return x ^ t ^ t<<n
}

func packQ4z(scales, lines []byte, _ int, raw []byte) bool {
	_ = raw[17]
	le.PutUint16(scales, le.Uint16(raw))
	putNibbles(lines, raw[2:])
	return finiteHalf(raw)
}

func packQ4m(scales, lines []byte, _ int, raw []byte) bool {
	_, _ = raw[19], scales[33]
	le.PutUint16(scales, le.Uint16(raw))
	le.PutUint16(scales[32:], le.Uint16(raw[2:]))
	putNibbles(lines, raw[4:])
	return finiteHalf(raw) && finiteHalf(raw[2:])
}

// putFives and putSixes store the lines of the eight quarters of a block, as form.parts has them.
func putFives(lines []byte, q *[8]uint32) {
	_ = lines[4*64+3]
	le.PutUint32(lines, q[0]<<3|q[5]&(7*one4))
	le.PutUint32(lines[64:], q[1]<<3|q[5]>>3&(3*one4)|q[7]>>1&(4*one4))
	le.PutUint32(lines[2*64:], q[2]<<3|q[6]&(7*one4))
	le.PutUint32(lines[3*64:], q[3]<<3|q[6]>>3&(3*one4)|q[7]>>2&(4*one4))
	le.PutUint32(lines[4*64:], q[4]<<3|q[7]&(7*one4))
}

func putSixes(lines []byte, q *[8]uint32) {
	_ = lines[5*64+3]
	for i := range 3 {
		le.PutUint32(lines[64*i:], q[i]<<2|q[6]>>(2*i)&(3*one4))
		le.PutUint32(lines[64*(3+i):], q[3+i]<<2|q[7]>>(2*i)&(3*one4))
	}
}

// fives is a block of 16 bytes of nibbles, and fifth bits of the values in order.
func fives(lines, raw []byte, bits uint32) {
	var q [8]uint32
	_ = raw[15]
	h := spreadBits(bits)
	for k := range 4 {
		v := le.Uint32(raw[4*k:])
		q[k] = v&nib4 | h>>k&one4<<4
		q[4+k] = v>>4&nib4 | h>>(4+k)&one4<<4
	}
	putFives(lines, &q)
}

func packQ5z(scales, lines []byte, _ int, raw []byte) bool {
	_ = raw[21]
	le.PutUint16(scales, le.Uint16(raw))
	fives(lines, raw[6:22], le.Uint32(raw[2:]))
	return finiteHalf(raw)
}

func packQ5m(scales, lines []byte, _ int, raw []byte) bool {
	_, _ = raw[23], scales[33]
	le.PutUint16(scales, le.Uint16(raw))
	le.PutUint16(scales[32:], le.Uint16(raw[2:]))
	fives(lines, raw[8:24], le.Uint32(raw[4:]))
	return finiteHalf(raw) && finiteHalf(raw[2:])
}

const (
	nib4 = 0x0f0f0f0f
	one4 = 0x01010101
	two4 = 0x03030303
)

// packSuper stores the scales of a Q4_K or Q5_K super-block.
func packSuper(scales []byte, lane int, raw []byte) bool {
	le.PutUint16(scales, le.Uint16(raw))
	le.PutUint16(scales[32:], le.Uint16(raw[2:]))
	s, k := scales[64-lane:], raw[4:16] // scales begins 2*lane bytes into the group's, sub-scales are one byte a lane
	_ = s[15*16]
	for j := range 4 {
		s[16*j], s[128+16*j] = k[j]&63, k[j+4]&63
		s[64+16*j], s[192+16*j] = k[j+8]&15|k[j]>>6<<4, k[j+8]>>4|k[j+4]>>6<<4
	}
	return finiteHalf(raw) && finiteHalf(raw[2:])
}

func packQ4k(scales, lines []byte, lane int, raw []byte) bool {
	const stride = panelGroups * 4 * 64
	for j := range 4 { // two sub-blocks share 32 bytes
		a, q := lines[2*j*stride:][:stride+3*64+4], raw[16+32*j:][:32]
		b := a[stride:]
		for k := range 4 {
			x, y := le.Uint32(q[4*k:]), le.Uint32(q[16+4*k:])
			le.PutUint32(a[64*k:], x&nib4|y&nib4<<4)
			le.PutUint32(b[64*k:], x>>4&nib4|y>>4&nib4<<4)
		}
	}
	return packSuper(scales, lane, raw)
}

func packQ5k(scales, lines []byte, lane int, raw []byte) bool {
	const stride = panelGroups * 5 * 64
	for j := range 4 {
		q, h := raw[48+32*j:][:32], raw[16:][:32]
		var a, b [8]uint32
		for k := range a {
			x, y := le.Uint32(q[4*k:]), le.Uint32(h[4*k:])>>(2*j)
			a[k] = x&nib4 | y&one4<<4
			b[k] = x>>4&nib4 | y>>1&one4<<4
		}
		putFives(lines[2*j*stride:], &a)
		putFives(lines[(2*j+1)*stride:], &b)
	}
	return packSuper(scales, lane, raw)
}

func packQ6k(scales, lines []byte, lane int, raw []byte) bool {
	const stride = panelGroups * 6 * 64
	for j := range 8 {
		lo, hi := raw[j/4*64+j%2*32:][:32], raw[128+j/4*32:][:32]
		ls, hs := j%4/2*4, j%4*2
		var q [8]uint32
		for k := range q {
			q[k] = le.Uint32(lo[4*k:])>>ls&nib4 | le.Uint32(hi[4*k:])>>hs&two4<<4
		}
		putSixes(lines[j*stride:], &q)
	}
	le.PutUint16(scales, le.Uint16(raw[208:]))
	s, sc := scales[32-lane:], raw[192:][:16]
	_ = s[15*16]
	for i, v := range sc {
		s[16*i] = v
	}
	return finiteHalf(raw[208:])
}

// packPairs stores two bits of each of 32 values, those at shift of raw's bytes.
func packPairs(lines, raw []byte, shift int) {
	_, _ = raw[31], lines[64+3]
	for h := range 2 {
		v := uint32(0)
		for k := range 4 {
			v |= le.Uint32(raw[16*h+4*k:]) >> shift & two4 << (2 * k)
		}
		le.PutUint32(lines[64*h:], v)
	}
}

func packQ2k(scales, lines []byte, lane int, raw []byte) bool {
	const stride = panelGroups * 2 * 64
	for j := range 8 {
		packPairs(lines[j*stride:], raw[16+j/4*32:], j%4*2)
	}
	le.PutUint16(scales, le.Uint16(raw[80:]))
	le.PutUint16(scales[32:], le.Uint16(raw[82:]))
	s := scales[64-lane:]
	for i, v := range raw[:16] {
		s[16*i] = v
	}
	return finiteHalf(raw[80:]) && finiteHalf(raw[82:])
}

func packQ3k(scales, lines []byte, lane int, raw []byte) bool {
	const stride = panelGroups * 3 * 64
	for j := range 8 {
		d := lines[j*stride:]
		packPairs(d, raw[32+j/4*32:], j%4*2)
		h := uint32(0)
		for k := range 8 {
			h |= le.Uint32(raw[4*k:]) >> j & one4 << k
		}
		le.PutUint32(d[2*64:], h)
	}
	le.PutUint16(scales, le.Uint16(raw[108:]))
	s, sc := scales[32-lane:], raw[96:108]
	for i := range 16 {
		s[16*i] = (sc[i%8]>>(i/8*4)&15 | sc[8+i%4]>>(i/4*2)&3<<4) - 32
	}
	return finiteHalf(raw[108:])
}

func packIQ4xs(scales, lines []byte, lane int, raw []byte) bool {
	const stride = panelGroups * 4 * 64
	high := le.Uint16(raw[2:])
	s := scales[32-lane:]
	for j := range 8 {
		putNibbles(lines[j*stride:], raw[8+16*j:])
		s[16*j] = (raw[4+j/2]>>(j%2*4)&15 | byte(high>>(2*j)&3<<4)) - 32
	}
	le.PutUint16(scales, le.Uint16(raw))
	return finiteHalf(raw)
}

func packMXFP4(scales, lines []byte, _ int, raw []byte) bool {
	power := powerMXFP4(raw[0])
	le.PutUint16(scales, power)
	putNibbles(lines, raw[1:])
	return power < overflowMXFP4
}

func packF32(_, lines []byte, _ int, raw []byte) bool {
	const step = panelGroups * 64
	_, _ = raw[15], lines[3*step+3]
	ok := true
	for i := range 4 {
		v := le.Uint32(raw[4*i:])
		ok = ok && v&0x7f800000 != 0x7f800000
		le.PutUint32(lines[step*i:], v)
	}
	return ok
}

func packHalves(lines, raw []byte) uint64 {
	const step = panelGroups * 32
	_ = lines[3*step+1]
	v := binary.LittleEndian.Uint64(raw)
	for i := range 4 {
		le.PutUint16(lines[step*i:], uint16(v>>(16*i)))
	}
	return v
}

// An exponent of all ones carries into the bit above it when its lowest bit is added.
func packF16(_, lines []byte, _ int, raw []byte) bool {
	v := packHalves(lines, raw)
	return (v&0x7c007c007c007c00+0x0400040004000400)&0x8000800080008000 == 0
}

func packBF16(_, lines []byte, _ int, raw []byte) bool {
	v := packHalves(lines, raw)
	return (v&0x7f807f807f807f80+0x0080008000800080)&0x8000800080008000 == 0
}
