#!/usr/bin/env bash
# The chart without a cluster: it lints, its values are checked, what it renders has
# the properties we promise, and config/default is the same thing. How it lives on a
# cluster (install, upgrade, uninstall, install) is in tests/e2e/chart.rs.
#
#   tests/chart/run.sh            check
#   tests/chart/run.sh --write    write config/default/operator.yaml anew
#
# helm and kubectl are taken from SKYWARD_BIN_DIR, or from the path.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PATH=${SKYWARD_BIN_DIR:-$HOME/.cache/skyward/bin}:$PATH
for tool in helm kubectl; do
  command -v "$tool" >/dev/null || { echo "tests/chart/run.sh: $tool is not there; run 'make test', which builds it" >&2; exit 1; }
done

CHART=charts/skyward
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
failed=0

bad() {
  echo "FAILED  $1" >&2
  [ -z "${2:-}" ] || printf '%s\n' "$2" | head -n 12 | sed 's/^/        /' >&2
  failed=1
}

# render ARGS...: helm built by `go install` does not know which Kubernetes it is for.
render() { helm template skyward "$CHART" --namespace skyward-system --kube-version 1.34.0 "$@"; }

# part NAME KIND FILE: one rendered object.
part() {
  awk -v RS='\n---\n' -v kind="$2" -v name="$1" '
    $0 ~ ("(^|\n)kind: " kind "\n") && $0 ~ ("\n  name: " name "\n") { print; found = 1 } END { exit !found }' "$3"
}

# kustomized: the chart's objects without what only Helm reads.
kustomized() {
  echo "# From charts/skyward by tests/chart/run.sh --write; do not edit."
  render --no-hooks --set store.storageClass=default |
    grep -v -e 'helm.sh/chart:' -e 'app.kubernetes.io/managed-by: Helm' -e '^# Source:'
}

# argocd: the Lua files under the keys that Argo CD reads.
argocd() {
  local kind
  echo "# From the .lua files beside it by tests/chart/run.sh --write; do not edit."
  echo "data:"
  for kind in Pool Machine Task CronTask Provider; do
    echo "  resource.customizations.health.skyward.dev_$kind: |"
    sed 's/^./    &/' "config/argocd/${kind,,}.lua"
  done
}

if [ "${1:-}" = --write ]; then
  kustomized >config/default/operator.yaml
  argocd >config/argocd/argocd-cm.yaml
  exit
fi

# --- values ------------------------------------------------------------------

# accepts WHAT ARGS...; refuses WHAT WORDS ARGS...
accepts() {
  local what=$1 answer
  shift
  answer=$(render "$@" 2>&1 >/dev/null) || bad "$what is accepted" "$answer"
}
refuses() {
  local what=$1 words=$2 answer
  shift 2
  if answer=$(render "$@" 2>&1 >/dev/null); then
    bad "$what is refused"
  elif [[ $answer != *"$words"* ]]; then
    bad "$what is refused with \"$words\"" "$answer"
  fi
}

answer=$(helm lint --strict "$CHART" --set store.hostPath=/data 2>&1) || bad "helm lint --strict" "$answer"
HOST=(--set store.hostPath=/data)
accepts "a hostPath" "${HOST[@]}"
accepts "a claim" --set store.existingClaim=mine
accepts "a StorageClass" --set store.storageClass=fast --set store.size=1Ti
accepts "the default StorageClass" --set store.storageClass=default
accepts "a store that the cluster is not asked for" --set store.existingClaim=mine --set store.check=false
accepts "providers" "${HOST[@]}" --set providers.local.container.imagePullPolicy=Never
accepts "everything optional" "${HOST[@]}" --set networkPolicy.enabled=true --set metrics.serviceMonitor.enabled=true \
  --set subresources.enabled=false --set rbac.aggregate=false --set crds.hook=false --set controller.podNetwork=port-forward \
  --set 'controller.extraEnv[0].name=A' --set 'controller.extraEnv[0].value=b' --set 'controller.extraArgs[0]=--concurrency=4' \
  --set 'imagePullSecrets[0].name=registry' --set controller.nodeSelector.disk=ssd --set controller.priorityClassName=high
