#!/usr/bin/env bash
# A real Kubernetes cluster of one node on this machine, without Docker, systemd
# or a container registry: API server, etcd, controller manager, scheduler,
# kubelet, kube-proxy, containerd and DNS, each an ordinary process.
#
#   cluster.sh up                 start it (nothing happens when it runs already)
#   cluster.sh down               stop it and remove every trace, data included
#   cluster.sh status             what runs
#   cluster.sh kubeconfig         print the path of the administrator's kubeconfig
#   cluster.sh load IMAGE.tar...  import image archives
#   cluster.sh logs               the end of every component's log
#   cluster.sh snapshot FOLDER    copy etcd's data there, as a backup would
#   cluster.sh restore FOLDER     go back to that copy; later changes are lost
#   cluster.sh restart COMPONENT  kill it where it still runs, and start it again as it was
#   cluster.sh enter COMMAND...   run a command in the network of the cluster, which the second one has to itself
#
# With SKYWARD_APART=1 all of this is done to a second cluster beside the first one (env.sh); `down` of the first takes both away.
#
# It is a cluster for tests: etcd does not sync to disk, no process is restarted
# when it dies, and `down` deletes everything.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/env.sh"

PATH=$SKYWARD_BIN_DIR:$PATH:/usr/sbin:/sbin
LOGS=$STATE/log
PIDS=$STATE/pids
# In the order in which they start; they stop in the reverse.
COMPONENTS=(containerd etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy dns kubelet)

kubectl() { "$SKYWARD_BIN_DIR/kubectl" --kubeconfig "$KUBECONFIG_ADMIN" "$@"; }
ctr() { command ctr --address "$CONTAINERD" --namespace k8s.io "$@"; }

# --- processes ---------------------------------------------------------------

# identity PID: when the process began, in this boot of the machine. A pid alone
# may belong to another process since it was recorded.
identity() {
  local stat fields
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  # The name, in brackets, may contain spaces; the 20th field after it counts.
  read -ra fields <<<"${stat##*) }"
  [ "${fields[0]}" != Z ] || return 1
  printf '%s@%s\n' "${fields[19]}" "$(cat /proc/sys/kernel/random/boot_id)"
}

# alive NAME: prints the pid of a component that runs.
alive() {
  local pid born
  read -r pid born 2>/dev/null <"$PIDS/$1" || return 1
  [ "$(identity "$pid")" = "$born" ] || return 1
  printf '%s\n' "$pid"
}

# start NAME COMMAND...: fully detached. No descriptor of the caller's is kept
# (CI waits until its pipe closes, and make's job server is a pipe too), nor its
# environment (a proxy or KUBECONFIG set for something else must not matter), but GOGC (../lib.sh), and how many processors
# a component may use at a time, where COMPONENT_PROCESSORS says that (../test.sh).
start() {
  local name=$1 pid
  shift
  (
    local fd
    for fd in /proc/self/fd/*; do
      fd=${fd##*/}
      if ((fd > 2)); then eval "exec $fd>&-" 2>/dev/null || true; fi
    done
    cd /
    exec setsid env -i PATH="$PATH" HOME="$STATE" LANG=C.UTF-8 GOGC="$GOGC" ${COMPONENT_PROCESSORS:+GOMAXPROCS="$COMPONENT_PROCESSORS"} "$@"
  ) </dev/null >>"$LOGS/$name.log" 2>&1 &
  pid=$!
  # The second line is for restart.
  printf '%s %s\n%s\n' "$pid" "$(identity "$pid")" "${*@Q}" >"$PIDS/$name"
}

# restart NAME: by the command that it was started with. Whatever it needs must run.
restart() {
  local name=${1:-} command
  [[ " ${COMPONENTS[*]} " == *" $name "* ]] || die "\"$name\" is no component; name one of: ${COMPONENTS[*]}"
  command=$(sed -n 2p "$PIDS/$name" 2>/dev/null) || true
  [ -n "$command" ] || die "$name was never started here; start the cluster with 'make cluster-up'"
  stop 0 "$name"
  while alive "$name" >/dev/null; do sleep 0.05; done
  eval "start $name $command"
}

