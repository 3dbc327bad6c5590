//go:build !linux

package packed

import (
	"errors"
	"os"
)

const supported = false

var errHere = errors.New("not on this system")

func mapFile(*os.File, int64, bool) ([]byte, error) { return nil, errHere }
func unmap([]byte)                                  {}
func seal([]byte)                                   {}
func claim(*os.File, int64) error                   { return errHere }
func removeAbandoned(string)                        {}
func space(string) (free, all int64)                { return 0, 1 }
