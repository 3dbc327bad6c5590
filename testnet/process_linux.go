package testnet

import "syscall"

// childAttr puts a child into a group of its own, so that a Ctrl-C in the terminal
// is ours alone to handle, and ends it when we die.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
