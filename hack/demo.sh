#!/usr/bin/env bash
# `make demo`: a cluster, the operator on it, the samples, their results.
# It can be run again at any time: existing parts are kept, and only changes are
# applied. `make demo-down` removes it.
#
# Its state is kept in $SKYWARD_CACHE/demo:
#   kubeconfig   of this one cluster
#   cluster      given, kind or local
#   uid          identity of the cluster, whichever one its kubeconfig may name later
#   made         on a given cluster: what was not there before (for demo-down)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/target-cluster.sh"
cd "$SKYWARD_ROOT"

DEMO=${SKYWARD_DEMO:-$SKYWARD_CACHE/demo}
NAMESPACE=skyward-system
RELEASE=skyward
CLUSTER=${CLUSTER:-}
STEP=0
STEPS=7

k() { "$SKYWARD_BIN_DIR/kubectl" --kubeconfig "$DEMO/kubeconfig" "$@"; }
helm() { "$SKYWARD_BIN_DIR/helm" --kubeconfig "$DEMO/kubeconfig" "$@"; }

step() {
  STEP=$((STEP + 1))
  say
  say "[$STEP/$STEPS] $* ($(elapsed "$SECONDS"))"
}

# note WHAT: write down, once, that the demo made it.
note() { grep -qx "$1" "$DEMO/made" 2>/dev/null || printf '%s\n' "$1" >>"$DEMO/made"; }

# exists WHAT...: whether the cluster has it. No answer is not a no: what was there before
# would count as made by the demo.
exists() {
  local found
  found=$(k get "$@" --ignore-not-found -o name) || die "the cluster does not say whether it has this: $*"
  [ -n "$found" ]
}

# nobody_elses: whether Skyward is not installed, or by the demo alone. Another installation may
# be in any namespace, under any name, or without Helm.
nobody_elses() {
  local releases
  ! grep -qx release "$DEMO/made" 2>/dev/null || return 0
  releases=$(helm list --all --all-namespaces --short --filter "^$RELEASE\$") || die "the cluster does not show its Helm releases"
  if [ -n "$releases" ] || exists clusterrole skyward-controller; then
    die "Skyward is installed on this cluster already, and not by a demo. Apply the samples yourself: kubectl apply -f config/samples/"
  fi
}

stopped() {
  local rc=$?
  rm -f "$DEMO"/kubeconfig.next*
  ((rc != 0 && STEP > 0)) || return 0
  say
  say "The demo stopped at step $STEP of $STEPS. Run it again once that is mended: it goes on from there. 'make demo-down' removes what there is."
}
trap stopped EXIT

mkdir -p "$DEMO"
chmod 700 "$DEMO"
choose_cluster
images_can_arrive
if [ -f "$DEMO/cluster" ] && [ "$(cat "$DEMO/cluster")" != "$CLUSTER" ]; then
  die "there is a demo on another cluster ($(cat "$DEMO/cluster")) already: run 'make demo-down' first"
fi
say "Skyward demo on $(describe_cluster)."

step "Get kubectl, Helm and what else is needed"
hack/tools.sh
c_compiler

step "Start the cluster"
# What is on record was made on one cluster, and can only be taken away with its kubeconfig.
get_cluster "$DEMO/kubeconfig.next"
uid=$(cluster_uid "$DEMO/kubeconfig.next")
if [ -s "$DEMO/made" ] && [ "$(cat "$DEMO/uid" 2>/dev/null)" != "$uid" ]; then
  die "there is a demo on another cluster already: run 'make demo-down' first"
fi
mv "$DEMO/kubeconfig.next" "$DEMO/kubeconfig"
printf '%s\n' "$uid" >"$DEMO/uid"
printf '%s\n' "$CLUSTER" >"$DEMO/cluster"
[ "$CLUSTER" != given ] || nobody_elses
say "  Kubernetes $(k version -o json | python3 -c 'import json, sys; print(json.load(sys.stdin)["serverVersion"]["gitVersion"])')"

step "Build the operator, the kubectl plugin and the agent"
quietly "cargo build (10 to 15 minutes on two cores the first time)" hack/build.sh

step "Build the images"
hack/images.sh --no-load >/dev/null
publish_images "$(cat "$SKYWARD_IMAGES/operator.name")"
say "  operator: $OPERATOR_IMAGE"
say "  nodes:    $NODE_IMAGE"

