package tensor

import "encoding/binary"

// fillRow packs row r of a panel and returns the column near which it is not finite, or -1.
func (f *form) fillRow(panel []byte, r int, raw []byte, cols int) int {
	g, lane := r/groupRows, r%groupRows
	if f.float() {
		return f.fillFloats(panel[f.lines(0, g):], lane, raw, cols)
	}
	var b block
	blocks, unit := f.blocks(), f.unitBytes()
	u := 0 // of the row's blocks
	for at := range f.steps(cols) {
		dst := panel[at*unit:][:unit]
		scales, lines := dst[g*f.scaleBytes:][:f.scaleBytes], dst[f.lines(0, g):]
		for j := range blocks {
			f.readBlock(raw, u, &b)
			if !b.finite(f) {
				return u * blockValues
			}
			f.putScales(scales, j, lane, &b)
			f.putLines(lines[j*panelGroups*f.lineBytes:][:f.lineBytes], lane, &b.q)
			u++
		}
	}
	return -1
}

func (f *form) fillFloats(dst []byte, lane int, raw []byte, cols int) int {
	step := f.unitBytes()
	exp := uint16(0x7c00) // all ones in a float16 that is not finite
	if f.id == formBF16 {
		exp = 0x7f80
	}
	for i := range cols {
		switch f.id {
		case formF32:
			v := le.Uint32(raw[4*i:])
			if v&0x7f800000 == 0x7f800000 {
				return i
			}
			le.PutUint32(dst[i*step+lane*4:], v)
		default:
			v := le.Uint16(raw[2*i:])
			if v&exp == exp {
				return i
			}
			le.PutUint16(dst[i*step+lane*2:], v)
		}
	}
	return -1
}

// readBlock reads sub-block u of a row in the file's layout.
func (f *form) readBlock(raw []byte, u int, b *block) {
	switch f.id {
	case formQ8:
		s := raw[u*34:][:34]
		b.d = [2]byte(s)
		for i := range words {
			b.put(i, le.Uint64(s[2+8*i:])^0x8080808080808080)
		}
	case formQ4z:
		s := raw[u*18:][:18]
		b.d = [2]byte(s)
		b.nibbles(s[2:])
	case formQ4m:
		s := raw[u*20:][:20]
		b.d, b.m = [2]byte(s), [2]byte(s[2:])
		b.nibbles(s[4:])
	case formQ5z:
		s := raw[u*22:][:22]
		b.d = [2]byte(s)
		b.nibbles(s[6:])
		b.fifth(le.Uint32(s[2:]))
	case formQ5m:
		s := raw[u*24:][:24]
		b.d, b.m = [2]byte(s), [2]byte(s[2:])
		b.nibbles(s[8:])
		b.fifth(le.Uint32(s[4:]))
	case formQ4k:
		s := raw[u/8*144:][:144]
		b.superHead(s, u%8)
		for i := range words {
			b.put(i, b.superNibbles(s[16:], u%8, i))
		}
	case formQ5k:
		s := raw[u/8*176:][:176]
		b.superHead(s, u%8)
		for i := range words {
			b.put(i, b.superNibbles(s[48:], u%8, i)|le.Uint64(s[16+8*i:])>>(u%8)&ones<<4)
		}
	case formQ6k:
		b.six(raw[u/8*210:][:210], u%8)
	case formQ2k:
		s := raw[u/8*84:][:84]
		b.d, b.m = [2]byte(s[80:]), [2]byte(s[82:])
		b.sc16 = [2]byte(s[2*(u%8):])
		b.pairs(s[16:], u%8)
	case formQ3k:
		b.three(raw[u/8*110:][:110], u%8)
	case formIQ4nl:
		s := raw[u*18:][:18]
		b.d = [2]byte(s)
		b.nibbles(s[2:])
	case formIQ4xs:
		s, j := raw[u/8*136:][:136], u%8
		b.d = [2]byte(s)
		b.sc = (s[4+j/2]>>(j%2*4)&15 | byte(le.Uint16(s[2:])>>(2*j)&3<<4)) - 32
		b.nibbles(s[8+16*j:])
	case formMXFP4:
		s := raw[u*17:][:17]
		le.PutUint16(b.d[:], powerMXFP4(s[0]))
		b.nibbles(s[1:])
	}
}

// overflowMXFP4 is the first scale with which the largest weight is no float32. The standard calls the last exponent NaN.
const overflowMXFP4 = 252 << 7

// powerMXFP4 is the bfloat16 2^(e-128): half the scale, because the table holds the values twice as large.
func powerMXFP4(e byte) uint16 {
	if e < 2 {
		return 0x20 << e
	}
	return uint16(e-1) << 7
}

// A block's 32 values are handled as four words of eight.
const (
	words   = blockValues / 8
	ones    = 0x0101010101010101
	nibbles = 15 * ones
)

var le = binary.LittleEndian

func (b *block) put(i int, v uint64) { le.PutUint64(b.q[8*i:], v) }

// nibbles reads 32 nibbles: the low ones are values 0..15, the high ones 16..31.
func (b *block) nibbles(s []byte) {
	for i := range 2 {
		v := le.Uint64(s[8*i:])
		b.put(i, v&nibbles)
		b.put(i+2, v>>4&nibbles)
	}
}

