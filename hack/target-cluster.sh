# shellcheck shell=bash
# shellcheck disable=SC2034 # read by the scripts that source this
# Which cluster demo, tests and benchmarks work on, and how images get there.
# Sourced by them after lib.sh. The demo takes any of these, tests and benchmarks
# the last one only:
#
#   given   KUBECONFIG=… and/or CONTEXT=… on make's command line
#   kind    a Docker daemon answers (untested where this was written)
#   local   else: the one-node cluster of hack/cluster
#
# Never the current context, which might be that of a production cluster. That is why make
# passes a KUBECONFIG on only when it was on its command line.

SKYWARD_KIND=${SKYWARD_KIND:-skyward} # name of the kind cluster

# choose_cluster: sets CLUSTER to given, kind or local. CLUSTER=local on the
# command line insists.
choose_cluster() {
  if [ -n "${SKYWARD_KUBECONFIG:-}${SKYWARD_CONTEXT:-}" ]; then
    CLUSTER=given
  elif [ -z "${CLUSTER:-}" ]; then
    CLUSTER=local
    if command -v docker >/dev/null && timeout 10 docker info >/dev/null 2>&1; then CLUSTER=kind; fi
  elif [ "$CLUSTER" != kind ] && [ "$CLUSTER" != local ]; then
    die "CLUSTER is '$CLUSTER'; it can be local or kind"
  fi
  if [ -n "${SKYWARD_AMBIENT_KUBECONFIG:-}" ] && [ "$CLUSTER" != given ]; then
    say "  KUBECONFIG is set in your environment, and not used: to work on that cluster, say 'make demo KUBECONFIG=$SKYWARD_AMBIENT_KUBECONFIG'."
  fi
}

# choose_own_cluster: for tests and benchmarks. They install and remove Skyward, with the
# custom resource definitions and all that is of them, and look at processes and files of
# the node: so not on a cluster in use by others, and on none whose node is a container.
choose_own_cluster() {
  [ -z "${SKYWARD_KUBECONFIG:-}${SKYWARD_CONTEXT:-}" ] ||
    die "tests and benchmarks would take Skyward away from that cluster, with every Pool and Task on it: leave KUBECONFIG= and CONTEXT= out, and they use the local cluster"
  CLUSTER=${CLUSTER:-local}
  [ "$CLUSTER" = local ] ||
    die "CLUSTER is '$CLUSTER'; tests and benchmarks look at processes and files of the node, so it can only be local"
  # Its Pools would go, and with them machines that somebody pays for, and their results.
  if [ "$(cat "${SKYWARD_DEMO:-$SKYWARD_CACHE/demo}/cluster" 2>/dev/null)" = local ] &&
    [[ $("$SKYWARD_ROOT/hack/cluster/cluster.sh" status 2>/dev/null) == *" runs (pid "* ]]; then
    die "a demo is up on the local cluster, and tests and benchmarks would take it away with everything on it: run 'make demo-down' first"
  fi
}

# describe_cluster: for headlines
describe_cluster() {
  case $CLUSTER in
    given) printf 'the cluster you named' ;;
    kind) printf "kind cluster '%s'" "$SKYWARD_KIND" ;;
    local) printf 'the local one-node cluster' ;;
  esac
}

