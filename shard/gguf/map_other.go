//go:build !unix

package gguf

import (
	"io"
	"os"
)

// mapFile reads the file: there is no mapping on this system.
func mapFile(f *os.File, size int64) ([]byte, func() error, error) {
	data := make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, nil, err
	}
	return data, func() error { return nil }, nil
}

func release(whole, part []byte) {}
