#!/bin/sh
# End a node with SIGKILL: kill.sh n2
export MESHNET_TESTNET="${MESHNET_TESTNET:-$PWD/.testnet}"
exec go -C "$(dirname "$0")" run ./cmd/testnet kill "$@"
