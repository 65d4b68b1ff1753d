#!/usr/bin/env bash
# `make demo` on a cluster that somebody has: images go through a registry, the chart's own
# way of fetching them is seen, and `make demo-down` takes away what the demo made, no more.
#
#   tests/demo/given.sh KUBECONFIG
#
# In between somebody takes the README's tour.
#
# The registry is crane's, on this machine's loopback: so the cluster must be a local one.
# An operator that is installed there is uninstalled first.
# shellcheck disable=SC2015 # what stands behind || never returns
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. hack/lib.sh

KUBECONFIG_GIVEN=$(realpath "$1")
WORK=$(mktemp -d)
export SKYWARD_DEMO=$WORK/demo
registry=
finish() {
  local rc=$?
  # Later tests install the operator in their own way, and stumble over a demo's Provider.
  if ((rc)) && [ -z "${KEEP:-}" ] && [ -e "$WORK/demo/made" ]; then make -s demo-down >"$WORK/down" 2>&1 || tail -n 5 "$WORK/down" >&2; fi
  [ -z "$registry" ] || kill "$registry" 2>/dev/null || true
  rm -rf "$WORK"
}
trap finish EXIT

k() { "$SKYWARD_BIN_DIR/kubectl" --kubeconfig "$KUBECONFIG_GIVEN" "$@"; }
bad() {
  die "$1${2:+
$(tail -n 30 "$2" | sed 's/^/    /')}"
}

# --- without a registry: one line, and nothing happens -----------------------

# Without the levels of the make that may have called us.
unset MAKEFLAGS MAKELEVEL MFLAGS
if make -s demo KUBECONFIG="$KUBECONFIG_GIVEN" >"$WORK/out" 2>&1; then bad "a given cluster without REGISTRY is refused" "$WORK/out"; fi
[ "$(grep -c . "$WORK/out")" -le 2 ] && grep -q 'add REGISTRY=' "$WORK/out" || bad "one line says that REGISTRY is missing" "$WORK/out"

# --- with one ----------------------------------------------------------------

# As on a cluster that never saw us. What an operator left whose end was not in order has
# nobody who would let go of it.
k delete crontasks.skyward.dev,tasks.skyward.dev,pools.skyward.dev --all -A --timeout 60s >/dev/null 2>&1 || true
k annotate providers.skyward.dev --all --overwrite skyward.dev/allow-deletion=true >/dev/null 2>&1 || true
k delete providers.skyward.dev --all --timeout 20s >/dev/null 2>&1 || true
"$SKYWARD_BIN_DIR/helm" --kubeconfig "$KUBECONFIG_GIVEN" uninstall skyward -n skyward-system --ignore-not-found --wait >/dev/null
k delete namespace skyward-system demo-bystander --ignore-not-found >/dev/null
for kind in crontasks tasks pools machines providers; do
  # On a cluster that never saw us there is no such kind.
  { k get "$kind.skyward.dev" -A --ignore-not-found -o 'jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name}{"\n"}{end}' 2>/dev/null || true; } |
    while read -r namespace name; do
      [ -n "$name" ] || { name=$namespace && namespace=default; }
      k patch -n "$namespace" "$kind.skyward.dev" "$name" --type merge -p '{"metadata":{"finalizers":null}}' >/dev/null
    done
done
for name in $(k get crd -o name | grep '\.skyward\.dev$' || true); do k delete "$name" --timeout 60s >/dev/null; done

# recorded UID MADE...: what a demo on this kubeconfig would have written down.
recorded() {
  mkdir -p "$SKYWARD_DEMO"
  cp "$KUBECONFIG_GIVEN" "$SKYWARD_DEMO/kubeconfig"
  echo given >"$SKYWARD_DEMO/cluster"
  echo "$1" >"$SKYWARD_DEMO/uid"
  printf '%s\n' "${@:2}" >"$SKYWARD_DEMO/made"
}

# --- the record of a demo on another cluster ----------------------------------

