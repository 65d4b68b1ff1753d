#!/usr/bin/env bash
# Checks the tools that a machine must have before anything else can be installed: prints one
# line for each thing that is missing, with the remedy, and nothing when all are there.
# --compiler: for what is only compiled. --no-root: for what needs no cluster. --lint: what the
# lints need, too.
set -euo pipefail

missing=0
lacks() {
  printf '%s\n' "$*" >&2
  missing=1
}

# at_least HAVE WANT
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# want NAME MINIMUM REMEDY VERSION-COMMAND...
want() {
  local name=$1 minimum=$2 remedy=$3 have
  shift 3
  if ! command -v "$name" >/dev/null; then
    lacks "$name is not installed: $remedy"
    return
  fi
  # rustup's cargo prints no version where there is no toolchain.
  have=$("$@" 2>/dev/null | grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)?' | head -n 1) || have=
  at_least "${have:-0}" "$minimum" || lacks "$name is ${have:-of an unknown version}, but $minimum or newer is needed: $remedy"
}

want make 4 "run 'apt-get install make'" make --version
want cargo 1.95 "install Rust with rustup (https://rustup.rs), or run 'rustup update stable && rustup default stable'" cargo --version
[[ " $* " != *" --compiler "* ]] || exit $missing
want go 1.25 "unpack the archive from https://go.dev/dl into /usr/local and put /usr/local/go/bin into PATH" go version
want python3 3.11 "run 'apt-get install python3' on Debian 12" python3 --version
if [[ " $* " == *" --lint "* ]] && command -v cargo >/dev/null; then
  cargo fmt --version >/dev/null 2>&1 || lacks "rustfmt is not installed: run 'rustup component add rustfmt'"
  cargo clippy --version >/dev/null 2>&1 || lacks "clippy is not installed: run 'rustup component add clippy'"
fi
[[ " $* " == *" --no-root "* ]] || [ "$(id -u)" = 0 ] ||
  lacks "you are not root: the local cluster makes containers, a bridge and firewall rules, and the node image a root file system; run this with sudo"
# The result store of the local cluster is on this disk, and keeps a tenth of its disk free.
if [[ " $* " != *" --no-root "* ]]; then
  cache=$(realpath -m "${SKYWARD_CACHE:-${HOME:-/root}/.cache/skyward}")
  disk=$cache
  until [ -e "$disk" ]; do disk=$(dirname "$disk"); done
  used=$(df --output=pcent "$disk" | tail -n 1 | tr -dc 0-9)
  ((${used:-0} < 88)) ||
    lacks "the disk of $cache is $used % full, and the operator stores no results where less than a tenth is free: free some of it ('rm -r $cache' takes all that was built and downloaded), or set SKYWARD_CACHE to a folder on another disk"
fi
[ "$(uname -s)" = Linux ] || lacks "this is $(uname -s): the local cluster needs Linux; give a cluster instead: make demo KUBECONFIG=… REGISTRY=…"
exit $missing
