#!/usr/bin/env bash
# Build the programs: operator, kubectl plugin, and the agent for machines; with
# arguments, packages of the workspace as well.
#
#   PROFILE=release hack/build.sh skyward-bench
#
# The agent is linked statically, since a machine has whatever C library it has.
# An explicit --target keeps its compiler flags away from everything else, which
# would otherwise be built a second time.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$SKYWARD_ROOT"

c_compiler
# Only what the demo needs: the tools of the tests have many dependencies of their own.
packages=(-p skyward -p skyward-cli)
for package in "$@"; do packages+=(-p "$package"); done
cargo build --locked --profile "$PROFILE" "${packages[@]}" --bins
RUSTFLAGS='-C target-feature=+crt-static' cargo build --locked -p skyward-agent --bin skyward-agent --target "$AGENT_TARGET" --profile agent
