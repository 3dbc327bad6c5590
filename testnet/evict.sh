#!/bin/sh
# Drop a session's cache on a node: evict.sh n2 all, or the first hex digits of its id.
export MESHNET_TESTNET="${MESHNET_TESTNET:-$PWD/.testnet}"
exec go -C "$(dirname "$0")" run ./cmd/testnet evict "$@"
