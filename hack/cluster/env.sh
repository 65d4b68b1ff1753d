# shellcheck shell=bash
# shellcheck disable=SC2034 # read by the scripts that source this
# The names and addresses of the local cluster. Everything it leaves on a host
# is named here, so that `down` and leftovers.sh know what is ours.

. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

# SKYWARD_APART=1 means the second cluster of this machine, for stories that take the operator away. It lives in a network
# namespace, so its ports, interfaces and rules are its own. What a network namespace does not keep apart has another name
# there, and its addresses differ, since kubectl keeps what it knows of a server by its address.
APART=${SKYWARD_APART:+-apart}
STATE=$SKYWARD_STATE
NODE=skyward-local
BRIDGE=skyward0
NETWORK=skyward$APART-pods     # name of the CNI network, part of the names of its iptables rules
if [ -n "$APART" ]; then ADDRESSES=(10.215.0 10.216.0); else ADDRESSES=(10.213.0 10.214.0); fi
POD_CIDR=${SKYWARD_POD_CIDR:-${ADDRESSES[0]}.0/20}
GATEWAY=${SKYWARD_GATEWAY:-${ADDRESSES[0]}.1} # of Pods; also the address of API server, kubelet and DNS
SERVICE_CIDR=${SKYWARD_SERVICE_CIDR:-${ADDRESSES[1]}.0/16}
SERVICE_API=${SKYWARD_SERVICE_API:-${ADDRESSES[1]}.1} # the first address of SERVICE_CIDR
CGROUP=skyward$APART           # parent of every Pod's cgroup
CONTAINERD=$STATE/run/containerd.sock
KUBECONFIG_ADMIN=$STATE/kubeconfig
# Kernel settings as they were, and the boot of the machine in which that was. Outside the
# state: they must outlive `down`, and a crash before it. The second cluster keeps none: settings of a
# network namespace go with it, and all others are the first cluster's.
SYSCTLS=$SKYWARD_CACHE/sysctls$APART.before

# --- traces of the local cluster ---------------------------------------------

# our_cgroups: the folders, one per hierarchy of cgroup v1 or the one of v2.
our_cgroups() {
  local mount
  while read -r mount; do
    if [ -d "$mount/$CGROUP" ]; then printf '%s\n' "$mount/$CGROUP"; fi
  done < <(awk '$3 ~ /^cgroup2?$/ {print $2}' /proc/mounts)
}

# our_mounts: deepest first, so that each can be unmounted in turn. A path with
# a space arrives as \040 and is turned back.
our_mounts() {
  awk -v state="$STATE/" '{
    path = $5; gsub(/\\040/, " ", path)
    if (index(path, state) == 1) print path
  }' /proc/self/mountinfo | LC_ALL=C sort -r
}

# our_processes: everything that was started for this cluster, by the state
# folder that its command line names. Containers are found by their cgroup.
our_processes() {
  local dir pid words
  for dir in /proc/[0-9]*; do
    pid=${dir#/proc/}
    [ "$pid" != $$ ] || continue
    case $(readlink "$dir/exe" 2>/dev/null) in
      "$SKYWARD_BIN_DIR"/components* | "$SKYWARD_BIN_DIR"/dns* | */containerd* | */runc*) ;;
      *) continue ;;
    esac
    # kubectl is part of the same program, but belongs to the user who runs it.
    words=$({ tr '\0' '\n' <"$dir/cmdline"; } 2>/dev/null) || continue
    if [[ $words == *"$STATE/"* && ${words%%$'\n'*} != *kubectl ]]; then printf '%s\n' "$pid"; fi
  done
}

