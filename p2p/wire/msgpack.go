package wire

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Only the types that frames use: unsigned integers, booleans, str, bin, arrays.
// We write the shortest form of each and read every form.

func appendUint(b []byte, v uint64) []byte {
	switch {
	case v < 1<<7:
		return append(b, byte(v))
	case v < 1<<8:
		return append(b, 0xcc, byte(v))
	case v < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(v))
	case v < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
}

func appendU32(b []byte, v uint32) []byte { return appendUint(b, uint64(v)) }

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 0xc3)
	}
	return append(b, 0xc2)
}

func appendBinHead(b []byte, n int) []byte {
	switch {
	case n < 1<<8:
		return append(b, 0xc4, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xc5), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xc6), uint32(n))
}

func appendBin(b, v []byte) []byte { return append(appendBinHead(b, len(v)), v...) }

func appendStr(b []byte, s string) []byte {
	switch n := len(s); {
	case n < 1<<5:
		b = append(b, 0xa0|byte(n))
	case n < 1<<8:
		b = append(b, 0xd9, byte(n))
	default:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	}
	return append(b, s...)
}

func appendArray(b []byte, n int) []byte {
	if n < 1<<4 {
		return append(b, 0x90|byte(n))
	}
	return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
}

func appendStrs(b []byte, ss []string) []byte {
	b = appendArray(b, len(ss))
	for _, s := range ss {
		b = appendStr(b, s)
	}
	return b
}

// cursor reads the elements of one complete body. The first fault sticks and every
// later read gives zero, so a frame's parse is a plain list of its fields.
type cursor struct {
	b    []byte
	off  int
	kind Kind
	err  error
}

func (c *cursor) fail(field, format string, args ...any) {
	if c.err == nil {
		c.err = bad(c.kind, field, format, args...)
	}
}

// take gives the next n bytes. The body is complete, so too few are a fault.
func (c *cursor) take(field string, n int) []byte {
	if c.err == nil && n > len(c.b)-c.off {
		c.fail(field, "needs %d bytes where the frame has %d", n, len(c.b)-c.off)
	}
	if c.err != nil {
		return nil
	}
	c.off += n
	return c.b[c.off-n : c.off : c.off]
}

// tag gives the next byte, and 0xc1 (which msgpack never uses) after a fault.
func (c *cursor) tag(field string) byte {
	if p := c.take(field, 1); p != nil {
		return p[0]
	}
	return 0xc1
}

func (c *cursor) be(field string, n int) uint64 {
	var v uint64
	for _, x := range c.take(field, n) {
		v = v<<8 | uint64(x)
	}
	return v
}

func (c *cursor) uint(field string, max uint64) uint64 {
	var v uint64
	switch t := c.tag(field); {
	case t < 0x80:
		v = uint64(t)
	case t >= 0xcc && t <= 0xcf:
		v = c.be(field, 1<<(t-0xcc))
	case t >= 0xd0 && t <= 0xd3:
		n := 1 << (t - 0xd0)
		if v = c.be(field, n); v>>(8*n-1) != 0 {
			c.fail(field, "is negative")
		}
	default:
		c.fail(field, "type %#02x is not an integer", t)
	}
	if v > max {
		c.fail(field, "%d is over %d", v, max)
	}
	if c.err != nil {
		return 0
	}
	return v
}

func (c *cursor) u64(field string) uint64 { return c.uint(field, 1<<64-1) }
func (c *cursor) u32(field string) uint32 { return uint32(c.uint(field, 1<<32-1)) }
func (c *cursor) u8(field string) uint8   { return uint8(c.uint(field, 1<<8-1)) }

func (c *cursor) bool(field string) bool {
	switch t := c.tag(field); t {
	case 0xc3:
		return true
	case 0xc2:
	default:
		c.fail(field, "type %#02x is not a boolean", t)
	}
	return false
}

// bin gives at most max bytes, which alias the body.
func (c *cursor) bin(field string, max int) []byte {
	var n uint64
	switch t := c.tag(field); t {
	case 0xc4, 0xc5, 0xc6:
		n = c.be(field, 1<<(t-0xc4))
	default:
		c.fail(field, "type %#02x is not binary", t)
	}
	if n > uint64(max) {
		c.fail(field, "%d bytes are over %d", n, max)
		return nil
	}
	return c.take(field, int(n))
}

// fixed fills dst from a bin of exactly its length.
func (c *cursor) fixed(field string, dst []byte) {
	p := c.bin(field, len(dst))
	if c.err == nil && len(p) != len(dst) {
		c.fail(field, "%d bytes instead of %d", len(p), len(dst))
	}
	copy(dst, p)
}

func (c *cursor) str(field string, max int) string {
	var n uint64
	switch t := c.tag(field); {
	case t&0xe0 == 0xa0:
		n = uint64(t & 0x1f)
	case t >= 0xd9 && t <= 0xdb:
		n = c.be(field, 1<<(t-0xd9))
	default:
		c.fail(field, "type %#02x is not a string", t)
	}
	if n > uint64(max) {
		c.fail(field, "%d bytes are over %d", n, max)
		return ""
	}
	return string(c.take(field, int(n)))
}

// array gives the number of elements, at most max.
func (c *cursor) array(field string, max int) int {
	var n uint64
	switch t := c.tag(field); {
	case t&0xf0 == 0x90:
		n = uint64(t & 0x0f)
	case t == 0xdc || t == 0xdd:
		n = c.be(field, 2<<(t-0xdc))
	default:
		c.fail(field, "type %#02x is not an array", t)
	}
	if n > uint64(max) {
		c.fail(field, "%d elements are over %d", n, max)
	}
	if c.err != nil {
		return 0
	}
	return int(n)
}

func (c *cursor) strs(field string, max, each int) []string {
	n := c.array(field, max)
	if n == 0 {
		return nil
	}
	ss := make([]string, n)
	for i := range ss {
		ss[i] = c.str(field, each)
	}
	return ss
}

// badText says what is wrong with a name that a person may get to see, or "".
func badText(s string, max int) string {
	switch {
	case len(s) > max:
		return fmt.Sprintf("%d bytes are over %d", len(s), max)
	case !utf8.ValidString(s):
		return fmt.Sprintf("%q is not UTF-8", s)
	case strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Sprintf("%q has unprintable characters", s)
	}
	return ""
}

// cleanText makes any text printable (a space for what is not) and at most max bytes.
func cleanText(s string, max int) string {
	if badText(s, max) == "" {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), 4*max)], "?"))
	if len(s) <= max {
		return s
	}
	for max > 0 && !utf8.RuneStart(s[max]) {
		max--
	}
	return s[:max]
}

func checkText(k Kind, field, s string, max int) *BadError {
	if why := badText(s, max); why != "" {
		return bad(k, field, "%s", why)
	}
	return nil
}

func checkAddrs(k Kind, field string, addrs []string) *BadError {
	if len(addrs) > MaxAddrs {
		return bad(k, field, "%d addresses are over %d", len(addrs), MaxAddrs)
	}
	for _, a := range addrs {
		if e := checkText(k, field, a, MaxAddr); e != nil {
			return e
		}
	}
	return nil
}