recorded another crds namespace release samples
echo theirs >>"$SKYWARD_DEMO/kubeconfig"
if make -s demo KUBECONFIG="$KUBECONFIG_GIVEN" REGISTRY=127.0.0.1:1/x >"$WORK/out" 2>&1; then bad "such a record is not taken over" "$WORK/out"; fi
grep -q "run 'make demo-down' first" "$WORK/out" || bad "one line says what to do" "$WORK/out"
[ "$(tail -n 1 "$SKYWARD_DEMO/kubeconfig")" = theirs ] || bad "the way to that cluster is kept"
recorded another crds namespace release samples
if make -s demo-down >"$WORK/out" 2>&1; then bad "demo-down takes nothing from another cluster than the demo's" "$WORK/out"; fi
grep -q 'another cluster answers' "$WORK/out" || bad "demo-down says that it is another one" "$WORK/out"
[ -e "$SKYWARD_DEMO/made" ] || bad "what it made is still on record"

# --- an operator that no demo installed ---------------------------------------

rm -rf "$SKYWARD_DEMO"
k create clusterrole skyward-controller --verb=get --resource=configmaps >/dev/null
refused=
make -s demo KUBECONFIG="$KUBECONFIG_GIVEN" REGISTRY=127.0.0.1:1/x >"$WORK/out" 2>&1 || refused=yes
k delete clusterrole skyward-controller >/dev/null
[ -n "$refused" ] && grep -q 'installed on this cluster already' "$WORK/out" || bad "one line says that somebody has Skyward there" "$WORK/out"
[ ! -s "$SKYWARD_DEMO/made" ] || bad "nothing of it counts as made by the demo"
rm -rf "$SKYWARD_DEMO"

# --- a demo that stopped before Helm ------------------------------------------

recorded "$(k get namespace kube-system -o 'jsonpath={.metadata.uid}')" crds namespace release
make -s demo-down >"$WORK/out" 2>&1 || bad "make demo-down after a demo that stopped before Helm" "$WORK/out"
[ ! -e "$SKYWARD_DEMO" ] || bad "demo-down forgets such a demo" "$WORK/out"

# --- one that gets to its end -------------------------------------------------

k create namespace demo-bystander >/dev/null
k create configmap -n demo-bystander theirs --from-literal=a=b >/dev/null

"$SKYWARD_BIN_DIR/crane" registry serve --address 127.0.0.1:0 --disk "$(mkdir "$WORK/registry" && echo "$WORK/registry")" >"$WORK/registry.log" 2>&1 &
registry=$!
# It takes a port that is free, and says which.
port=
for _ in $(seq 600); do
  port=$(sed -n 's/.*serving on port //p' "$WORK/registry.log" 2>/dev/null) || true
  [ -z "$port" ] || break
  sleep 0.1
done
[ -n "$port" ] || bad "the registry says where it listens" "$WORK/registry.log"
store=$WORK/store
say "  make demo KUBECONFIG=… REGISTRY=127.0.0.1:$port/skyward"
make -s demo KUBECONFIG="$KUBECONFIG_GIVEN" REGISTRY="127.0.0.1:$port/skyward" STORE_HOSTPATH="$store" >"$WORK/out" 2>&1 ||
  bad "make demo on a given cluster" "$WORK/out"
# A file may have several.
tasks=$(cat config/samples/task*.yaml | grep -c '^kind: Task$')
# The line names those that failed; attempts of samples may fail.
grep -q "all $tasks tasks ended\$" "$WORK/out" || bad "the samples succeed" "$WORK/out"
images=$(k get pods -A -o 'jsonpath={range .items[*].spec.containers[*]}{.image}{"\n"}{end}')
for name in operator node; do
  grep -q "^127.0.0.1:$port/skyward/$name:" <<<"$images" || bad "Pods run the $name image of the registry: $images"
done

tests/demo/readme.py "$SKYWARD_DEMO/kubeconfig"

make -s demo-down >"$WORK/down" 2>&1 || bad "make demo-down on a given cluster" "$WORK/down"
left=$(k get crd,clusterrole,clusterrolebinding,apiservice,validatingadmissionpolicy,namespace -o name | grep skyward || true)
left+=$(k get rolebinding -n kube-system -o name | grep skyward || true)
[ -z "$left" ] || bad "demo-down leaves nothing of the demo: $left"
k get configmap -n demo-bystander theirs >/dev/null || bad "what is not the demo's stays"
k delete namespace demo-bystander >/dev/null
say "  the demo came and went on a given cluster"
