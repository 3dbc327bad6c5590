package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
)

// npyWriter writes rows of float32 as a NumPy .npy file (format 1.0, shape
// [rows, columns]). The number of rows is filled in at the end.
type npyWriter struct {
	f    *os.File
	w    *bufio.Writer
	cols int
	rows int
	buf  []byte
}

func createNPY(path string) (*npyWriter, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("logits file: %w", err)
	}
	n := &npyWriter{f: f, w: bufio.NewWriterSize(f, 1<<20)}
	_, err = n.w.Write(npyHeader(0, 0))
	return n, err
}

// npyHeaderLen keeps the data aligned to 64 bytes, as the format asks.
const npyHeaderLen = 128

func npyHeader(rows, cols int) []byte {
	dict := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", rows, cols)
	h := []byte("\x93NUMPY\x01\x00")
	h = binary.LittleEndian.AppendUint16(h, npyHeaderLen-10)
	h = append(h, dict...)
	return append(h, strings.Repeat(" ", npyHeaderLen-1-len(h))+"\n"...)
}

// row appends one row. All rows have the same length.
func (n *npyWriter) row(_ int, x []float32) error {
	n.cols = len(x)
	n.rows++
	n.buf = n.buf[:0]
	for _, v := range x {
		n.buf = binary.LittleEndian.AppendUint32(n.buf, math.Float32bits(v))
	}
	_, err := n.w.Write(n.buf)
	return err
}

func (n *npyWriter) close() error {
	err := n.w.Flush()
	if err == nil {
		_, err = n.f.WriteAt(npyHeader(n.rows, n.cols), 0)
	}
	if err = errors.Join(err, n.f.Close()); err != nil {
		return fmt.Errorf("logits file: %w", err)
	}
	return nil
}
