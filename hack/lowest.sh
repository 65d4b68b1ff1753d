#!/usr/bin/env bash
# Runs a command with what others leave of the processors.
#
#   hack/lowest.sh COMMAND...
#
# Linux shares processors among sessions first, where its kernel was told to (sched_autogroup_enabled), and by niceness among
# the processes of one session then. So the command has a session of its own, whose share is the smallest one. It ends
# with this script.
set -euo pipefail

setsid bash -c 'echo 19 2>/dev/null >/proc/self/autogroup || true; exec nice -n 19 "$@"' lowest "$@" &
session=$!
trap 'kill -TERM -- "-$session" 2>/dev/null || true' EXIT
trap 'exit 143' INT TERM
wait "$session"