# stop SECONDS NAME...: send SIGTERM, wait that long for all of them, then SIGKILL.
stop() {
  local name pid deadline=$((SECONDS + $1)) left=()
  shift
  for name in "$@"; do
    if pid=$(alive "$name"); then
      kill -TERM "$pid" 2>/dev/null || true
      left+=("$name")
    fi
  done
  while ((${#left[@]} && SECONDS < deadline)); do
    sleep 0.1
    local still=()
    for name in "${left[@]}"; do if alive "$name" >/dev/null; then still+=("$name"); fi; done
    left=("${still[@]}")
  done
  for name in "${left[@]}"; do
    if pid=$(alive "$name"); then kill -KILL "$pid" 2>/dev/null || true; fi
  done
}

# await SECONDS WHAT COMMAND...: until the command succeeds; says so every five
# seconds, and gives up early when a component has died.
await() {
  local limit=$1 what=$2 begun=$SECONDS told=$SECONDS name
  shift 2
  until "$@" >/dev/null 2>&1; do
    for name in "${STARTED[@]}"; do
      alive "$name" >/dev/null || fail "$name ended while waiting for $what" "$name"
    done
    ((SECONDS - begun < limit)) || fail "$what did not happen within $(elapsed "$limit")" "${STARTED[@]}"
    if ((SECONDS - told >= 5)); then
      told=$SECONDS
      say "  … still waiting for $what ($(elapsed $((SECONDS - begun))))"
    fi
    sleep 0.1
  done
}

# fail MESSAGE COMPONENT...: with the end of the logs that explain it, kept where
# the clean-up does not reach them.
fail() {
  local message=$1 name kept
  shift
  kept=$SKYWARD_LOG_DIR/cluster-$(date +%Y%m%d-%H%M%S)
  cp -r "$LOGS" "$kept" 2>/dev/null || true
  warn "error: $message."
  for name in "$@"; do
    warn "--- the end of $kept/$name.log"
    tail -n 8 "$LOGS/$name.log" 2>/dev/null | cut -c1-400 | sed 's/^/    /' >&2 || true
  done
  warn "Remove what was started with 'hack/cluster/cluster.sh down', then try again; the logs stay in $kept."
  exit 1
}

# --- up ----------------------------------------------------------------------

# packages: the packages that this machine needs. A machine that has Docker's containerd and runc, or
# the other one of Debian's busyboxes, keeps them: each excludes the package of the list.
packages() {
  local package
  for package in "${PACKAGES[@]}"; do
    case $package in
      containerd | runc | busybox-static) ! command -v "${package%-static}" >/dev/null || continue ;;
    esac
    printf '%s\n' "$package"
  done
}
PACKAGES=(containerd runc containernetworking-plugins conntrack iptables busybox-static debootstrap iproute2 procps curl openssl ca-certificates)

# remember SETTING VALUE: set a kernel setting, and record its earlier value, once.
remember() {
  local file=/proc/sys/${1//.//}
  [ -e "$file" ] || return 0
  [ -z "$APART" ] || [[ $1 == net.* ]] || return 0
  [ -n "$APART" ] || grep -q "^$1 " "$SYSCTLS" 2>/dev/null || printf '%s %s\n' "$1" "$(cat "$file")" >>"$SYSCTLS"
  # An empty value: a component will set it, only the earlier value is recorded.
  if [ -n "${2:-}" ]; then echo "$2" >"$file" 2>/dev/null || warn "note: could not set $1 to $2"; fi
}

settings() {
  # Rules and settings do not outlive the machine's start, this record does.
  remember kernel.random.boot_id
  remember net.ipv4.ip_forward 1
  # A reply that stays on the bridge must pass the rules that undo the Service's
  # address, too.
  remember net.bridge.bridge-nf-call-iptables 1
  # Two file watches per Pod: the default of 128 ends at sixty Pods.
  remember fs.inotify.max_user_instances 8192
  remember net.ipv4.conf.all.route_localnet # kube-proxy
  local name
  for name in vm.overcommit_memory kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes \
    net.netfilter.nf_conntrack_tcp_be_liberal net.netfilter.nf_conntrack_tcp_timeout_established \
    net.netfilter.nf_conntrack_tcp_timeout_close_wait; do
    remember $name # kubelet and kube-proxy
  done
}

# Not by /sys, which is mounted for one network and shows its interfaces alone.
has_bridge() { ip link show dev "$BRIDGE" >/dev/null 2>&1; }
network() {
  ip link set lo up # down in a new network
  if ! has_bridge; then
    # A fixed hardware address: else the bridge takes the lowest of its ports',
    # which changes as Pods come and go, and Pods lose their gateway for a while.
    ip link add "$BRIDGE" address 0a:58:0a:d5:00:01 type bridge
  fi
  ip addr replace "$GATEWAY/${POD_CIDR#*/}" dev "$BRIDGE"
  ip link set "$BRIDGE" up
  # Service addresses exist only in rules; a machine without a default route
  # would not even send to them.
  ip route replace "$SERVICE_CIDR" dev "$BRIDGE"
  # Docker and firewalls leave FORWARD closed.
  if iptables -w 5 -S FORWARD | grep -q -- '-P FORWARD DROP'; then
    iptables -w 5 -I FORWARD -i "$BRIDGE" -m comment --comment "$NETWORK" -j ACCEPT
    iptables -w 5 -I FORWARD -o "$BRIDGE" -m comment --comment "$NETWORK" -j ACCEPT
  fi
  # One rule for all Pods: the plugin of the bridge would call iptables several times for each.
  local masquerade=(POSTROUTING -s "$POD_CIDR" ! -o "$BRIDGE" -m comment --comment "$NETWORK" -j MASQUERADE)
  iptables -w 5 -t nat -C "${masquerade[@]}" 2>/dev/null || iptables -w 5 -t nat -A "${masquerade[@]}"
}

cgroups() {
  local kind mount
  while read -r kind mount; do
    mkdir -p "$mount/$CGROUP" 2>/dev/null || continue
    if [ "$kind" = cgroup ] && [ -e "$mount/cpuset.cpus" ]; then
      # A new cpuset is empty, and no process can enter it.
      cat "$mount/cpuset.cpus" >"$mount/$CGROUP/cpuset.cpus"
      cat "$mount/cpuset.mems" >"$mount/$CGROUP/cpuset.mems"
    fi
  done < <(awk '$3 ~ /^cgroup2?$/ {print $3, $2}' /proc/mounts)
}

configure() {
  local snapshotter=overlayfs
  mkdir -p "$STATE"/{run,etc,log,pids,data,cni,kubelet} "$STATE/etc/cni"
  chmod 700 "$STATE"
  "$HERE/pki.sh"

  # An overlay on an overlay (this machine being a container itself) is refused.
  mkdir -p "$STATE"/data/probe/{lower,upper,work,merged}
  if mount -t overlay overlay -o "lowerdir=$STATE/data/probe/lower,upperdir=$STATE/data/probe/upper,workdir=$STATE/data/probe/work" \
    "$STATE/data/probe/merged" 2>/dev/null; then
    umount "$STATE/data/probe/merged"
  else
    snapshotter=native
  fi
  rm -rf "$STATE/data/probe"

  # restrict_oom_score_adj: where a container may not lower its score, every
  # sandbox would fail with "can't get final child's PID from pipe: EOF".
  # netns_mounts_under_state_dir: so that no name space of ours lies in /run/netns.
  cat >"$STATE/etc/containerd.toml" <<TOML
version = 2
root = "$STATE/data/containerd"
state = "$STATE/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.opt",
]
[grpc]
  address = "$CONTAINERD"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "skyward.dev/pause:dev"
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  disable_tcp_service = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$STATE/etc/cni"
    max_conf_num = 1
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$snapshotter"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "$STATE/run/runc"
        SystemdCgroup = false
TOML

  # No portmap plugin: its chains are shared with other programs' networks, and
  # nothing here needs a hostPort.
  cat >"$STATE/etc/cni/10-skyward.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "$NETWORK", "plugins": [
  {"type": "bridge", "bridge": "$BRIDGE", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$STATE/cni", "ranges": [[{"subnet": "$POD_CIDR", "gateway": "$GATEWAY"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}}]}
JSON

  # podPidsLimit: a fork bomb in a Pod stays in the Pod. Garbage collection of
  # images is off: there is no registry to fetch a collected one from again.
  # failCgroupV1: 1.34 still runs on cgroup v1. crashLoopBackOff: tests that
  # kill the controller again and again must not wait five minutes for it.
  cat >"$STATE/etc/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $GATEWAY
healthzBindAddress: 127.0.0.1
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $STATE/pki/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: $STATE/pki/kubelet-server.crt
tlsPrivateKeyFile: $STATE/pki/kubelet-server.key
containerRuntimeEndpoint: unix://$CONTAINERD
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: true
clusterDNS: [$GATEWAY]
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
podLogsDir: $STATE/log/pods
volumePluginDir: $STATE/kubelet/volume-plugins
maxPods: 250
podPidsLimit: 1024
featureGates: {KubeletCrashLoopBackOffMax: true}
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
serializeImagePulls: false
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
imageMinimumGCAge: 8760h
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
kubeAPIQPS: 200
kubeAPIBurst: 400
registryPullQPS: 0
eventRecordQPS: 0
syncFrequency: 10s
fileCheckFrequency: 60s
nodeStatusUpdateFrequency: 5s
logging: {flushFrequency: 5s}
YAML

  # Pods ask here; names of no Service are passed on to the host's own resolver,
  # which Pods could not reach themselves when it listens on 127.0.0.1.
  cat >"$STATE/etc/Corefile" <<COREFILE
.:53 {
  bind $GATEWAY
  errors
  ready 127.0.0.1:8181
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    kubeconfig $STATE/pki/dns.kubeconfig skyward
    pods insecure
    fallthrough in-addr.arpa ip6.arpa
    ttl 2
  }
  forward . /etc/resolv.conf
  cache 30
}
COREFILE

  # For results: the operator's user may write here, which on a folder that the
  # kubelet makes it may not.
  install -d -m 0770 -o 65532 -g 65532 "$STATE/store"

  # What a Pod of a test needs to download packages as this machine does. Only
  # for tests: the product never looks here.
  cp /etc/ssl/certs/ca-certificates.crt "$STATE/ca-bundle.crt"
  env | grep '^PIP_' | grep -v '^PIP_CERT=' >"$STATE/pip.env" || true
  cat >"$STATE/README" <<TXT
The state of Skyward's local test cluster; 'make cluster-down' removes it.
  kubeconfig      of the administrator
  log/            of every component, and of Pods
  ca-bundle.crt   the certificate authorities this machine trusts. A Pod that
                  downloads packages through the same proxies must trust them:
                  tests put this file into a ConfigMap and name that.
  store/          a folder for the operator's result store, as a hostPath
  pip.env         this machine's PIP_* settings, for the same Pods
TXT
}

# Its shims, of which each Pod has one, inherit its environment: these may use no more memory than they need.
boot_containerd() { start containerd env GOGC=100 containerd --config "$STATE/etc/containerd.toml" --log-level warn; }

boot_control_plane() {
  # unsafe-no-fsync: the data is thrown away at `down` anyway, and a slow disk
  # would decide every measurement.
  start etcd etcd --name skyward --data-dir "$STATE/data/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls http://127.0.0.1:23790 --advertise-client-urls http://127.0.0.1:23790 \
    --listen-peer-urls http://127.0.0.1:23800 --initial-advertise-peer-urls http://127.0.0.1:23800 \
    --initial-cluster skyward=http://127.0.0.1:23800 --quota-backend-bytes 8589934592
  # The requestheader and proxy-client flags are the aggregation layer: how the
  # API server passes a request, and who made it, on to another API server.
  start kube-apiserver kube-apiserver \
    --etcd-servers http://127.0.0.1:23790 --bind-address "$GATEWAY" --advertise-address "$GATEWAY" --secure-port 6443 \
    --service-cluster-ip-range "$SERVICE_CIDR" --authorization-mode Node,RBAC --allow-privileged \
    --enable-admission-plugins NodeRestriction --profiling=false \
    --audit-policy-file "$HERE/audit.yaml" --audit-log-path "$LOGS/audit.log" --audit-log-mode batch --audit-log-maxsize 64 --audit-log-maxbackup 1 \
    --client-ca-file "$STATE/pki/ca.crt" --tls-cert-file "$STATE/pki/apiserver.crt" --tls-private-key-file "$STATE/pki/apiserver.key" \
    --kubelet-client-certificate "$STATE/pki/apiserver-kubelet.crt" --kubelet-client-key "$STATE/pki/apiserver-kubelet.key" \
    --kubelet-certificate-authority "$STATE/pki/ca.crt" --kubelet-preferred-address-types InternalIP \
    --service-account-issuer https://kubernetes.default.svc.cluster.local \
    --service-account-key-file "$STATE/pki/service-account.pub" --service-account-signing-key-file "$STATE/pki/service-account.key" \
    --requestheader-client-ca-file "$STATE/pki/front-proxy-ca.crt" --requestheader-allowed-names front-proxy-client \
    --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
    --requestheader-extra-headers-prefix X-Remote-Extra- \
    --proxy-client-cert-file "$STATE/pki/front-proxy-client.crt" --proxy-client-key-file "$STATE/pki/front-proxy-client.key"
}

boot_rest() {
  start kube-controller-manager kube-controller-manager \
    --kubeconfig "$STATE/pki/controller-manager.kubeconfig" --leader-elect=false --bind-address 127.0.0.1 --profiling=false \
    --authentication-kubeconfig "$STATE/pki/controller-manager.kubeconfig" --authorization-kubeconfig "$STATE/pki/controller-manager.kubeconfig" \
    --root-ca-file "$STATE/pki/ca.crt" --service-account-private-key-file "$STATE/pki/service-account.key" \
    --cluster-signing-cert-file "$STATE/pki/ca.crt" --cluster-signing-key-file "$STATE/pki/ca.key" \
    --use-service-account-credentials --kube-api-qps 200 --kube-api-burst 400
  start kube-scheduler kube-scheduler \
    --kubeconfig "$STATE/pki/scheduler.kubeconfig" --leader-elect=false --bind-address 127.0.0.1 --profiling=false \
    --authentication-kubeconfig "$STATE/pki/scheduler.kubeconfig" --authorization-kubeconfig "$STATE/pki/scheduler.kubeconfig" \
    --kube-api-qps 200 --kube-api-burst 400
  # masquerade-all where the bridge's own traffic passes no rules: replies from
  # a Service on the same bridge would come from another address than the one called.
  local bridged=()
  [ "$(cat /proc/sys/net/bridge/bridge-nf-call-iptables 2>/dev/null)" = 1 ] || bridged=(--masquerade-all)
  start kube-proxy kube-proxy --kubeconfig "$STATE/pki/proxy.kubeconfig" --hostname-override "$NODE" \
    --proxy-mode iptables --conntrack-max-per-core 0 --cluster-cidr "$POD_CIDR" --iptables-min-sync-period 100ms \
    --healthz-bind-address 127.0.0.1:10256 --metrics-bind-address 127.0.0.1:10249 "${bridged[@]}"
  start dns dns -conf "$STATE/etc/Corefile"
  start kubelet kubelet --config "$STATE/etc/kubelet.yaml" --kubeconfig "$STATE/pki/kubelet.kubeconfig" \
    --root-dir "$STATE/kubelet" --cert-dir "$STATE/pki" --hostname-override "$NODE" --node-ip "$GATEWAY"
}

# CoreDNS may read the objects of its answers, and nothing else.
dns_rights() {
  kubectl apply --server-side -f - >/dev/null <<'YAML'
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:coredns}
rules:
- {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:coredns}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: system:coredns}]
YAML
}

