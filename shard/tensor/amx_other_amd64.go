//go:build !linux

package tensor

import "errors"

func requestTiles(uintptr) error { return errors.New("tiles are used on Linux only") }