# get_cluster FILE: make it exist, and leave in FILE a kubeconfig with it and
# nothing else. Sets CLUSTER_IS_NEW to yes when it had to be made.
get_cluster() {
  local file=$1
  CLUSTER_IS_NEW=no
  mkdir -p "$(dirname "$file")"
  case $CLUSTER in
    given)
      local from=()
      [ -z "${SKYWARD_KUBECONFIG:-}" ] || from+=(--kubeconfig "$SKYWARD_KUBECONFIG")
      [ -z "${SKYWARD_KUBECONFIG:-}" ] || [ -r "$SKYWARD_KUBECONFIG" ] || die "there is no kubeconfig at $SKYWARD_KUBECONFIG"
      [ -z "${SKYWARD_CONTEXT:-}" ] || from+=(--context "$SKYWARD_CONTEXT")
      (umask 077 && KUBECONFIG=${SKYWARD_AMBIENT_KUBECONFIG:-} "$SKYWARD_BIN_DIR/kubectl" "${from[@]}" config view --minify --flatten >"$file.new") ||
        die "kubectl does not find that cluster: check KUBECONFIG= and CONTEXT= ('kubectl config get-contexts' lists them)"
      mv "$file.new" "$file"
      ;;
    kind)
      say "  Docker answers, so this uses kind (a path that its authors could not try; CLUSTER=local takes the other)."
      "$SKYWARD_ROOT/hack/tools.sh" kind || return
      if ! "$SKYWARD_BIN_DIR/kind" get clusters 2>/dev/null | grep -qx "$SKYWARD_KIND"; then
        quietly "create kind cluster $SKYWARD_KIND" "$SKYWARD_BIN_DIR/kind" create cluster --name "$SKYWARD_KIND" --kubeconfig "$file" --wait 120s || return
        CLUSTER_IS_NEW=yes
      fi
      "$SKYWARD_BIN_DIR/kind" export kubeconfig --name "$SKYWARD_KIND" --kubeconfig "$file" >/dev/null 2>&1
      ;;
    local)
      "$SKYWARD_ROOT/hack/cluster/cluster.sh" status >/dev/null 2>&1 || CLUSTER_IS_NEW=yes
      "$SKYWARD_ROOT/hack/cluster/cluster.sh" up || return
      (umask 077 && cp "$("$SKYWARD_ROOT/hack/cluster/cluster.sh" kubeconfig)" "$file")
      ;;
  esac
  "$SKYWARD_BIN_DIR/kubectl" --kubeconfig "$file" --request-timeout 15s version >/dev/null 2>"$file.error" || {
    cat "$file.error" >&2
    die "the cluster does not answer"
  }
  rm -f "$file.error"
}

# cluster_uid KUBECONFIG: the unique identity of a cluster.
cluster_uid() {
  "$SKYWARD_BIN_DIR/kubectl" --kubeconfig "$1" --request-timeout 15s get namespace kube-system -o 'jsonpath={.metadata.uid}' ||
    die "the cluster does not say which one it is"
}

# images_can_arrive: says in one line what is missing when they cannot.
images_can_arrive() {
  [ "$CLUSTER" != given ] || [ -n "${REGISTRY:-}" ] ||
    die "a cluster of your own can only fetch images from a registry: add REGISTRY=<host>/<path> that you are logged in to and it can read"
}

# publish_images OPERATOR: put both images where the cluster finds them. Sets
# OPERATOR_IMAGE and NODE_IMAGE to the names that Pods must use.
publish_images() {
  OPERATOR_IMAGE=$1
  NODE_IMAGE=$(image_name "$SKYWARD_IMAGES/node.tar")
  case $CLUSTER in
    local) "$SKYWARD_ROOT/hack/cluster/cluster.sh" load "$SKYWARD_IMAGES/operator.tar" "$SKYWARD_IMAGES/node.tar" || return ;;
    kind)
      local name
      for name in operator node; do
        quietly "load the $name image into kind" "$SKYWARD_BIN_DIR/kind" load image-archive "$SKYWARD_IMAGES/$name.tar" --name "$SKYWARD_KIND" || return
      done
      ;;
    given)
      local to
      to=$REGISTRY/operator:${OPERATOR_IMAGE##*:}
      quietly "push $to" "$SKYWARD_BIN_DIR/crane" push "$SKYWARD_IMAGES/operator.tar" "$to" || return
      OPERATOR_IMAGE=$to
      to=$REGISTRY/node:${NODE_IMAGE##*:}
      quietly "push $to" "$SKYWARD_BIN_DIR/crane" push "$SKYWARD_IMAGES/node.tar" "$to" || return
      NODE_IMAGE=$to
      ;;
  esac
}

# image_name ARCHIVE: the name whose tag is made from the content.
image_name() {
  tar -xOf "$1" manifest.json | python3 -c '
import json, sys
print([tag for tag in json.load(sys.stdin)[0]["RepoTags"] if not tag.endswith(":dev")][-1])'
}
