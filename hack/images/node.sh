#!/usr/bin/env bash
# The node image: what a Pod of the Container provider runs when a Pool names no
# image of its own. A small Debian 12 with an SSH server, Python 3.11 and uv, built
# with debootstrap, so without Docker and without a registry.
#
#   hack/images/node.sh      prints the path of the archive
#   hack/images/node.sh --agent AGENT [--base TAR] [--out TAR]
#                            the same, or that archive, with one more layer: the agent, which the operator then need
#                            not send to each Pod (the operator looks where this puts it, and sends it to all other machines)
#
# No host keys (each machine makes its own), no package lists, no caches, and
# nothing of this machine's: not its certificate authorities either.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

NAME=skyward.dev/node
SUITE=bookworm
# A Pod with packages would else install uv first: five seconds of a processor.
UV=0.13.9
PACKAGES=openssh-server,python3,python3-venv,ca-certificates,iproute2,procps,git
OUT=$SKYWARD_IMAGES/node.tar
BASE=$SKYWARD_IMAGES/node-base.tar

# mirror: the URL from which this machine gets Debian, by apt's own settings.
mirror() {
  local uri
  # shellcheck disable=SC2016 # apt fills these in
  uri=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN)|$(LABEL)' 'Created-By: Packages' 2>/dev/null |
    awk '$2 == "Debian|Debian" {print $1; exit}')
  [ -n "$uri" ] || die "apt knows no Debian mirror: check /etc/apt/sources.list, then run 'apt-get update'"
  printf '%s\n' "$uri"
}

# add_uv ROOT: puts uv into that root file system, from this machine's own package index.
add_uv() {
  local pip found
  pip=$(mktemp -d)
  virtual_environment "$pip" || return
  "$pip/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps --only-binary :all: "uv==$UV" ||
    die "pip could not get uv $UV from this machine's package index ('pip config list' shows which one that is)"
  install -D -m 755 "$pip/bin/uv" "$1/usr/local/bin/uv"
  found=("$pip"/lib/python*/site-packages/uv-*.dist-info/licenses)
  mkdir -p "$1/usr/share/doc/uv"
  cp "${found[0]}"/LICENSE* "$1/usr/share/doc/uv/"
  rm -rf "$pip"
}

build() {
  local root
  root=$SKYWARD_IMAGES/node.rootfs
  remove_root "$root"
  trap 'remove_root "$SKYWARD_IMAGES/node.rootfs"' EXIT
  debootstrap --variant=minbase --include="$PACKAGES" "$SUITE" "$root" "$(mirror)"
  unmount_root "$root"
  rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/cache/debconf/*-old \
    "$root"/etc/ssh/ssh_host_* "$root"/tmp/* "$root"/var/lib/dpkg/*-old "$root"/var/cache/ldconfig/aux-cache
  find "$root/var/log" -type f -delete
  # Manuals are of no use in a Pod; the licences stay.
  find "$root/usr/share/doc" -type f ! -name copyright -delete
  rm -rf "$root"/usr/share/man/* "$root"/usr/share/info/* "$root"/usr/share/locale/*
  find "$root" -name __pycache__ -type d -prune -exec rm -rf {} +
  # Compiled here once, instead of at every start of a worker in a Pod. Checked
  # by content, because all times in the image are the same.
  chroot "$root" python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3.11 /usr/lib/python3 || true
  add_uv "$root"
  : >"$root/etc/machine-id"
  rm -f "$root/etc/resolv.conf" "$root/etc/hostname"
  # sshd refuses to start without it, and no init makes it.
  mkdir -p "$root/run/sshd"
  chmod 755 "$root/run/sshd"
  python3 "$SKYWARD_ROOT/hack/images/oci.py" --out "$BASE" --tag "$NAME:dev" --digest-tag "$NAME" --rootfs "$root" --cmd /bin/bash \
    --label org.opencontainers.image.title="Skyward node" --label org.opencontainers.image.base.name="debian:$SUITE"
}

# A process of its own: `quietly` looks at its exit status, and bash does not
# stop a function at its first error in such a place.
if [ "${1:-}" = --build ]; then
  build
  exit
fi

agent='' base='' out=$OUT
while (($#)); do
  case $1 in
    --agent) agent=$2 ;;
    --base) base=$2 ;;
    --out) out=$2 ;;
    *) die "usage: hack/images/node.sh [--agent AGENT [--base TAR] [--out TAR]]" ;;
  esac
  shift 2
done

exec {lock}>"$SKYWARD_IMAGES/node.lock"
flock -n "$lock" || quietly "wait for another build of the node image" flock "$lock" >&2
if [ -z "$base" ]; then
  base=$BASE
  key=$(digest "${BASH_SOURCE[0]}" "$SKYWARD_ROOT/hack/images/oci.py")
  if [ ! -f "$base" ] || [ "$(cat "$SKYWARD_IMAGES/node.key" 2>/dev/null)" != "$key" ]; then
    [ "$(id -u)" = 0 ] || die "building the node image needs root: debootstrap makes a root file system"
    debian debootstrap >&2
    [ -n "$(find /var/lib/apt/lists -name '*_Packages*' -print -quit)" ] || quietly "apt-get update" apt-get update >&2
    quietly "build the node image (about a minute)" "${BASH_SOURCE[0]}" --build >&2
    printf '%s\n' "$key" >"$SKYWARD_IMAGES/node.key"
  fi
fi
if [ -z "$agent" ]; then
  printf '%s\n' "$base"
  exit
fi
[ -x "$agent" ] || die "$agent is not there; 'make build' builds it"
sum=$(sha256sum "$agent")
python3 "$SKYWARD_ROOT/hack/images/oci.py" --out "$out" --tag "$NAME:dev" --digest-tag "$NAME" --base "$base" \
  --add "$agent=/usr/local/share/skyward/skyward-agent-${sum:0:12}" >/dev/null
printf '%s\n' "$out"
