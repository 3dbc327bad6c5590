package blob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// checkedFor is how long a blob that was read and found whole is not read again.
const checkedFor = 24 * time.Hour

// DamagedError says that a blob's bytes are no longer those of its name.
type DamagedError struct {
	Path string
	Got  Sum
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s now has SHA-256 %x: the file was changed or the disk is failing; remove the model and pull it again", e.Path, e.Got)
}

// Check is Verify, unless the blob was found whole in the last day and has not been
// touched since. What reads a disk wrongly once may do so every time.
func (s *Store) Check(sum Sum) error {
	stamp := s.stamp(sum)
	info, err := os.Stat(s.path(sum))
	if err != nil {
		return fmt.Errorf("check blob: %w", err)
	}
	now := stateOf(info)
	if at, err := os.Stat(stamp); err == nil && time.Since(at.ModTime()) < checkedFor {
		if was, err := os.ReadFile(stamp); err == nil && string(was) == now {
			return nil
		}
	}
	if err := s.Verify(sum); err != nil {
		return err
	}
	_ = os.WriteFile(stamp, []byte(now), 0o644) // it is read again otherwise, no harm
	return nil
}

// RemoveDamaged removes a blob if its bytes are wrong, and says so. One process at a
// time does: what another one has fetched anew meanwhile stays.
func (s *Store) RemoveDamaged(ctx context.Context, sum Sum) (bool, error) {
	l, err := s.Lock(ctx, fmt.Sprintf("check:%x", sum), nil)
	if err != nil {
		return false, err
	}
	defer l.Unlock()
	var bad *DamagedError
	err = s.Verify(sum)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case errors.As(err, &bad):
		return true, s.Remove(sum)
	}
	return false, err
}

func (s *Store) stamp(sum Sum) string { return s.path(sum) + ".checked" }

// stateOf changes when somebody writes to a file in the ordinary way.
func stateOf(info fs.FileInfo) string { return fmt.Sprint(info.Size(), info.ModTime().UnixNano()) }
