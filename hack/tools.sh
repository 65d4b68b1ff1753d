#!/usr/bin/env bash
# Build the programs that no package registry carries ready-made: the parts of
# the local cluster, kubectl, helm, crane and, on demand, kind.
#
#   hack/tools.sh            what the local cluster and the tests need
#   hack/tools.sh kind       kind too
#
# They come from the Go module proxy that `go env GOPROXY` names. Each is built
# again only when its sources, its version or the Go release changed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

KUBERNETES=v1.34.4
HELM=v3.22.0
CRANE=v0.20.6
KIND=v0.30.0

export CGO_ENABLED=0

# stamped NAME DIGEST: was NAME built from exactly this before?
stamped() { [ -x "$SKYWARD_BIN_DIR/$1" ] && [ "$(cat "$SKYWARD_BIN_DIR/.$1" 2>/dev/null)" = "$2" ]; }

# place NAME DIGEST: put new programs where they are found, in one step each, so
# that a cluster which is running one of them is not disturbed.
place() {
  mv -f "$SKYWARD_BIN_DIR/.new/$1" "$SKYWARD_BIN_DIR/$1"
  printf '%s\n' "$2" >"$SKYWARD_BIN_DIR/.$1"
}

cluster_parts() {
  local version=k8s.io/component-base/version key
  key=$({
    go env GOVERSION
    echo "$KUBERNETES"
    cat "$SKYWARD_ROOT"/hack/cluster/go.{mod,sum} "$SKYWARD_ROOT"/hack/cluster/{components,dns,pause}/*.go
  } | digest -)
  if ! stamped components "$key" || ! stamped dns "$key" || ! stamped pause "$key"; then
    say "  Kubernetes $KUBERNETES is built from its Go modules: 6 to 8 minutes on two cores, once."
    quietly "build the parts of the local cluster" go -C "$SKYWARD_ROOT/hack/cluster" build -v -buildvcs=false -trimpath \
      -ldflags "-s -w -X $version.gitVersion=$KUBERNETES -X $version.gitMajor=1 -X $version.gitMinor=34" \
      -o "$SKYWARD_BIN_DIR/.new/" ./components ./dns ./pause
    place components "$key"
    place dns "$key"
    place pause "$key"
  fi
  local name
  for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
    ln -sfn components "$SKYWARD_BIN_DIR/$name"
  done
}

# installed NAME PACKAGE@VERSION [LINKER FLAGS]
installed() {
  local key
  key=$({ go env GOVERSION && echo "$*"; } | digest -)
  stamped "$1" "$key" && return
  GOBIN=$SKYWARD_BIN_DIR/.new quietly "build $1 ${2##*@}" go install -v -buildvcs=false -trimpath -ldflags "-s -w ${3:-}" "$2"
  place "$1" "$key"
}

# Two at once (a demo beside the tests) would build the same twice.
exec {lock}>"$SKYWARD_BIN_DIR/.lock"
flock -n "$lock" || quietly "wait for another build of the tools" flock "$lock"
mkdir -p "$SKYWARD_BIN_DIR/.new"
command -v go >/dev/null || die "go is not installed; see hack/check-tools.sh"
cluster_parts
# Without these Helm takes every cluster that it has not asked for Kubernetes 1.20,
# so that `helm template` and `helm lint` refuse a chart for newer ones.
helm_flags="-X helm.sh/helm/v3/internal/version.version=$HELM"
for package in chartutil lint/rules; do
  helm_flags+=" -X helm.sh/helm/v3/pkg/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$package.k8sVersionMinor=$(cut -d. -f2 <<<"$KUBERNETES")"
done
installed helm "helm.sh/helm/v3/cmd/helm@$HELM" "$helm_flags"
installed crane "github.com/google/go-containerregistry/cmd/crane@$CRANE"
for extra in "$@"; do
  case $extra in
    kind) installed kind "sigs.k8s.io/kind@$KIND" ;;
    *) die "hack/tools.sh does not know how to build $extra" ;;
  esac
done
