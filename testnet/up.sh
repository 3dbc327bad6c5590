#!/bin/sh
# Start a mesh of real processes: up.sh -n 4 -model tiny (up.sh -h shows all flags).
export MESHNET_TESTNET="${MESHNET_TESTNET:-$PWD/.testnet}"
exec go -C "$(dirname "$0")" run ./cmd/testnet up "$@"
