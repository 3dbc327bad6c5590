#!/bin/sh
# Let a frozen node go on: thaw.sh n2
export MESHNET_TESTNET="${MESHNET_TESTNET:-$PWD/.testnet}"
exec go -C "$(dirname "$0")" run ./cmd/testnet thaw "$@"
