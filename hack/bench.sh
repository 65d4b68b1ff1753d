#!/usr/bin/env bash
# Benchmarks, most of them on a real cluster. Standard output is only the figures, one
# line each, `name value unit bar raw-limit`; progress goes to standard error.
#
#   ONLY=cold,tasks make bench     some of agent, gpu, items, sessions, matching, market (these
#                                  need no cluster), cold, packages, tasks, maps, attack, results,
#                                  rest, clouds, memory
#   KEEP=1 make bench              leave a cluster that this run started
#   PROFILE=dev make bench         the programs of demo and tests: slower, and no second compile
set -euo pipefail
export PROFILE=${PROFILE:-release}
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/target-cluster.sh"
cd "$SKYWARD_ROOT"

KUBECONFIG_BENCH=$SKYWARD_CACHE/bench/kubeconfig
CLUSTER_IS_NEW=no
IFS=', ' read -ra only <<<"${ONLY:-}"

finish() {
  local rc=$?
  trap - EXIT
  if [ "$CLUSTER_IS_NEW" = yes ] && [ -z "${KEEP:-}" ]; then
    hack/cluster/cluster.sh down >&2
  fi
  [ -n "${KEEP:-}" ] || rm -rf "$SKYWARD_CACHE/bench"
  exit "$rc"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

needs_cluster() {
  local name
  ((${#only[@]})) || return 0
  for name in "${only[@]}"; do
    case $name in
      agent | gpu | items | sessions | matching | market) ;;
      *) return 0 ;;
    esac
  done
  return 1
}

prepare() {
  # Sessions are measured against a real SSH server.
  [ -x /usr/sbin/sshd ] || RUNLEVEL=1 debian openssh-server
  # Built together, so that the operator and they share their dependencies.
  quietly "build operator, plugin, agent and benchmarks" hack/build.sh skyward-bench
}

prepare_cluster() {
  hack/tools.sh
  get_cluster "$KUBECONFIG_BENCH"
  hack/images.sh --no-load
  publish_images "$(cat "$SKYWARD_IMAGES/operator.name")"
  settings=$(OPERATOR_IMAGE=$OPERATOR_IMAGE NODE_IMAGE=$NODE_IMAGE hack/test-env.sh "$KUBECONFIG_BENCH")
  eval "$settings"
}

if needs_cluster; then choose_own_cluster >&2; fi
prepare >&2
if needs_cluster; then prepare_cluster >&2; fi
"$SKYWARD_TARGET_BIN/skyward-bench" "${only[@]}"
