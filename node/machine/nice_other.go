//go:build !unix

package machine

import (
	"errors"
	"fmt"
)

// Nice raises this process's nice level to at least level.
func Nice(level int) error {
	if level == 0 {
		return nil
	}
	return fmt.Errorf("set nice level %d: %w", level, errors.ErrUnsupported)
}
