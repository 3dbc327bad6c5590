#!/bin/sh
# Stop a node with SIGSTOP, it keeps its connections and says nothing: freeze.sh n2
export MESHNET_TESTNET="${MESHNET_TESTNET:-$PWD/.testnet}"
exec go -C "$(dirname "$0")" run ./cmd/testnet freeze "$@"
