package main

import (
	"fmt"
	"runtime"

	"github.com/meshnet/meshnet/node"
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/tensor"
)

// versionCmd prints what this binary is.
type versionCmd struct{}

// Help is shown by --help.
func (versionCmd) Help() string { return "Example:\n  meshnet version --json" }

// Run prints it.
func (versionCmd) Run(a *app) error {
	cpu, err := tensor.CPU()
	if err != nil {
		return err
	}
	if a.json {
		return printJSON(a.stdout, map[string]any{
			"version": node.Version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH, "kernels": cpu, "architectures": model.Known(),
		})
	}
	fmt.Fprintf(a.stdout, "meshnet %s, %s %s/%s, kernels %s, models of kind %v\n", node.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, cpu, model.Known())
	return nil
}
