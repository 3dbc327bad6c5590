#!/bin/sh
# Break a mesh of real processes on purpose while it answers, and hold every answer
# against the undisturbed one: chaos.sh --seed 1 --duration 60s --chats 8 --json
exec go -C "$(dirname "$0")" run ./chaos "$@"
