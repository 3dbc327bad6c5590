//go:build !unix

package chat

import "os/exec"

// setLimits does nothing here: the clock and the stack still bound a child.
func setLimits() error { return nil }

func killedForCPU(*exec.ExitError) bool { return false }
