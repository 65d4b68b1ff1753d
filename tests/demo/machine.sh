#!/usr/bin/env bash
# What `make` asks of a machine, and what it leaves alone there: other people's packages,
# firewall rules and clusters. Needs none of them: what it would meet is played.
# shellcheck disable=SC2015 # what stands behind || never returns
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

WORK=$(mktemp -d)
other=
finish() {
  [ -z "$other" ] || kill "$other" 2>/dev/null || true
  ! mountpoint -q "$WORK/root/proc" || umount "$WORK/root/proc"
  rm -rf --one-file-system "$WORK"
}
trap finish EXIT
bad() {
  printf 'FAILED  %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf '%s\n' "$2" | tail -n 20 | sed 's/^/        /' >&2
  exit 1
}

# A cache of its own, which takes this clone for the one that was built last: nothing is touched.
unset MAKEFLAGS MAKELEVEL MFLAGS PROFILE CLUSTER REGISTRY SKYWARD_STATE SKYWARD_LOG_DIR \
  SKYWARD_KUBECONFIG SKYWARD_CONTEXT
export SKYWARD_CACHE=$WORK/cache CARGO_TARGET_DIR=$WORK/target
mkdir -p "$WORK/fake" "$CARGO_TARGET_DIR"
pwd >"$CARGO_TARGET_DIR/.checkout"

# fake NAME TEXT: a program that is found first.
fake() {
  printf '#!/bin/sh\n%s\n' "$2" >"$WORK/fake/$1"
  chmod +x "$WORK/fake/$1"
}
faked=$WORK/fake:$PATH

# --- a Rust without a toolchain ----------------------------------------------

fake cargo 'exit 1'
if said=$(PATH=$faked hack/check-tools.sh --compiler 2>&1); then bad "a cargo that says nothing is missed" "$said"; fi
[[ $said == "cargo is of an unknown version"*rustup* && $said != *$'\n'* ]] || bad "one line names it and the remedy" "$said"
for target in build generate images; do
  if said=$(PATH=$faked timeout 60 make -s "$target" 2>&1); then bad "make $target misses it" "$said"; fi
  [[ $said == "cargo is of an unknown version"* ]] || bad "make $target says so first" "$said"
done
rm "$WORK/fake/cargo"

# --- a disk without a tenth that is free --------------------------------------

fake df 'echo "Use%"; echo " 91%"'
if said=$(PATH=$faked hack/check-tools.sh 2>&1); then bad "a full disk is seen before anything is built" "$said"; fi
[[ $said == "the disk of $WORK/cache is 91 % full"*SKYWARD_CACHE* && $said != *$'\n'* ]] || bad "one line names it and the remedy" "$said"
said=$(PATH=$faked hack/check-tools.sh --no-root 2>&1) || bad "unit tests need no such disk" "$said"
rm "$WORK/fake/df"

# --- a root file system whose making was interrupted ---------------------------

mkdir -p "$WORK/root/proc" "$WORK/root/etc"
mount -t proc proc "$WORK/root/proc"
# shellcheck disable=SC2016 # the other bash has it
said=$(bash -c '. hack/lib.sh && remove_root "$1"' _ "$WORK/root" 2>&1) || bad "what is left of a node image can be removed" "$said"
[ ! -e "$WORK/root" ] || bad "nothing of it stays"

# --- a cluster that somebody has ---------------------------------------------

for target in test e2e soak bench; do
  if said=$(timeout 60 make -s "$target" KUBECONFIG="$WORK/theirs" 2>&1); then bad "make $target misses a cluster of its own" "$said"; fi
  [[ $said == *"would take Skyward away from that cluster"* && $said != *===* ]] || bad "make $target says first that it is not for such a cluster" "$said"
  if said=$(timeout 60 make -s "$target" CLUSTER=kind 2>&1); then bad "make $target needs the local cluster" "$said"; fi
  [[ $said == *"it can only be local"* ]] || bad "make $target says that it needs the local cluster" "$said"
done

# A demo is up: a part of the local cluster runs, played by this script.
mkdir -p "$SKYWARD_CACHE/demo" "$SKYWARD_CACHE/cluster/pids"
echo local >"$SKYWARD_CACHE/demo/cluster"
read -ra stat </proc/$$/stat
printf '%s %s@%s\n' $$ "${stat[21]}" "$(cat /proc/sys/kernel/random/boot_id)" >"$SKYWARD_CACHE/cluster/pids/etcd"
for target in test e2e soak bench; do
  if said=$(timeout 60 make -s "$target" 2>&1); then bad "make $target leaves a demo alone" "$said"; fi
  [[ $said == *"run 'make demo-down' first"* && $said != *===* ]] || bad "make $target says first that a demo is up" "$said"
done
rm -r "$SKYWARD_CACHE/demo" "$SKYWARD_CACHE/cluster"

