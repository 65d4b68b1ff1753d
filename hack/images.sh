#!/usr/bin/env bash
# Build the operator and node images from what `hack/build.sh` built, and import
# them into the local cluster when it runs. Prints the operator image's name on
# the last line.
#
# With REGISTRY=<host>/<path> they are pushed there instead, and the last lines are
# the chart's values that name them.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/target-cluster.sh"

"$SKYWARD_ROOT/hack/images/node.sh" --agent "$SKYWARD_AGENT" >/dev/null
operator=$("$SKYWARD_ROOT/hack/images/operator.sh" --agent "$SKYWARD_AGENT" "$SKYWARD_TARGET_BIN/skyward")
if [ "${1:-}" != --no-load ]; then
  if [ -n "${REGISTRY:-}" ]; then
    [ -x "$SKYWARD_BIN_DIR/crane" ] || "$SKYWARD_ROOT/hack/tools.sh"
    # As for a cluster of somebody's own: a registry is the only way there.
    CLUSTER=given
    publish_images "$operator"
    say "Install with:"
    say "  --set image.repository=${OPERATOR_IMAGE%:*} --set image.tag=${OPERATOR_IMAGE##*:}"
    say "  --set nodeImage=$NODE_IMAGE"
    exit
  fi
  if "$SKYWARD_ROOT/hack/cluster/cluster.sh" kubeconfig >/dev/null 2>&1; then
    "$SKYWARD_ROOT/hack/cluster/cluster.sh" load "$SKYWARD_IMAGES/operator.tar" "$SKYWARD_IMAGES/node.tar"
  fi
fi
say "$operator"
