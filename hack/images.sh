#!/usr/bin/env bash
# Build the operator and node images from what `hack/build.sh` built, and import
# them into the local cluster when it runs. Prints the operator image's name on
# the last line.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$SKYWARD_ROOT/hack/images/node.sh" >/dev/null
operator=$("$SKYWARD_ROOT/hack/images/operator.sh" --agent "$SKYWARD_AGENT" "$SKYWARD_TARGET_BIN/skyward")
if [ "${1:-}" != --no-load ] && "$SKYWARD_ROOT/hack/cluster/cluster.sh" kubeconfig >/dev/null 2>&1; then
  "$SKYWARD_ROOT/hack/cluster/cluster.sh" load "$SKYWARD_IMAGES/operator.tar" "$SKYWARD_IMAGES/node.tar"
fi
say "$operator"
