#!/bin/sh
# Ask the mesh: chat.sh "Why is the sky blue?" takes meshnet chat's flags, too.
export MESHNET_TESTNET="${MESHNET_TESTNET:-$PWD/.testnet}"
exec go -C "$(dirname "$0")" run ./cmd/testnet chat "$@"