// fifth adds bit 4 of each value.
func (b *block) fifth(bits uint32) {
	for i := range words {
		one := uint64(bits>>(8*i)&0xff) * ones & 0x8040201008040201 // in byte k, bit k
		b.put(i, le.Uint64(b.q[8*i:])|(one+0x7f*ones)>>7&ones<<4)   // any bit of a byte carries into its top
	}
}

// superHead reads the scales of sub-block j of a Q4_K or Q5_K super-block: 6 bits each, packed into 12 bytes.
func (b *block) superHead(s []byte, j int) {
	b.d, b.m = [2]byte(s), [2]byte(s[2:])
	k := s[4:16]
	if j < 4 {
		b.sc, b.mn = k[j]&63, k[j+4]&63
		return
	}
	b.sc, b.mn = k[j+4]&15|k[j-4]>>6<<4, k[j+4]>>4|k[j]>>6<<4
}

// superNibbles reads word i of sub-block j: pairs of sub-blocks share 32 bytes.
func (b *block) superNibbles(s []byte, j, i int) uint64 {
	return le.Uint64(s[j/2*32+8*i:]) >> (j % 2 * 4) & nibbles
}

// six reads sub-block j of a Q6_K super-block: low nibbles (128 bytes), upper two bits (64 bytes), scales (16), d.
func (b *block) six(s []byte, j int) {
	b.d = [2]byte(s[208:])
	b.sc16 = [2]byte(s[192+2*j:])
	lo, hi := s[j/4*64+j%2*32:][:32], s[128+j/4*32:][:32]
	for i := range words {
		b.put(i, le.Uint64(lo[8*i:])>>(j%4/2*4)&nibbles|le.Uint64(hi[8*i:])>>(j%4*2)&(3*ones)<<4)
	}
}

// pairs reads the low two bits of sub-block j of a Q2_K or Q3_K super-block: four sub-blocks share 32 bytes.
func (b *block) pairs(s []byte, j int) {
	for i := range words {
		b.put(i, le.Uint64(s[j/4*32+8*i:])>>(j%4*2)&(3*ones))
	}
}

// three reads sub-block j of a Q3_K super-block: upper bits (32 bytes), lower two (64), scales of 6 bits (12), d.
func (b *block) three(s []byte, j int) {
	b.d = [2]byte(s[108:])
	b.pairs(s[32:], j)
	for i := range words {
		b.put(i, le.Uint64(b.q[8*i:])|le.Uint64(s[8*i:])>>j&ones<<2)
	}
	k := s[96:108]
	for h := range b.sc16 {
		i := 2*j + h
		b.sc16[h] = (k[i%8]>>(i/8*4)&15 | k[8+i%4]>>(i/4*2)&3<<4) - 32
	}
}

// putScales stores the scales of sub-block j of a lane in a group's scales.
func (f *form) putScales(s []byte, j, lane int, b *block) {
	s[2*lane], s[2*lane+1] = b.d[0], b.d[1]
	if f.mins {
		s[32+2*lane], s[33+2*lane] = b.m[0], b.m[1]
	}
	switch {
	case f.halves:
		sub := s[f.subScales():]
		sub[(2*j)*16+lane], sub[(2*j+1)*16+lane] = b.sc16[0], b.sc16[1]
	case f.super:
		sub := s[f.subScales():]
		sub[j*16+lane] = b.sc
		if f.mins {
			sub[(8+j)*16+lane] = b.mn
		}
	}
}

// putLines stores 32 weights of a lane: the parts of each quarter, four values at once.
func (f *form) putLines(dst []byte, lane int, q *[blockValues]byte) {
	var lines [8]uint32
	for k := range lines {
		v := le.Uint32(q[4*k:])
		for _, p := range f.parts(k) {
			lines[p.line] |= v & p.mask() << p.from
			v >>= p.bits
		}
	}
	for n := range f.lineBytes / 64 {
		le.PutUint32(dst[64*n+4*lane:], lines[n])
	}
}

// getScales and getLines undo putScales and putLines.
func (f *form) getScales(s []byte, j, lane int, b *block) {
	b.d = [2]byte(s[2*lane:])
	if f.mins {
		b.m = [2]byte(s[32+2*lane:])
	}
	switch {
	case f.halves:
		sub := s[f.subScales():]
		b.sc16 = [2]byte{sub[(2*j)*16+lane], sub[(2*j+1)*16+lane]}
	case f.super:
		sub := s[f.subScales():]
		b.sc = sub[j*16+lane]
		if f.mins {
			b.mn = sub[(8+j)*16+lane]
		}
	}
}

func (f *form) getLines(src []byte, lane int, q *[blockValues]byte) {
	for k := range 8 {
		v, pos := uint32(0), 0
		for _, p := range f.parts(k) {
			v |= le.Uint32(src[64*p.line+4*lane:]) >> p.from & p.mask() << pos
			pos += p.bits
		}
		le.PutUint32(q[4*k:], v)
	}
}

// row dequantizes row r of a panel.
func (f *form) row(panel []byte, r int, dst []float32) {
	g, lane := r/groupRows, r%groupRows
	if f.float() {
		for i := range dst {
			dst[i] = f.floatAt(panel[f.lines(i, g):], lane)
		}
		return
	}
	var b block
	for u := range len(dst) / blockValues {
		f.getScales(panel[f.scales(u/f.blocks(), g):], u%f.blocks(), lane, &b)
		f.getLines(panel[f.lines(u, g):], lane, &b.q)
		b.dequant(f, dst[u*blockValues:][:blockValues])
	}
}