accepts "namespaces and exempt accounts" "${HOST[@]}" --set 'namespaces={team-a,team-b}' --set rbac.container=false \
  --set 'admissionPolicy.exempt[0].kind=Group' --set 'admissionPolicy.exempt[0].name=system:masters' \
  --set 'networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus'
refuses "a reader that is a ServiceAccount of nowhere" "/rbac/catalogueReaders/0" "${HOST[@]}" \
  --set 'rbac.catalogueReaders[0].kind=ServiceAccount' --set 'rbac.catalogueReaders[0].name=bot'
accepts "no admission policy" "${HOST[@]}" --set admissionPolicy.enabled=false
refuses "an exempt ServiceAccount without its namespace" "/admissionPolicy/exempt/0" "${HOST[@]}" \
  --set 'admissionPolicy.exempt[0].kind=ServiceAccount' --set 'admissionPolicy.exempt[0].name=velero'
refuses "an exempt account of no kind" "/admissionPolicy/exempt/0" "${HOST[@]}" --set 'admissionPolicy.exempt[0].name=velero'
refuses "a namespace that cannot be" "/namespaces/0" "${HOST[@]}" --set 'namespaces={Team A}'
refuses "no place for the store" "set store.storageClass"
refuses "two places for the store" "set only one of" "${HOST[@]}" --set store.existingClaim=mine
BUCKET=(--set store.bucket.url=s3://logs/here)
accepts "a bucket" "${BUCKET[@]}"
accepts "a bucket of another server" "${BUCKET[@]}" --set store.bucket.endpoint=https://minio.example --set store.bucket.region=x \
  --set store.bucket.credentialsSecret=keys --set store.size=1Ti
accepts "a container of Azure" --set store.bucket.url=az://account/container
refuses "a bucket beside a claim" "set only one of" "${BUCKET[@]}" --set store.existingClaim=mine
refuses "a bucket without its kind" 'store.bucket.url is "logs"' --set store.bucket.url=logs
refuses "a container without its account" 'store.bucket.url is "az://container"' --set store.bucket.url=az://container
refuses "a server that is no URL" 'store.bucket.endpoint is "minio"' "${BUCKET[@]}" --set store.bucket.endpoint=minio
refuses "settings of no bucket" "store.bucket has settings and no url" "${HOST[@]}" --set store.bucket.region=eu-central-1
refuses "a relative hostPath" 'store.hostPath is "data"; it must be an absolute path' --set store.hostPath=data
refuses "an amount that Kubernetes does not know" 'store.size is "10GB"' --set store.storageClass=a --set store.size=10GB
accepts "a quota in bytes" "${HOST[@]}" --set store.quotaPerNamespace=2Gi --set store.holdFor=30m
# `helm upgrade --reuse-values` renders this chart with the values of the one before, where what is
# new since does not exist: it must mean the default.
NEW=(namespaces admissionPolicy rbac.container rbac.catalogueReaders store.quotaPerNamespace store.holdFor store.bucket networkPolicy.metricsFrom)
nulls=()
for key in "${NEW[@]}"; do nulls+=(--set "$key=null"); done
for more in networkPolicy.enabled=false networkPolicy.enabled=true rbac.container=false; do
  render "${HOST[@]}" --set "$more" >"$WORK/new.yaml"
  kept=("${nulls[@]}")
  [[ $more != rbac.* ]] || kept+=(--set "$more")
  if render "${HOST[@]}" "${kept[@]}" --set "$more" >"$WORK/reused.yaml" 2>"$WORK/reused.err"; then
    answer=$(diff "$WORK/new.yaml" "$WORK/reused.yaml") || bad "values of the chart before mean the defaults ($more)" "$answer"
  else
    bad "values of the chart before are accepted ($more)" "$(cat "$WORK/reused.err")"
  fi
  rm "$WORK/new.yaml" "$WORK/reused.yaml" "$WORK/reused.err"
done
refuses "a quota without unit" 'store.quotaPerNamespace is "2"' "${HOST[@]}" --set-string store.quotaPerNamespace=2
refuses "more than the whole volume" 'store.quotaPerNamespace is "120%"' "${HOST[@]}" --set store.quotaPerNamespace=120%
refuses "a hold without unit" 'store.holdFor is "60"' "${HOST[@]}" --set-string store.holdFor=60
refuses "a Lease too short to be renewed" 'at least 3s' "${HOST[@]}" --set controller.leaseDuration=2s
refuses "a word as duration" 'controller.leaseDuration is "soon"' "${HOST[@]}" --set controller.leaseDuration=soon
accepts "a long Lease" "${HOST[@]}" --set controller.leaseDuration=2m
refuses "an interval without unit" 'metrics.serviceMonitor.interval is "30"' "${HOST[@]}" --set-string metrics.serviceMonitor.interval=30
refuses "a word for yes or no" "/store/check" "${HOST[@]}" --set store.check=maybe
accepts "another id of the installation" "${HOST[@]}" --set installationId=staging-of-today
refuses "an id that no mark can carry" "/installationId" "${HOST[@]}" --set installationId=Staging_1
refuses "an unknown value" "additional properties 'replicas' not allowed" "${HOST[@]}" --set controller.replicas=2
refuses "an unknown value at the top" "additional properties 'replicaCount' not allowed" "${HOST[@]}" --set replicaCount=2
refuses "a wrong pull policy" "/image/pullPolicy" "${HOST[@]}" --set image.pullPolicy=Sometimes
refuses "a wrong log format" "/logFormat" "${HOST[@]}" --set logFormat=xml
refuses "a Provider with a bad name" 'providers has the name "Local"' "${HOST[@]}" --set providers.Local.container.image=x
refuses "a negative concurrency" "/controller/concurrency" "${HOST[@]}" --set controller.concurrency=-1
if answer=$(helm template skyward "$CHART" "${HOST[@]}" --kube-version 1.32.0 2>&1); then bad "Kubernetes 1.32 is refused"; fi

# --- what is rendered --------------------------------------------------------

# has NAME KIND TEXT; lacks NAME KIND TEXT (in $WORK/all.yaml)
has() { [[ $(part "$1" "$2" "$WORK/all.yaml") == *"$3"* ]] || bad "$2 $1 has: $3"; }
lacks() { [[ $(part "$1" "$2" "$WORK/all.yaml") != *"$3"* ]] || bad "$2 $1 does not have: $3"; }
absent() { if part "$1" "$2" "$WORK/all.yaml" >/dev/null; then bad "there is no $2 $1"; fi; }

render --set store.storageClass=fast --set logLevel=debug --set providers.local.container.image=mine >"$WORK/all.yaml"
for name in skyward-controller skyward-subresources; do
  for text in 'runAsNonRoot: true' 'runAsUser: 65532' 'type: RuntimeDefault' 'allowPrivilegeEscalation: false' \
    'readOnlyRootFilesystem: true' 'drop: [ALL]' 'livenessProbe:' 'readinessProbe:' 'requests:'; do
    has "$name" Deployment "$text"
  done
  for text in hostPath: 'privileged: true' hostNetwork: 'add:'; do lacks "$name" Deployment "$text"; done
done
has skyward-controller Deployment 'type: Recreate'
has skyward-controller Deployment 'replicas: 1'
has skyward-controller Deployment 'value: "debug,kube_client=warn'
has skyward-store PersistentVolumeClaim 'helm.sh/resource-policy: keep'
has skyward-store PersistentVolumeClaim 'storageClassName: fast'
has local Provider 'helm.sh/resource-policy: keep'
has local Provider 'allowedNamespaces: {}'
has local Provider 'image: mine'
has skyward-crds Job 'helm.sh/hook: pre-install,pre-upgrade'
has skyward-crds Job 'runAsNonRoot: true'
# The controller writes it; a value here would undo that at each upgrade.
lacks v1alpha1.subresources.skyward.dev APIService $'\n  caBundle'
lacks v1alpha1.subresources.skyward.dev APIService 'insecureSkipTLSVerify'
has skyward-subresources-authentication RoleBinding 'name: extension-apiserver-authentication-reader'
lacks skyward-controller-workloads ClusterRole pods/portforward
lacks skyward-controller-workloads ClusterRole pods/exec
# What belongs to others is read in the namespaces that are served: here all, in one binding.
has skyward-controller-workloads ClusterRoleBinding 'name: skyward-controller-workloads'
has skyward-controller-workloads ClusterRole 'resources: [secrets, configmaps]'
for text in secrets configmaps pods; do lacks skyward-controller ClusterRole "$text"; done
lacks skyward-controller Deployment '--namespaces'
# The aggregated API reads its own keys, and no others.
has skyward-subresources Role 'resourceNames: [skyward-certs]'
# Probes say nothing, metrics ask who reads, and plans are on no port of the Pod's address.
has skyward-controller Deployment 'httpGet: {path: /readyz, port: health}'
has skyward-controller Deployment '{name: metrics, containerPort: 8444}'
lacks skyward-controller Deployment 'containerPort: 8090'
lacks skyward-controller Service 8080
has skyward-metrics-reader ClusterRole 'nonResourceURLs: [/metrics]'
# Records and statuses are the operator's; nobody is exempt unless the values say so.
for name in skyward-records skyward-status; do
  has "$name" ValidatingAdmissionPolicy 'failurePolicy: Fail'
  has "$name" ValidatingAdmissionPolicy '["system:serviceaccount:skyward-system:skyward-controller"]'
  lacks "$name" ValidatingAdmissionPolicy DELETE
  lacks "$name" ValidatingAdmissionPolicy 'userInfo.groups'
  has "$name" ValidatingAdmissionPolicyBinding 'validationActions: [Deny]'
  has "$name" ValidatingAdmissionPolicy admissionPolicy.exempt
done
has skyward-records ValidatingAdmissionPolicy 'resources: [machines, offers]'
has skyward-status ValidatingAdmissionPolicy 'resources: [providers/status, pools/status, machines/status, tasks/status, crontasks/status]'
# A Provider with machines is deleted only with its annotation, which the message names.
has skyward-providers ValidatingAdmissionPolicy 'operations: [DELETE]'
has skyward-providers ValidatingAdmissionPolicy 'resources: [providers]'
has skyward-providers ValidatingAdmissionPolicy 'oldObject.metadata.annotations["skyward.dev/allow-deletion"] == "true"'
has skyward-providers ValidatingAdmissionPolicy 'kubectl annotate providers.skyward.dev'
has skyward-providers ValidatingAdmissionPolicy '["system:serviceaccount:skyward-system:skyward-controller"]'
has skyward-providers ValidatingAdmissionPolicy generic-garbage-collector
has skyward-providers ValidatingAdmissionPolicyBinding 'validationActions: [Deny]'
# An author of Tasks gets a Pool made only with the right to make Pools, and nobody is exempt from that.
has skyward-pool-templates ValidatingAdmissionPolicy 'operations: [CREATE]'
has skyward-pool-templates ValidatingAdmissionPolicy 'resources: [tasks]'
has skyward-pool-templates ValidatingAdmissionPolicy 'operations: [CREATE, UPDATE]'
has skyward-pool-templates ValidatingAdmissionPolicy 'resources: [crontasks]'
has skyward-pool-templates ValidatingAdmissionPolicy 'failurePolicy: Fail'
has skyward-pool-templates ValidatingAdmissionPolicy 'authorizer.group("skyward.dev").resource("pools").namespace(request.namespace).check("create").allowed()'
lacks skyward-pool-templates ValidatingAdmissionPolicy trusted
has skyward-pool-templates ValidatingAdmissionPolicyBinding 'validationActions: [Deny]'
has skyward-controller-workloads ClusterRole $'resources: [pools]\n  verbs: [create]'
has skyward-controller ClusterRole $'resources: [pools]\n  verbs: [get, list, watch, patch, delete]'
# Everybody who is logged in reads Providers and Offers, and writes neither.
has skyward-catalogue ClusterRoleBinding '{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:authenticated"}'
has skyward-catalogue ClusterRole 'verbs: [get, list, watch]'
has skyward-catalogue ClusterRole 'resources: [providers, providers/status, offers]'
# Nobody of ours may do everything.
if grep -nE "(verbs|resources|apiGroups):.*['\"]?\*" "$WORK/all.yaml"; then bad "no rule has a wildcard"; fi

render "${HOST[@]}" --set subresources.enabled=false --set crds.hook=false --set rbac.aggregate=false >"$WORK/all.yaml"
has skyward-controller Deployment 'add: [DAC_OVERRIDE]'
has skyward-controller Deployment 'type: DirectoryOrCreate'
for name in Deployment Service ClusterRole RoleBinding ServiceAccount; do absent skyward-subresources "$name"; done
absent v1alpha1.subresources.skyward.dev APIService
absent skyward-crds Job
absent skyward-view ClusterRole
has skyward-catalogue ClusterRoleBinding system:authenticated
render "${HOST[@]}" --set 'rbac.catalogueReaders=' >"$WORK/all.yaml" 2>/dev/null && bad "readers are a list"
render "${HOST[@]}" --set-json 'rbac.catalogueReaders=[]' >"$WORK/all.yaml"
absent skyward-catalogue ClusterRoleBinding
has skyward-catalogue ClusterRole 'resources: [providers, providers/status, offers]'
render "${HOST[@]}" --set 'rbac.catalogueReaders[0].kind=Group' --set 'rbac.catalogueReaders[0].name=data-science' \
  --set 'rbac.catalogueReaders[1].kind=ServiceAccount' --set 'rbac.catalogueReaders[1].name=bot' \
  --set 'rbac.catalogueReaders[1].namespace=ci' >"$WORK/all.yaml"
has skyward-catalogue ClusterRoleBinding 'kind: Group, name: "data-science"}'
has skyward-catalogue ClusterRoleBinding '{kind: ServiceAccount, name: "bot", namespace: "ci"}'
lacks skyward-catalogue ClusterRoleBinding system:authenticated
render "${HOST[@]}" --set 'namespaces={team-a,team-b}' --set rbac.container=false --set admissionPolicy.enabled=false >"$WORK/all.yaml"
for name in skyward-records skyward-status skyward-providers skyward-pool-templates; do absent "$name" ValidatingAdmissionPolicy; absent "$name" ValidatingAdmissionPolicyBinding; done
# Without the policy that asks for the author's right, the operator has none either.
lacks skyward-controller-workloads ClusterRole 'resources: [pools]'
absent skyward-controller-workloads ClusterRoleBinding
[ "$(grep -c '^  namespace: team-[ab]$' "$WORK/all.yaml")" = 2 ] || bad "each namespace that is served has its RoleBinding"
has skyward-controller Deployment '--namespaces=team-a,team-b'
for text in pods nodes; do
  lacks skyward-controller-workloads ClusterRole "$text"
  lacks skyward-controller ClusterRole "$text"
done
render "${HOST[@]}" --set 'admissionPolicy.exempt[0].kind=Group' --set 'admissionPolicy.exempt[0].name=system:masters' \
  --set 'admissionPolicy.exempt[1].kind=ServiceAccount' --set 'admissionPolicy.exempt[1].name=velero' \
  --set 'admissionPolicy.exempt[1].namespace=backup' --set 'admissionPolicy.exempt[2].kind=User' \
  --set 'admissionPolicy.exempt[2].name=ana' >"$WORK/all.yaml"
for name in skyward-records skyward-status skyward-providers; do
  has "$name" ValidatingAdmissionPolicy 'group in ["system:masters"]'
  has "$name" ValidatingAdmissionPolicy 'skyward-controller","system:serviceaccount:backup:velero","ana"]'
done
render "${HOST[@]}" --set subresources.enabled=false --set crds.hook=false --set rbac.aggregate=false >"$WORK/all.yaml"
absent skyward-store PersistentVolumeClaim
render "${HOST[@]}" --set store.hostPathPrepared=true >"$WORK/all.yaml"
has skyward-controller Deployment 'runAsUser: 65532'
lacks skyward-controller Deployment 'DAC_OVERRIDE'

render "${BUCKET[@]}" --set store.bucket.credentialsSecret=keys --set store.bucket.region=eu-central-1 >"$WORK/all.yaml"
has skyward-controller Deployment '"--store-bucket=s3://logs/here"'
has skyward-controller Deployment '--store-size=10Gi'
has skyward-controller Deployment '"--store-region=eu-central-1"'
has skyward-controller Deployment 'secretName: keys'
has skyward-controller Deployment 'runAsUser: 65532'
has skyward-controller Deployment 'replicas: 1'
for text in --store-dir claimName hostPath /var/lib/skyward/store AWS_; do lacks skyward-controller Deployment "$text"; done
absent skyward-store PersistentVolumeClaim
# With the identity of the Pod there are no keys, and what the clouds' webhooks look for is there.
render "${BUCKET[@]}" --set 'serviceAccount.annotations.eks\.amazonaws\.com/role-arn=arn:aws:iam::1:role/skyward' \
  --set-string 'controller.podLabels.azure\.workload\.identity/use=true' >"$WORK/all.yaml"
has skyward-controller ServiceAccount 'eks.amazonaws.com/role-arn: arn:aws:iam::1:role/skyward'
has skyward-controller Deployment 'azure.workload.identity/use: "true"'
for text in --store-credentials-dir store-credentials --store-dir; do lacks skyward-controller Deployment "$text"; done

# Every Service and container port that something asks for passes the network policies.
render "${HOST[@]}" --set networkPolicy.enabled=true --set metrics.serviceMonitor.enabled=true --set metrics.serviceMonitor.labels.release=mine >"$WORK/all.yaml"
has skyward-controller NetworkPolicy '- {port: metrics}'
has skyward-controller NetworkPolicy '- {port: data}'
has skyward-controller NetworkPolicy 'app.kubernetes.io/component: subresources'
has skyward-subresources NetworkPolicy '- {port: https}'
for name in skyward-controller skyward-subresources; do lacks "$name" NetworkPolicy Egress; done
has skyward-controller ServiceMonitor 'release: mine'
has skyward-controller ServiceMonitor 'port: metrics'
has skyward-controller ServiceMonitor 'scheme: https'
has skyward-controller ServiceMonitor 'serverName: skyward-controller.skyward-system.svc'
has skyward-controller ServiceMonitor 'name: skyward-authorities'
lacks skyward-controller ServiceMonitor insecureSkipVerify
has skyward-controller NetworkPolicy '- {port: health}'
has skyward-controller Service 'name: metrics'
# A user who may view sees logs and results; a user who may edit can neither write status nor make Machines.
has skyward-view ClusterRole 'aggregate-to-view: "true"'
has skyward-view ClusterRole 'resources: [tasks/log, tasks/progress, tasks/result, machines/log, bundles]'
lacks skyward-view ClusterRole update
has skyward-view ClusterRole 'tasks, tasks/status, crontasks, crontasks/status]'
has skyward-edit ClusterRole 'resources: [pools, tasks, crontasks]'
has skyward-edit ClusterRole 'resources: [bundles]'
has skyward-edit ClusterRole 'resources: [tasks/retry]'
has skyward-edit ClusterRole 'aggregate-to-edit: "true"'
lacks skyward-edit ClusterRole /status
lacks skyward-view ClusterRole secrets
render "${HOST[@]}" --set subresources.replicas=2 >"$WORK/all.yaml"
has skyward-subresources PodDisruptionBudget 'maxUnavailable: 1'
has skyward-subresources Deployment 'topologyKey: kubernetes.io/hostname'
render "${HOST[@]}" >"$WORK/all.yaml"
absent skyward-subresources PodDisruptionBudget

# --- CRDs and kustomize ------------------------------------------------------

for file in crds/*.yaml; do
  for copy in "$CHART/crds" config/crds; do cmp -s "$file" "$copy/${file##*/}" || bad "$copy/${file##*/} is a copy of $file"; done
done
argocd | cmp -s - config/argocd/argocd-cm.yaml || bad "config/argocd/argocd-cm.yaml holds the .lua files; run tests/chart/run.sh --write"
lua=$(command -v lua5.4 || command -v lua || true)
if [ -z "$lua" ]; then
  bad "lua is installed, to run the health scripts" "run 'apt-get install lua5.4'"
elif ! answer=$("$lua" tests/chart/health.lua 2>&1); then
  bad "the health scripts for Argo CD judge as their table says" "$answer"
fi
kustomized >"$WORK/operator.yaml"
cmp -s "$WORK/operator.yaml" config/default/operator.yaml ||
  bad "config/default/operator.yaml is what the chart says; run tests/chart/run.sh --write" \
    "$(diff "$WORK/operator.yaml" config/default/operator.yaml | head -n 5)"
if answer=$(kubectl kustomize config/default 2>&1 >"$WORK/all.yaml"); then
  [ "$(grep -c '^kind: CustomResourceDefinition$' "$WORK/all.yaml")" = 6 ] || bad "config/default has the six CRDs"
  has skyward-controller Deployment 'claimName: skyward-store'
else
  bad "kubectl kustomize config/default" "$answer"
fi

[ $failed = 0 ] && echo "the chart and config/default are as promised"
exit $failed
