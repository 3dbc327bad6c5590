//go:build linux && amd64

package emulate

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// An instruction that the emulator refuses ends the child, and the test that started it says which it was.
func TestEmulatorIsStrict(t *testing.T) {
	u, none := new(tileUnit), new([16]uint64)
	config := func(change func(c []byte)) tileBytes {
		c := make(tileBytes, 1024)
		c[0] = 1
		for i, s := range [][2]byte{{16, 64}, {16, 64}, {16, 32}, {8, 64}, {0, 0}, {1, 6}, {4, 64}, {3, 64}} {
			c[48+i], c[16+2*i] = s[0], s[1]
		}
		change(c)
		return c
	}
	good := config(func([]byte) {})
	load := []byte{0xc4, 0xe2, 0x78, 0x49, 0x00} // ldtilecfg (%rax)
	for _, c := range []struct {
		want string
		code string
		m    tileBytes
	}{
		{"tiles are not configured", "c4 e2 7b 49 c0", nil},         // tilezero %tmm0
		{"tiles are not configured", "c4 e2 7b 4b 14 00", good},     // tileloadd (%rax,%rax,1), %tmm2
		{"tiles are not configured", "c4 e2 63 5e c2", nil},         // tdpbssd %tmm3, %tmm2, %tmm0
		{"#GP: palette 2", "", config(func(c []byte) { c[0] = 2 })}, // each of these is loaded
		{"#GP: reserved byte 2 ", "", config(func(c []byte) { c[2] = 1 })},
		{"#GP: reserved byte 40 ", "", config(func(c []byte) { c[40] = 1 })},
		{"#GP: reserved byte 63 ", "", config(func(c []byte) { c[63] = 0x80 })},
		{"#GP: tile 0 has 16 rows of 68 bytes", "", config(func(c []byte) { c[16] = 68 })},
		{"#GP: tile 1 has 17 rows", "", config(func(c []byte) { c[49] = 17 })},
		{"#GP: tile 2 has 0 rows of 32 bytes", "", config(func(c []byte) { c[50] = 0 })},
		{"#GP: tile 3 has 8 rows of 0 bytes", "", config(func(c []byte) { c[22] = 0 })},
		{"start_row", "", config(func(c []byte) { c[1] = 1 })},
		{"", "", good},
		{"", "c4 e2 7b 49 c0", good}, // tilezero %tmm0
		{"tile 4 is configured as 0 rows", "c4 e2 7b 49 e0", good}, // tilezero %tmm4
		{"tile 5 is configured as 1 rows of 6 bytes", "c4 e2 7b 4b 2c 00", good},
		{"tile 8", "c4 62 7b 49 c0", good},            // VEX.R
		{"no instruction", "c4 e2 7b 4b 10", good},    // tileloadd without SIB
		{"no instruction", "c4 e2 78 4b 14 00", good}, // no prefix
		{"no instruction", "c4 e2 78 49 c1", good},    // tilerelease with a register
		{"no instruction", "c4 e2 78 49 08", good},    // ldtilecfg with reg 1
		{"VEX.vvvv", "c4 e2 70 49 c0", good},
		{"VEX.W or VEX.L", "c4 e2 7f 49 c0", good},
		{"VEX.W or VEX.L", "c4 e2 fb 49 c0", good},
		{"", "c4 e2 63 5e c2", good}, // tdpbssd %tmm3, %tmm2, %tmm0: 16x32 by 8x64
		{"are not three", "c4 e2 63 5e c3", good},
		{"are not three", "c4 e2 7b 5e c2", good},
		{"are not three", "c4 e2 63 5e da", good},
		{"not the product", "c4 e2 63 5e c1", good}, // 16x64 by 8x64
		{"not the product", "c4 e2 4b 5e c2", good}, // 16x32 by 4x64
		{"not the product", "c4 e2 63 5e fa", good}, // 3 rows of sums
		{"tile 10", "c4 c2 63 5e c2", good},         // VEX.B
		{"tile 11", "c4 e2 23 5e c2", good},
		{"something else", "c4 e2 7d 58 c0", good}, // vpbroadcastd
		{"", "c4 e2 78 49 c0", good},               // tilerelease
	} {
		*u = tileUnit{}
		var code []byte
		if _, err := fmt.Sscanf(strings.ReplaceAll(c.code, " ", ""), "%x", &code); c.code != "" && err != nil {
			t.Fatal(err)
		}
		var err error
		if !strings.HasPrefix(c.want, "tiles are not") {
			_, err = u.step(load, none, c.m)
		}
		size := len(code)
		if err == nil && c.code != "" {
			size, err = u.step(append(code, make([]byte, 8)...), none, c.m)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.code, err, c.want)
		}
		if err == nil && size != len(code) {
			t.Errorf("%q: %d bytes long", c.code, size)
		}
	}
}

// tileBytes is memory from address 0 on.
type tileBytes []byte

func (b tileBytes) ReadAt(p []byte, at int64) (int, error)  { return copy(p, b[at:]), nil }
func (b tileBytes) WriteAt(p []byte, at int64) (int, error) { return copy(b[at:], p), nil }

// The emulator's products, for all four instructions, against sums in the order of the rows.
func TestEmulatorMultiplies(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for _, c := range []struct {
		code             string
		signedA, signedB bool
	}{
		{"c4e2635ec2", true, true}, {"c4e2625ec2", true, false}, {"c4e2615ec2", false, true}, {"c4e2605ec2", false, false},
	} {
		var code []byte
		if _, err := fmt.Sscanf(c.code, "%x", &code); err != nil {
			t.Fatal(err)
		}
		u := &tileUnit{configured: true, rows: [8]int{3, 0, 3, 2}, rowBytes: [8]int{20, 0, 8, 20}}
		for _, tile := range []int{0, 2, 3} {
			for i := range u.rows[tile] {
				for j := range u.rowBytes[tile] {
					u.data[tile][i][j] = byte(r.Uint32())
				}
			}
		}
		before := u.data
		if _, err := u.step(code, new([16]uint64), nil); err != nil {
			t.Fatal(err)
		}
		value := func(b byte, signed bool) int64 {
			if v := int64(b); signed && v > 127 {
				return v - 256
			}
			return int64(b)
		}
		for m := range 3 {
			for n := range 5 {
				sum := int64(int32(binary.LittleEndian.Uint32(before[0][m][4*n:])))
				for k := range 2 {
					for i := range 4 {
						sum += value(before[2][m][4*k+i], c.signedA) * value(before[3][k][4*n+i], c.signedB)
					}
				}
				if got := int32(binary.LittleEndian.Uint32(u.data[0][m][4*n:])); got != int32(sum) {
					t.Errorf("%s: row %d, column %d is %d, want %d", c.code, m, n, got, int32(sum))
				}
			}
		}
	}
}
