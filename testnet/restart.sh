#!/bin/sh
# Kill a node and start it again: restart.sh n2
export MESHNET_TESTNET="${MESHNET_TESTNET:-$PWD/.testnet}"
exec go -C "$(dirname "$0")" run ./cmd/testnet restart "$@"
