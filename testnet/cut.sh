#!/bin/sh
# Cut a link: cut.sh n1 n2, or cut.sh n1 n2 hole to tell nobody.
export MESHNET_TESTNET="${MESHNET_TESTNET:-$PWD/.testnet}"
exec go -C "$(dirname "$0")" run ./cmd/testnet cut "$@"