node_ready() {
  [ "$(kubectl get node "$NODE" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]
}
pods_can_start() { kubectl get serviceaccount -n default default; }
healthy() {
  local name
  for name in "${COMPONENTS[@]}"; do alive "$name" >/dev/null || return 1; done
  curl -fsS --max-time 5 --cacert "$STATE/pki/ca.crt" "https://$GATEWAY:6443/readyz" >/dev/null 2>&1 && node_ready 2>/dev/null
}

up() {
  local begun=$SECONDS stamp other wanted
  if healthy; then
    say "The local cluster runs already. KUBECONFIG=$KUBECONFIG_ADMIN"
    return
  fi
  [ "$(id -u)" = 0 ] || die "the local cluster needs root: it makes containers, a bridge and firewall rules. Run this as root."
  [ -z "$APART" ] || [ -e "$SKYWARD_CACHE/sysctls.before" ] || die "the second cluster shares kernel settings with the first one: run 'make cluster-up' first"
  other=$(other_kubernetes)
  [ -z "$other" ] ||
    die "another Kubernetes runs on this machine: ${other//$'\n'/, }. Two undo each other's firewall rules: use that one (make demo KUBECONFIG=… REGISTRY=…), or stop it"
  "$SKYWARD_ROOT/hack/tools.sh"
  mapfile -t wanted < <(packages)
  debian "${wanted[@]}"
  "$SKYWARD_ROOT/hack/images/base.sh"

  if [ -n "$(leftovers)" ]; then
    say "  removing what an earlier cluster left behind"
    clean
  fi
  begun=$SECONDS
  say "  starting the local cluster (log: $LOGS)"
  STARTED=()
  settings
  configure
  network
  cgroups
  boot_containerd
  boot_control_plane
  STARTED=(containerd etcd kube-apiserver)
  await 60 "containerd" ctr version
  load_images "$SKYWARD_IMAGES/pause.tar" "$SKYWARD_IMAGES/busybox.tar"
  await 120 "the API server" curl -fsS --max-time 5 --cacert "$STATE/pki/ca.crt" "https://$GATEWAY:6443/readyz"
  say "  API server ready ($(elapsed $((SECONDS - begun))))"
  boot_rest
  STARTED=("${COMPONENTS[@]}")
  dns_rights
  await 120 "the node to be ready" node_ready
  await 60 "the first service account" pods_can_start
  await 60 "DNS" curl -fsS --max-time 5 http://127.0.0.1:8181/ready
  stamp=$(elapsed $((SECONDS - begun)))
  say "  node ready, Pods can start ($stamp)"
  say "The local cluster is up. KUBECONFIG=$KUBECONFIG_ADMIN"
}

# load_images FILE...: import the images that are not there with the same digest yet.
load_images() {
  local file have want
  have=$(ctr images list 2>/dev/null | awk 'NR > 1 {print $1 "@" $3}')
  for file in "$@"; do
    [ -f "$file" ] || die "there is no image archive $file"
    want=$(tar -xOf "$file" index.json 2>/dev/null | python3 -c '
import json, sys
for m in json.load(sys.stdin)["manifests"]:
    print(m["annotations"]["io.containerd.image.name"] + "@" + m["digest"])' 2>/dev/null || true)
    if [ -n "$want" ] && ! grep -vqxF "$have" <<<"$want"; then continue; fi
    ctr images import "$file" >>"$LOGS/images.log" 2>&1 ||
      { tail -n 5 "$LOGS/images.log" >&2; die "importing $file failed; the whole log: $LOGS/images.log"; }
  done
}

# --- down --------------------------------------------------------------------

leftovers() { "$HERE/leftovers.sh" || true; }

# Kill whatever is in our cgroups. Frozen first where the kernel can: a fork bomb
# would outrun a loop.
kill_containers() {
  local group pid rounds=0
  while ((rounds++ < 50)); do
    local found=
    while read -r group; do
      [ ! -e "$group/cgroup.kill" ] || echo 1 >"$group/cgroup.kill" 2>/dev/null || true
      [ ! -e "$group/freezer.state" ] || echo FROZEN >"$group/freezer.state" 2>/dev/null || true
      while read -r pid; do
        found=1
        kill -KILL "$pid" 2>/dev/null || true
      done < <(find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -un)
      if [ -e "$group/freezer.state" ]; then
        find "$group" -depth -name freezer.state -exec sh -c 'for f; do echo THAWED >"$f"; done' _ {} + 2>/dev/null || true
      fi
    done < <(our_cgroups)
    [ -n "$found" ] || return 0
    sleep 0.05
  done
  warn "note: some processes of Pods could not be killed; hack/cluster/leftovers.sh names them."
}

# clean: the same steps for a running cluster and for the remains of one that
# was killed; each does nothing where nothing is left.
clean() {
  local pid path table line tool name value files=()
  # Once nothing runs any more, only the record tells whose chains there are.
  [ -z "$(our_processes)" ] || remember kernel.random.boot_id
  stop 5 kubelet kube-proxy dns kube-scheduler kube-controller-manager
  kill_containers
  # The API server takes ten seconds to part with its clients; its data goes anyway.
  stop 1 containerd kube-apiserver etcd
  # Shims outlive containerd, and components whose record was lost have no name.
  for pid in $(our_processes); do kill -KILL "$pid" 2>/dev/null || true; done

  # Named before their record goes with the state.
  mapfile -t files < <(our_files)

  local rounds=0
  while [ -n "$(our_mounts)" ] && ((rounds++ < 20)); do
    while read -r path; do
      umount "$path" 2>/dev/null || umount -l "$path" 2>/dev/null || true
    done < <(our_mounts)
  done

  if has_bridge; then
    # Interfaces of Pods go with their name space, which the kernel may delay.
    while read -r name; do
      ip link delete "$name" 2>/dev/null || true
    done < <(ip -o link show master "$BRIDGE" | awk '{sub(/@.*|:$/, "", $2); print $2}')
    ip link delete "$BRIDGE" 2>/dev/null || true
  fi

  for tool in iptables ip6tables; do
    command -v "$tool" >/dev/null || continue
    while read -r table line; do
      # shellcheck disable=SC2086 # several words on purpose
      "$tool" -w 5 -t "$table" $line 2>/dev/null || true
    done < <(our_rules "$tool")
  done

  while read -r path; do
    find "$path" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done < <(our_cgroups)

  ((${#files[@]} == 0)) || rm -f -- "${files[@]}"
  rmdir /var/log/containers /var/lib/cni/results /var/lib/cni /run/containerd/s /run/containerd \
    /var/lib/kubelet/device-plugins /var/lib/kubelet 2>/dev/null || true

  if ours_alone; then
    while read -r name value; do
      [ "$name" = kernel.random.boot_id ] || echo "$value" >"/proc/sys/${name//.//}" 2>/dev/null || true
    done <"$SYSCTLS"
  fi
  # As long as there are rules of ours, they need the record to be known by; and as long as
  # another Kubernetes keeps us from putting back what it says, nobody has done that.
  [ -n "$(our_rules iptables && our_rules ip6tables)$(other_kubernetes)" ] || rm -f "$SYSCTLS"

  # What kubectl remembers of this address would be wrong for the next cluster.
  rm -rf "${HOME:-/root}/.kube/cache/discovery/${GATEWAY}_6443"

  # --one-file-system: should a mount have stayed, its content is not ours to delete.
  [ -n "$(our_mounts)" ] || rm -rf --one-file-system "$STATE"
}

down() {
  local begun=$SECONDS left
  [ "$(id -u)" = 0 ] || die "stopping the local cluster needs root"
  if [ -z "$(leftovers)" ]; then
    say "No local cluster is here."
    return
  fi
  say "  stopping the local cluster"
  clean
  left=$(leftovers)
  # The kernel takes network interfaces away a moment after the last process.
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ -n "$left" ] || break
    sleep 0.5
    clean
    left=$(leftovers)
  done
  if [ -n "$left" ]; then
    warn "error: this stayed on the machine:"
    printf '%s\n' "$left" | sed 's/^/    /' >&2
    exit 1
  fi
  say "The local cluster is gone, with its data ($(elapsed $((SECONDS - begun))))."
}

# --- backup and restore, for the drill -----------------------------------------

# stop_all_but_containerd: what runs in Pods goes on, as on the machines of a real cluster.
stop_all_but_containerd() {
  stop 20 kubelet dns kube-proxy kube-scheduler kube-controller-manager
  stop 20 kube-apiserver
  stop 20 etcd
}

start_all_but_containerd() {
  STARTED=(containerd etcd kube-apiserver)
  boot_control_plane
  await 60 "the API server" kubectl get --raw /readyz
  STARTED=("${COMPONENTS[@]}")
  boot_rest
  await 60 "the node" kubectl get node "$NODE"
}

# snapshot FOLDER: a copy of etcd's data, made while etcd stands still.
snapshot() {
  [ -n "${1:-}" ] || die "name the folder for the copy: cluster.sh snapshot FOLDER"
  [ ! -e "$1" ] || die "\"$1\" exists already; a snapshot is made into a new folder"
  alive etcd >/dev/null || die "there is no local cluster; start one with 'make cluster-up'"
  stop_all_but_containerd
  cp -a "$STATE/data/etcd" "$1"
  start_all_but_containerd
}

# restore FOLDER: etcd's data are that copy again.
restore() {
  [ -d "${1:-}/member" ] || die "\"${1:-}\" is no copy of etcd's data; make one with 'cluster.sh snapshot FOLDER'"
  alive containerd >/dev/null || die "there is no local cluster; start one with 'make cluster-up'"
  stop_all_but_containerd
  rm -rf --one-file-system "$STATE/data/etcd"
  cp -a "$1" "$STATE/data/etcd"
  start_all_but_containerd
}

# --- the rest ----------------------------------------------------------------

status() {
  local name pid rc=0
  for name in "${COMPONENTS[@]}"; do
    if pid=$(alive "$name"); then
      printf '%-24s runs (pid %s)\n' "$name" "$pid"
    else
      printf '%-24s does not run\n' "$name"
      rc=1
    fi
  done
  if ((rc == 0)); then
    kubectl get nodes -o wide
    say "KUBECONFIG=$KUBECONFIG_ADMIN"
  else
    say "Start it with 'make cluster-up'."
  fi
  return $rc
}

# own_network ARGUMENT...: run this script again in the network namespace of the second cluster. `up` makes it, and it goes with
# the cluster's last process.
own_network() {
  local name pid
  [ -n "$APART" ] && [ -z "${SKYWARD_INSIDE:-}" ] || return 0
  export SKYWARD_INSIDE=1
  for name in "${COMPONENTS[@]}"; do
    if pid=$(alive "$name"); then exec nsenter --target "$pid" --net -- "$HERE/cluster.sh" "$@"; fi
  done
  case $1 in enter | restart) die "the second cluster does not run; start it with 'SKYWARD_APART=1 hack/cluster/cluster.sh up'" ;; esac
  exec unshare --net -- "$HERE/cluster.sh" "$@"
}

exclusive() {
  exec {LOCK}>"$SKYWARD_CACHE/cluster.lock"
  flock -n "$LOCK" || quietly "wait for another 'cluster.sh up' or 'down'" flock -w 900 "$LOCK" ||
    die "another cluster.sh has been at work for a quarter of an hour"
}

case ${1:-} in
  up | down | status | restart | enter) own_network "$@" ;;
  snapshot | restore) [ -z "$APART" ] || die "backups are of the first cluster" ;;
esac
case ${1:-} in
  up)
    exclusive
    up
    ;;
  down)
    [ -n "$APART" ] || [ ! -e "$STATE-apart" ] || SKYWARD_APART=1 "$HERE/cluster.sh" down
    exclusive
    down
    ;;
  snapshot)
    exclusive
    snapshot "${2:-}"
    ;;
  restore)
    exclusive
    restore "${2:-}"
    ;;
  restart)
    exclusive
    restart "${2:-}"
    ;;
  status) status ;;
  enter)
    shift
    exec "$@"
    ;;
  kubeconfig)
    [ -f "$KUBECONFIG_ADMIN" ] || die "there is no local cluster; start one with 'make cluster-up'"
    say "$KUBECONFIG_ADMIN"
    ;;
  load)
    shift
    alive containerd >/dev/null || die "there is no local cluster to load an image into; start one with 'make cluster-up'"
    load_images "$@"
    ;;
  logs) tail -n "${LINES:-20}" "$LOGS"/*.log ;;
  *) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" && exit 2 ;;
esac