# other_kubernetes: processes of another Kubernetes that shares this machine's network; one in
# containers, such as kind's, has a network of its own.
other_kubernetes() {
  local dir name ours candidates=()
  for dir in /proc/[0-9]*; do
    read -r name 2>/dev/null <"$dir/comm" || continue
    case $name in kubelet | kube-proxy | kubelite | k0s | k3s-server | k3s-agent) candidates+=("$dir") ;; esac
  done
  ((${#candidates[@]})) || return 0
  ours=" $(our_processes | tr '\n' ' ') "
  for dir in "${candidates[@]}"; do
    [[ $ours != *" ${dir#/proc/} "* ]] || continue
    # A process of ours that is just ending has neither program nor arguments any more.
    [ -n "$({ tr -d '\0' <"$dir/cmdline"; } 2>/dev/null)" ] || continue
    [ "$(readlink "$dir/ns/net" 2>/dev/null)" = "$(readlink /proc/self/ns/net)" ] || continue
    printf '%s (pid %s)\n' "$(cat "$dir/comm" 2>/dev/null)" "${dir#/proc/}"
  done
}

# ours_alone: whether what has no name of ours is ours all the same: our cluster ran since this
# machine started, and no other Kubernetes does now.
ours_alone() {
  grep -qxF "kernel.random.boot_id $(cat /proc/sys/kernel/random/boot_id)" "$SYSCTLS" 2>/dev/null && [ -z "$(other_kubernetes)" ]
}

# our_files: traces at places that these programs cannot be told to leave alone.
our_files() {
  local id
  # containerd's library keeps each Pod's addresses here, by sandbox.
  {
    find "$STATE"/run/containerd/io.containerd.grpc.v1.cri/sandboxes -mindepth 1 -maxdepth 1 -printf '%f\n' 2>/dev/null || true
    find /var/lib/cni/results -name "$NETWORK-*-eth0" -printf '%f\n' 2>/dev/null | sed "s/^$NETWORK-//; s/-eth0\$//" || true
  } | sort -u | while read -r id; do
    for id in "/var/lib/cni/results/$NETWORK-$id-eth0" "/var/lib/cni/results/cni-loopback-$id-lo"; do
      if [ -e "$id" ]; then printf '%s\n' "$id"; fi
    done
  done
  find /var/log/containers -maxdepth 1 -type l -lname "$STATE/*" 2>/dev/null || true
  # Where the shims of containers that are on record listen.
  find "$STATE/run/containerd" -maxdepth 4 -name address -exec sed 's/$/\n/; s#^unix://##' {} + 2>/dev/null | grep . || true
  # The kubelet's, whatever its --root-dir.
  if [ -e "$SYSCTLS" ] && [ -z "$(other_kubernetes)" ]; then
    find /var/lib/kubelet/device-plugins -mindepth 1 -maxdepth 1 2>/dev/null || true
  fi
}

# our_rules TOOL: what removes our rules and chains, a line each:
# "TABLE -D CHAIN NUMBER" for rules in chains that are not ours (last first, so
# that the numbers stay true), then "TABLE -F CHAIN", then "TABLE -X CHAIN".
# KUBE-* chains are the kubelet's and kube-proxy's, so those of another Kubernetes
# where ours did not run; of the CNI-* chains, which other programs make too, ours
# are the chains whose rule carries our network's name.
our_rules() {
  local table kube=
  if ours_alone; then kube=1; fi
  for table in nat filter mangle; do
    { "$1" -w 5 -t "$table" -S 2>/dev/null || true; } | awk -v table="$table" -v network="$NETWORK" -v kube="$kube" '
      kube && $1 == "-N" && $2 ~ /^KUBE-/ { mine[$2] = 1 }
      $1 == "-A" {
        number[$2]++; r++; from[r] = $2; at[r] = number[$2]; to[r] = ""
        for (i = 3; i < NF; i++) if ($i == "-j" || $i == "-g") to[r] = $(i + 1)
        ours[r] = index($0, network) > 0
        if (ours[r] && to[r] ~ /^CNI-/) mine[to[r]] = 1
      }
      END {
        for (; r > 0; r--) if (!(from[r] in mine) && (ours[r] || (to[r] in mine))) print table, "-D", from[r], at[r]
        for (c in mine) print table, "-F", c
        for (c in mine) print table, "-X", c
      }'
  done
}