if said=$(timeout 60 make -s demo CLUSTER=given REGISTRY=127.0.0.1:1/x 2>&1); then bad "a cluster is given by name, or not at all" "$said"; fi
[[ $said == *"it can be local or kind"* ]] || bad "the cluster that happens to be current is not a given one" "$said"

# --- packages ----------------------------------------------------------------

# shellcheck disable=SC2016 # it is the program that expands these
fake apt-get 'echo "$*" >>"$ASKED"; [ "$1" != "${APT_FAILS:-}" ]'
# installed FAILS: whether `debian` says that all went well, where bash does not stop at errors.
installed() {
  # shellcheck disable=SC2030,SC2031 # meant for this command alone
  (
    export PATH=$faked ASKED=$WORK/asked APT_FAILS=$1
    . hack/lib.sh
    if debian skyward-has-no-such-package; then exit 0; else exit 1; fi
  ) >"$WORK/out" 2>&1
}
installed "" || bad "a package is installed" "$(cat "$WORK/out")"
said=$(grep '^install ' "$WORK/asked")
[[ $said == *" --no-remove "* ]] || bad "no package goes for another" "$said"
if installed install; then bad "a package that cannot be installed is told" "$(cat "$WORK/out")"; fi

# --- firewall rules, and another Kubernetes ----------------------------------

fake iptables 'case "$*" in
*"-t nat -S") cat <<RULES
-P PREROUTING ACCEPT
-N CNI-ours
-N CNI-theirs
-N KUBE-SERVICES
-A PREROUTING -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "name: \"skyward-pods\"" -j CNI-ours
-A POSTROUTING -m comment --comment "name: \"other\"" -j CNI-theirs
RULES
esac'
# in_env COMMAND...: with what hack/cluster shares; $others stands for other_kubernetes.
others=
in_env() {
  (
    . hack/cluster/env.sh
    # shellcheck disable=SC2317 # called by what is tested
    other_kubernetes() { printf '%s' "$others"; }
    "$@"
  )
}
# ours WHAT EXPECTED: the rules that would go.
ours() {
  local said
  said=$(in_env our_rules "$WORK/fake/iptables" | grep -v -e ' -F ' -e ' -X ' | tr '\n' ';')
  [ "$said" = "$2" ] || bad "$1" "$said"
}
record=$WORK/cache/sysctls.before
boot="kernel.random.boot_id $(cat /proc/sys/kernel/random/boot_id)"
cni='nat -D POSTROUTING 1;'
kube='nat -D PREROUTING 1;'
ours "where no cluster of ours ran, KUBE-* chains are somebody else's" "$cni"
echo "$boot" >"$record"
ours "where one did, they are ours" "$cni$kube"
others="kubelet (pid 1)"
ours "they are not while another Kubernetes runs" "$cni"
if in_env ours_alone; then bad "its kernel settings stay as well"; fi
others=
echo "kernel.random.boot_id of-last-week" >"$record"
ours "nor are they after the machine was started again" "$cni"

# A process counts as somebody else's Kubernetes by its name, and by the network it is in.
cp "$(command -v sleep)" "$WORK/fake/kubelet"
"$WORK/fake/kubelet" 60 &
other=$!
for _ in $(seq 100); do
  [ "$(cat "/proc/$other/comm")" != kubelet ] || break
  sleep 0.05
done
said=$(. hack/cluster/env.sh && other_kubernetes)
[[ $said == *"kubelet (pid $other)"* ]] || bad "another Kubernetes is seen" "$said"
if [ "$(id -u)" = 0 ] && said=$(timeout 10 hack/cluster/cluster.sh up 2>&1); then bad "the local cluster does not start beside it" "$said"; fi
[ "$(id -u)" != 0 ] || [[ $said == *"another Kubernetes runs on this machine: "* ]] || bad "one line says that there is another" "$said"
kill "$other"
wait "$other" 2>/dev/null || true
other=

# --- the end of a demo -------------------------------------------------------

watch() { timeout 30 hack/demo-watch.py "$WORK/fake/kubectl" none none 1 2>&1; }
task() { printf '{"kind": "Task", "metadata": {"name": "%s"}, "spec": {}, "status": {"phase": "%s"}}' "$1" "$2"; }
fake kubectl "cat '$WORK/tasks'"
printf '{"items": [%s, %s]}' "$(task good Succeeded)" "$(task held Suspended)" >"$WORK/tasks"
said=$(watch) || bad "a demo whose samples succeed is a success" "$said"
printf '{"items": [%s, %s]}' "$(task good Succeeded)" "$(task lost Failed)" >"$WORK/tasks"
if said=$(watch); then bad "a demo whose sample failed is none" "$said"; fi
[[ $said == *"failed: lost"* ]] || bad "it says which failed" "$said"

printf '  this machine keeps what it has\n'
