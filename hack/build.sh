#!/usr/bin/env bash
# Build the programs: operator, kubectl plugin, and the agent for machines; with
# arguments, other programs of the workspace as well.
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
programs=(--bin skyward --bin kubectl-skyward)
for program in "$@"; do programs+=(--bin "$program"); done
# But with the features that the whole workspace asks for, so that the tests find all of it
# compiled (docs/decisions/0008-one-set-of-features.md); what is installed has its own alone.
selection=(--workspace)
if [ "$PROFILE" = release ]; then
  selection=(-p skyward -p skyward-cli)
  for program in "$@"; do selection+=(-p "$program"); done
fi
cargo build --locked --profile "$PROFILE" "${selection[@]}" "${programs[@]}"
# What machines get is compiled by rustc alone, also where tests are by clippy's compiler.
env -u RUSTC_WORKSPACE_WRAPPER RUSTFLAGS='-C target-feature=+crt-static' cargo build --locked -p skyward-agent --bin skyward-agent --target "$AGENT_TARGET" --profile agent
