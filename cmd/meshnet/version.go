package main

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/meshnet/meshnet/node"
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/selftest"
	"github.com/meshnet/meshnet/shard/tensor"
)

// versionCmd prints what this binary is.
type versionCmd struct {
	SelfTest bool `help:"Compute the hash that must be the same on every machine, and compare it."`
}

// Help is shown by --help.
func (versionCmd) Help() string {
	return `Examples:
  meshnet version --json
  meshnet version --self-test

The self-test runs small random models of every kind through this machine's kernels and prints a hash of all bits that
come out. A machine with another hash says other words than its mesh: join refuses to start on it (exit code 8).`
}

// Run prints it.
func (v versionCmd) Run(a *app) error {
	if v.SelfTest {
		return a.selfTest()
	}
	cpu, err := tensor.CPU()
	if err != nil {
		return err
	}
	if a.json {
		return printJSON(a.stdout, map[string]any{
			"version": node.Version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH, "kernels": cpu, "architectures": model.Known(),
		})
	}
	fmt.Fprintf(a.stdout, "meshnet %s, %s %s/%s, kernels %s, models of kind %v\n", node.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, kernels(cpu, tensor.CPUNote()), model.Known())
	return nil
}

// selfTestJSON is what --self-test prints with --json.
type selfTestJSON struct {
	Version  string                 `json:"version"`
	Hash     string                 `json:"hash"`
	Expected string                 `json:"expected"`
	Same     bool                   `json:"same"`
	Kernels  string                 `json:"kernels"`
	Arch     string                 `json:"arch"`
	Threads  int                    `json:"threads"`
	Seconds  float64                `json:"seconds"`
	Models   []selftest.ModelResult `json:"models"`
}

func (a *app) selfTest() error {
	r, err := selftest.Run(a.ctx, selftest.Config{Threads: a.threads})
	if r.Hash == "" {
		return err
	}
	if a.json {
		err = errors.Join(err, printJSON(a.stdout, selfTestJSON{node.Version, r.Hash, selftest.Want, err == nil, r.CPU, runtime.GOARCH, r.Threads, r.Took.Seconds(), r.Models}))
	} else {
		fmt.Fprintln(a.stdout, r.Hash)
		if err == nil {
			fmt.Fprintf(a.stderr, "as expected; %s kernels, %d threads, %.2f s\n", r.CPU, r.Threads, r.Took.Seconds())
		}
	}
	return err // exitCode knows it
}
