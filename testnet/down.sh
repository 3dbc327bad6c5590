#!/bin/sh
# End everything and remove the mesh's directory.
export MESHNET_TESTNET="${MESHNET_TESTNET:-$PWD/.testnet}"
exec go -C "$(dirname "$0")" run ./cmd/testnet down "$@"
