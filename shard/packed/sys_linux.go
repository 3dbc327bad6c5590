package packed

import (
	"os"

	"golang.org/x/sys/unix"
)

const supported = true

func mapFile(f *os.File, size int64, write bool) ([]byte, error) {
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	return unix.Mmap(int(f.Fd()), 0, int(size), prot, unix.MAP_SHARED)
}

func unmap(b []byte) { _ = unix.Munmap(b) }

// seal makes memory read-only.
func seal(b []byte) { _ = unix.Mprotect(b, unix.PROT_READ) }

// claim marks a draft as somebody's, who lives, and reserves its blocks: a write into a mapping of a full disk would be fatal.
func claim(f *os.File, size int64) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	return unix.Fallocate(int(f.Fd()), 0, 0, size)
}

// removeAbandoned removes a draft whose process is gone.
func removeAbandoned(path string) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		os.Remove(path)
	}
}

// space is the bytes that the disk has free, and has.
func space(dir string) (free, all int64) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, 1
	}
	return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize)
}
