#!/bin/sh
# Show the ends of all logs, logs.sh n2 one whole, logs.sh -f n2 as it grows.
export MESHNET_TESTNET="${MESHNET_TESTNET:-$PWD/.testnet}"
exec go -C "$(dirname "$0")" run ./cmd/testnet logs "$@"
