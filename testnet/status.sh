#!/bin/sh
# Show nodes, links and sessions; status.sh -json for programs.
export MESHNET_TESTNET="${MESHNET_TESTNET:-$PWD/.testnet}"
exec go -C "$(dirname "$0")" run ./cmd/testnet status "$@"
