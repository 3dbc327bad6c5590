#!/bin/sh
# The undisturbed text, by one process: generate.sh --prompt "Why is the sky blue?"
export MESHNET_TESTNET="${MESHNET_TESTNET:-$PWD/.testnet}"
exec go -C "$(dirname "$0")" run ./cmd/testnet generate "$@"
