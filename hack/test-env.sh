#!/usr/bin/env bash
# Print what the tests on a real cluster read from their environment, for running
# one of them by hand against the local cluster:
#
#   make cluster-up images
#   eval "$(hack/test-env.sh)"
#   hack/test-programs.sh skyward-e2e -- name_of_one_test
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/target-cluster.sh"

kubeconfig=${1:-$SKYWARD_STATE/kubeconfig}
for file in "$kubeconfig" "$SKYWARD_STATE/kubeconfig"; do
  [ -f "$file" ] || die "there is no cluster yet: run 'make cluster-up'"
done
authority() { sed -n 's/^ *certificate-authority-data: //p' "$1"; }
[ "$(authority "$kubeconfig")" = "$(authority "$SKYWARD_STATE/kubeconfig")" ] ||
  die "$kubeconfig is not the local cluster's: the tests take Skyward away from where they run, with every Pool and Task there"
for image in operator node; do
  [ -f "$SKYWARD_IMAGES/$image.tar" ] || die "there is no $image image yet: run 'make images'"
done

show() { printf 'export %s=%q\n' "$1" "$2"; }
show SKYWARD_TEST_KUBECONFIG "$kubeconfig"
show SKYWARD_STATE "$SKYWARD_STATE"
show SKYWARD_BIN_DIR "$SKYWARD_BIN_DIR"
show SKYWARD_TARGET_BIN "$SKYWARD_TARGET_BIN"
show SKYWARD_OPERATOR_IMAGE "${OPERATOR_IMAGE:-$(image_name "$SKYWARD_IMAGES/operator.tar")}"
show SKYWARD_NODE_IMAGE "${NODE_IMAGE:-$(image_name "$SKYWARD_IMAGES/node.tar")}"
show SKYWARD_AGENT "$SKYWARD_AGENT"
show CARGO_TARGET_DIR "$CARGO_TARGET_DIR"
# A folder on the node that the operator's user may write to, and what Pods need to
# download packages as this machine does.
show SKYWARD_STORE_DIR "$SKYWARD_STATE/store"
show SKYWARD_CA_BUNDLE "$SKYWARD_STATE/ca-bundle.crt"
show SKYWARD_PIP_ENV "$SKYWARD_STATE/pip.env"
