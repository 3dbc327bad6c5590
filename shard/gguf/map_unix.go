//go:build unix

package gguf

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func mapFile(f *os.File, size int64) ([]byte, func() error, error) {
	if int64(int(size)) != size {
		return nil, nil, fmt.Errorf("%d bytes are more than this machine can address", size)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("map into memory: %w", err)
	}
	return data, func() error { return unix.Munmap(data) }, nil
}

// release drops the pages that lie wholly inside part. It is advice: an error changes nothing.
func release(whole, part []byte) {
	page := os.Getpagesize()
	off := int(uintptr(unsafe.Pointer(&part[0])) - uintptr(unsafe.Pointer(&whole[0])))
	start, end := (off+page-1)/page*page, (off+len(part))/page*page
	if start < end {
		_ = unix.Madvise(whole[start:end], unix.MADV_DONTNEED)
	}
}