step "Install Skyward with Helm"
if [ "$CLUSTER" = given ]; then
  nobody_elses
  exists crd pools.skyward.dev || note crds
  exists namespace "$NAMESPACE" || note namespace
  note release
fi
# JSON is YAML, and needs no quoting rules.
python3 - "$OPERATOR_IMAGE" "$NODE_IMAGE" "$CLUSTER" "$SKYWARD_STATE" >"$DEMO/values.yaml" <<'PYTHON'
import json, os, sys
operator, node, cluster, state = sys.argv[1:]
repository, tag = operator.rsplit(":", 1)
values = {
    "image": {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"},
    "nodeImage": node,
}
# The local cluster has no storage class: results go to a folder of its node,
# which `cluster.sh up` made for the operator's user.
if cluster == "local":
    values["store"] = {"hostPath": state + "/store", "hostPathPrepared": True}
elif os.environ.get("STORE_HOSTPATH"):
    values["store"] = {"hostPath": os.environ["STORE_HOSTPATH"]}
else:
    values["store"] = {"storageClass": "default"}
json.dump(values, sys.stdout, indent=1)
PYTHON
if [ "$CLUSTER" = given ] && [ -z "${STORE_HOSTPATH:-}" ]; then
  defaults=$(k get storageclass -o 'jsonpath={.items[*].metadata.annotations.storageclass\.kubernetes\.io/is-default-class}') ||
    die "the cluster does not show its storage classes"
  [[ $defaults == *true* ]] ||
    die "this cluster has no default storage class for the results' volume: make one the default, or, on a cluster of one node, add STORE_HOSTPATH=<a folder of that node>"
fi
quietly "helm upgrade --install" "$SKYWARD_BIN_DIR/helm" --kubeconfig "$DEMO/kubeconfig" upgrade --install "$RELEASE" charts/skyward \
  --namespace "$NAMESPACE" --create-namespace --values "$DEMO/values.yaml" --wait --timeout 240s ||
  {
    k get pods -n "$NAMESPACE" -o wide || true
    k logs -n "$NAMESPACE" -l app.kubernetes.io/name=skyward --all-containers --tail 20 --prefix || true
    die "the operator did not become ready"
  }
k get pods -n "$NAMESPACE"

step "Apply the samples"
if [ "$CLUSTER" = given ] && ! grep -qx samples "$DEMO/made"; then
  others=$(k get -f config/samples/ --ignore-not-found -o name | tr '\n' ' ')
  [ -z "$others" ] || die "these exist on this cluster already, and are not a demo's: $others. Delete or rename them first"
  note samples
fi
k apply -f config/samples/ | sed 's/^/  /'

step "Wait for the tasks"
# After a failure, the results are shown all the same.
watched=0
hack/demo-watch.py "$SKYWARD_BIN_DIR/kubectl" "$DEMO/kubeconfig" config/samples "${DEMO_TIMEOUT:-600}" || watched=$?

say
say "Results:"
export PATH=$SKYWARD_TARGET_BIN:$SKYWARD_BIN_DIR:$PATH KUBECONFIG=$DEMO/kubeconfig
while read -r namespace name; do
  say
  say "--- $namespace/$name"
  kubectl-skyward results -n "$namespace" "$name" 2>&1 | head -n 40 ||
    k get tasks.skyward.dev -n "$namespace" "$name" -o 'jsonpath={.status.results}{"\n"}'
  # And the end of its log, cut to the width of a screen.
  kubectl-skyward logs -n "$namespace" "$name" --tail 6 2>&1 | cut -c1-110 | sed 's/^/  | /' || true
done < <(k get -f config/samples/ -o json | python3 -c '
import json, sys
for item in json.load(sys.stdin)["items"]:
    if item["kind"] == "Task":
        print(item["metadata"]["namespace"], item["metadata"]["name"])')

if ((watched)); then
  say
  die "not every sample succeeded: step $STEP says which did not. A Task runs once; delete it, and the demo makes it again"
fi
cat <<TXT

The demo took $(elapsed "$SECONDS"). To look further:

  export KUBECONFIG=$DEMO/kubeconfig
  export PATH=$SKYWARD_BIN_DIR:$SKYWARD_TARGET_BIN:\$PATH
  kubectl get skyward            # Providers, Offers, Pools, Machines and Tasks
  kubectl describe pools.skyward.dev   # conditions and events
  kubectl skyward logs <task>    # add -f to follow
  kubectl skyward results <task>
  kubectl explain pool.spec

To remove everything the demo made: make demo-down
TXT
