#!/usr/bin/env bash
# `make demo-down`: remove what `make demo` made. A local or kind cluster goes as
# a whole; on a cluster that was given, only what was not there before.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/target-cluster.sh"
cd "$SKYWARD_ROOT"

DEMO=${SKYWARD_DEMO:-$SKYWARD_CACHE/demo}
NAMESPACE=skyward-system
RELEASE=skyward
LIMIT=${LIMIT:-180}s

k() { "$SKYWARD_BIN_DIR/kubectl" --kubeconfig "$DEMO/kubeconfig" "$@"; }
made() { grep -qx "$1" "$DEMO/made" 2>/dev/null; }

# samples_gone: wait until they are. Where even their kinds are gone there is nothing to wait for.
samples_gone() {
  local said
  said=$(k wait --for=delete -f config/samples/ --timeout "$LIMIT" 2>&1) && return
  printf '%s\n' "$said"
  ! grep -q 'timed out' <<<"$said"
}

from_given_cluster() {
  local kinds crds uid others=''
  # It stopped before it made anything: all on the cluster belongs to others.
  [ -s "$DEMO/made" ] || return 0
  k --request-timeout 15s version >/dev/null 2>&1 || die "the demo's cluster does not answer. Make it answer and try again, or forget it: rm -r $DEMO"
  # A new cluster under the same address was not made by the demo.
  if [ -e "$DEMO/uid" ]; then
    uid=$(cluster_uid "$DEMO/kubeconfig")
    [ "$uid" = "$(cat "$DEMO/uid")" ] ||
      die "another cluster answers in the place of the demo's, and nothing was taken from it. Forget the demo: rm -r $DEMO"
  fi

  if made samples; then
    say "  deleting the samples (machines stop first)"
    # The Provider goes with its Pools: it has machines, and the operator's policy asks for a confirmation.
    k annotate -f config/samples/provider-container.yaml --overwrite skyward.dev/allow-deletion=true >/dev/null 2>&1 || true
    k delete -f config/samples/ --ignore-not-found --wait=false >/dev/null 2>&1 || true
    quietly "wait for the samples to go" samples_gone ||
      die "some samples are still being deleted after $LIMIT: look at 'kubectl describe' of them, then run this again"
  fi

  # Without the operator nobody would take these down. A demo that stopped before Helm left no
  # such kinds.
  kinds=$(k get crd -o name | sed -nE 's#.*/((providers|pools|crontasks|tasks|machines)\.skyward\.dev)$#\1#p' | paste -sd,)
  [ -z "$kinds" ] || others=$(k get "$kinds" -A -o name | sed -n 1,5p)
  [ -z "$others" ] || die "these are not the demo's, and need the operator that would go now; delete them first: ${others//$'\n'/ }"

  if made release; then
    quietly "uninstall the operator" \
      "$SKYWARD_BIN_DIR/helm" --kubeconfig "$DEMO/kubeconfig" uninstall "$RELEASE" -n "$NAMESPACE" --ignore-not-found --wait --timeout "$LIMIT"
  fi
  if made crds; then
    crds=$(k get crd -o name | sed -n '/\.skyward\.dev$/p')
    # shellcheck disable=SC2086 # a list
    [ -z "$crds" ] || quietly "delete the resource definitions" k delete --ignore-not-found --timeout "$LIMIT" $crds
  fi
  if made namespace; then
    quietly "delete the namespace $NAMESPACE" k delete namespace "$NAMESPACE" --ignore-not-found --timeout "$LIMIT"
  fi
}

if [ ! -f "$DEMO/cluster" ] && [ -z "$(hack/cluster/leftovers.sh || true)" ]; then
  say "No demo is here."
  exit 0
fi
case $(cat "$DEMO/cluster" 2>/dev/null || echo local) in
  local) hack/cluster/cluster.sh down ;;
  kind) quietly "delete the kind cluster" "$SKYWARD_BIN_DIR/kind" delete cluster --name "$SKYWARD_KIND" ;;
  given)
    from_given_cluster
    say "  Images stay in your registry."
    ;;
esac
rm -rf "$DEMO"
cat <<TXT
Everything the demo made is gone. Kept, so that the next time is quick:
  Debian packages that it installed (containerd, runc, iptables …)
  programs and images in $SKYWARD_CACHE ('rm -r' it to forget them)
TXT
