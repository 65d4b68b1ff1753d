#!/usr/bin/env bash
# The drill of docs/disaster-recovery.md on the local cluster: a backup of etcd, work and
# two more leaders, the restore, the hold, the decision. The operator must be installed.
#
#   restore-drill.sh [NAMESPACE OF THE OPERATOR]
#
# It makes the namespace "restore-drill" and the Provider "restore-drill", and takes them
# away at the end. What proves the restore is the epoch that the machine's agent was given
# after the backup: Pods are in etcd, so a Container provider's marks prove nothing.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/env.sh"
OPERATOR=${1:-skyward-system}
NAME=restore-drill
COPY=$(mktemp -d)/etcd

kubectl() { "$SKYWARD_BIN_DIR/kubectl" --kubeconfig "$KUBECONFIG_ADMIN" "$@"; }

# until_true SECONDS WHAT COMMAND...
until_true() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || die "this never became true: $what"
    sleep 1
  done
}

restore_condition() { # STATUS or reason of the Provider's condition RestoreDetected
  kubectl get provider.skyward.dev "$NAME" -o jsonpath="{.status.conditions[?(@.type==\"RestoreDetected\")].$1}"
}
reason_is() { [ "$(restore_condition reason)" = "$1" ]; }
pool_ready() { [ "$(kubectl -n "$NAME" get pool drill -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}')" = True ]; }
epoch() { kubectl -n "$OPERATOR" get lease skyward-controller -o jsonpath='{.spec.leaseTransitions}'; }
epoch_above() { [ "$(epoch)" -gt "$1" ]; }

another_leader() {
  local before
  before=$(epoch)
  kubectl -n "$OPERATOR" delete pod -l app.kubernetes.io/component=controller --wait=true >/dev/null
  until_true 120 "another leader" epoch_above "$before"
  until_true 180 "the Pool is ready under it" pool_ready
}

tidy() {
  kubectl delete namespace "$NAME" --ignore-not-found --wait=true --timeout=180s >/dev/null || true
  # The drill may have ended with machines on the Provider's record.
  kubectl annotate provider.skyward.dev "$NAME" --overwrite skyward.dev/allow-deletion=true >/dev/null 2>&1 || true
  kubectl delete provider.skyward.dev "$NAME" --ignore-not-found --wait=true --timeout=60s >/dev/null || true
  rm -rf "$(dirname "$COPY")"
}
trap tidy EXIT

say "  a Pool, and a backup"
kubectl create namespace "$NAME" >/dev/null
kubectl apply -f - >/dev/null <<YAML
apiVersion: skyward.dev/v1alpha1
kind: Provider
metadata: {name: $NAME}
spec: {container: {}, allowedNamespaces: {}}
---
apiVersion: skyward.dev/v1alpha1
kind: Pool
metadata: {name: drill, namespace: $NAME}
spec: {provider: $NAME, nodes: {desired: 1}, cpu: 200m, memory: 300M}
YAML
until_true 300 "the Pool is ready" pool_ready
"$HERE/cluster.sh" snapshot "$COPY"
until_true 180 "the Pool is ready again" pool_ready
backup=$(epoch)

say "  two more leaders"
another_leader
another_leader
newest=$(epoch)
machine=$(kubectl -n "$NAME" get machines.skyward.dev -o jsonpath='{.items[0].metadata.name}')

say "  the restore, to epoch $backup of $newest"
"$HERE/cluster.sh" restore "$COPY"
# The Pod of the operator is that of the backup, which is gone; the kubelet makes what it needs.
until_true 300 "the hold" reason_is RestoreProved
say "  held: $(restore_condition message | cut -c1-160)…"
kubectl -n "$NAME" get pod "$machine" >/dev/null || die "the machine was ended in the hold"

say "  the decision"
digest=$(restore_condition message | sed -n 's/.*Adopt@\([0-9a-f]*\).*/\1/p')
kubectl annotate provider.skyward.dev "$NAME" --overwrite "skyward.dev/after-restore=Adopt@$digest" >/dev/null
until_true 120 "an epoch above $newest" epoch_above "$newest"
until_true 300 "the Pool is ready, with its machine" pool_ready
[ "$(kubectl -n "$NAME" get machines.skyward.dev -o jsonpath='{.items[0].metadata.name}')" = "$machine" ] ||
  die "the machine was replaced"
say "The restored cluster works on with the machine that it had (epoch $(epoch))."
