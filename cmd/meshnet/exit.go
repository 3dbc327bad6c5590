package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/route"
	"github.com/meshnet/meshnet/shard/selftest"
)

// Exit codes, as docs/operating.md lists them.
const (
	exitFailure     = 1   // anything without a code of its own
	exitUsage       = 2   // a flag, an argument or a key of the config file
	exitModel       = 3   // the model is unknown, can't be fetched or can't be read
	exitNoRoute     = 4   // nobody offers some layers
	exitInUse       = 5   // identity or port belongs to another process
	exitPrompt      = 6   // the prompt is empty, too long or can't be encoded
	exitDiffers     = 7   // demo: the text is not the undisturbed one
	exitBits        = 8   // self-test: this machine computes other bits than all others
	exitInterrupted = 130 // Ctrl-C
	exitTerminated  = 143 // SIGTERM, where that is not a normal end
)

// exitError is an error with the code that the process ends with.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// fail gives err an exit code; nil stays nil.
func fail(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code, err}
}

func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// interrupted is the cause of the context that a signal ended.
type interrupted struct{ signal syscall.Signal }

func (e interrupted) Error() string { return "stopped by " + e.signal.String() }

func exitCode(err error) int {
	var (
		own *exitError
		sig interrupted
		gap *route.GapError
		dif *selftest.DiffersError
	)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &sig):
		return 128 + int(sig.signal)
	case errors.As(err, &own):
		return own.code
	case errors.As(err, &gap):
		return exitNoRoute
	case errors.As(err, &dif):
		return exitBits
	case errors.Is(err, head.ErrBadRequest):
		return exitPrompt
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.Is(err, syscall.EADDRINUSE):
		return exitInUse
	}
	return exitFailure
}
