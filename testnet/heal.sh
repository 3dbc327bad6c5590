#!/bin/sh
# Heal one link, heal.sh n1 n2, or all of them.
export MESHNET_TESTNET="${MESHNET_TESTNET:-$PWD/.testnet}"
exec go -C "$(dirname "$0")" run ./cmd/testnet heal "$@"
