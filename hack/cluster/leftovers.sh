#!/usr/bin/env bash
# Print what a local cluster left on this machine, a line for each thing, and
# exit 1 if there is anything. Packages and build caches are not leftovers.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
PATH=$PATH:/usr/sbin:/sbin

found() {
  for pid in $(our_processes); do
    printf 'process: %s %s\n' "$pid" "$({ tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | cut -c1-120)"
  done
  our_cgroups | sed 's/^/cgroup: /'
  our_mounts | sed 's/^/mount: /'
  for link in "$BRIDGE" $(ip -o link show type veth 2>/dev/null | awk -v b="$BRIDGE" '$0 ~ "master " b " " {sub(/@.*/, "", $2); print $2}'); do
    ! ip link show dev "$link" >/dev/null 2>&1 || printf 'interface: %s\n' "$link"
  done
  for tool in iptables ip6tables; do
    ! command -v "$tool" >/dev/null || our_rules "$tool" | awk -v tool="$tool" '$2 != "-F" {print tool " rule: -t " $0}'
  done
  { our_files && printf '%s\n' "$SYSCTLS" "$STATE"; } | while read -r file; do
    [ ! -e "$file" ] && [ ! -L "$file" ] || printf 'file: %s\n' "$file"
  done
}

left=$(found)
[ -n "$left" ] || exit 0
printf '%s\n' "$left"
exit 1
