#!/usr/bin/env bash
# `make demo-down`: remove what `make demo` made. A local or kind cluster goes as
# a whole; on a cluster that was given, only what was not there before.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$SKYWARD_ROOT"

DEMO=${SKYWARD_DEMO:-$SKYWARD_CACHE/demo}
NAMESPACE=skyward-system
RELEASE=skyward
LIMIT=${LIMIT:-180}s

k() { "$SKYWARD_BIN_DIR/kubectl" --kubeconfig "$DEMO/kubeconfig" "$@"; }
made() { grep -qx "$1" "$DEMO/made" 2>/dev/null; }

from_given_cluster() {
  local kinds crds others=''
  k --request-timeout 15s version >/dev/null 2>&1 || die "the demo's cluster does not answer. Make it answer and try again, or forget it: rm -r $DEMO"

  if made samples; then
    say "  deleting the samples (machines stop first)"
    k delete -f config/samples/ --ignore-not-found --wait=false >/dev/null 2>&1 || true
    k wait --for=delete -f config/samples/ --timeout "$LIMIT" >/dev/null 2>"$SKYWARD_LOG_DIR/demo-down.log" ||
      ! grep -q 'timed out' "$SKYWARD_LOG_DIR/demo-down.log" ||
      die "some samples are still being deleted after $LIMIT: look at 'kubectl describe' of them, then run this again"
  fi

  # Without the operator nobody would take these down. A demo that stopped before Helm left no
  # such kinds.
  kinds=$(k get crd -o name | sed -nE 's#.*/((providers|pools|tasks|machines)\.skyward\.dev)$#\1#p' | paste -sd,)
  [ -z "$kinds" ] || others=$(k get "$kinds" -A -o name | sed -n 1,5p)
  [ -z "$others" ] || die "these are not the demo's, and need the operator that would go now; delete them first: ${others//$'\n'/ }"

  if made release; then
    say "  uninstalling the operator"
    "$SKYWARD_BIN_DIR/helm" --kubeconfig "$DEMO/kubeconfig" uninstall "$RELEASE" -n "$NAMESPACE" --ignore-not-found --wait --timeout "$LIMIT" >/dev/null
  fi
  if made crds; then
    say "  deleting the resource definitions"
    crds=$(k get crd -o name | sed -n '/\.skyward\.dev$/p')
    # shellcheck disable=SC2086 # a list
    [ -z "$crds" ] || k delete --ignore-not-found --timeout "$LIMIT" $crds >/dev/null
  fi
  if made namespace; then
    k delete namespace "$NAMESPACE" --ignore-not-found --timeout "$LIMIT" >/dev/null
  fi
}

if [ ! -f "$DEMO/cluster" ] && [ -z "$(hack/cluster/leftovers.sh || true)" ]; then
  say "No demo is here."
  exit 0
fi
case $(cat "$DEMO/cluster" 2>/dev/null || echo local) in
  local) hack/cluster/cluster.sh down ;;
  kind) quietly "delete the kind cluster" "$SKYWARD_BIN_DIR/kind" delete cluster --name "${SKYWARD_KIND:-skyward}" ;;
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
