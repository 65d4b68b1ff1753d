# shellcheck shell=bash
# Shared by the scripts here: folders, messages and common steps.
#
# Everything that is built, downloaded or kept is in one folder outside
# the clone, so that a second clone and CI find it again, and one `rm -r`
# deletes it:
#   bin/      kubectl, helm, crane and the parts of the local cluster
#   cluster/  the running local cluster: sockets, data, logs, kubeconfig; cluster-apart/ is that of the second one
#   images/   image archives
#   target/   cargo's target folder
#   log/      output of the long steps, and what a failed test run left behind

SKYWARD_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SKYWARD_CACHE=$(realpath -m "${SKYWARD_CACHE:-${HOME:-/root}/.cache/skyward}")
SKYWARD_STATE=${SKYWARD_STATE:-$SKYWARD_CACHE/cluster}
# The second cluster of this machine (hack/cluster/env.sh) never has the folder of the first one.
if [ -n "${SKYWARD_APART:-}" ]; then SKYWARD_STATE=${SKYWARD_STATE%-apart}-apart; fi
SKYWARD_BIN_DIR=$SKYWARD_CACHE/bin
SKYWARD_IMAGES=$SKYWARD_CACHE/images
SKYWARD_LOG_DIR=${SKYWARD_LOG_DIR:-$SKYWARD_CACHE/log}
# How `cargo` builds operator and plugin, and where it leaves them. Demo and tests share
# one profile, so that nothing is compiled twice; what people install, and what the
# benchmarks measure, is PROFILE=release.
PROFILE=${PROFILE:-dev}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$SKYWARD_CACHE/target}
case $PROFILE in
  dev) SKYWARD_TARGET_BIN=$CARGO_TARGET_DIR/debug ;;
  release) SKYWARD_TARGET_BIN=$CARGO_TARGET_DIR/release ;;
  *)
    printf 'error: PROFILE is %s; it can be dev or release\n' "$PROFILE" >&2
    exit 1
    ;;
esac
AGENT_TARGET=$(uname -m)-unknown-linux-gnu
SKYWARD_AGENT=$CARGO_TARGET_DIR/$AGENT_TARGET/agent/skyward-agent
export PROFILE AGENT_TARGET SKYWARD_TARGET_BIN SKYWARD_AGENT
export SKYWARD_ROOT SKYWARD_CACHE SKYWARD_STATE SKYWARD_BIN_DIR SKYWARD_IMAGES SKYWARD_LOG_DIR
mkdir -p "$SKYWARD_BIN_DIR" "$SKYWARD_IMAGES" "$SKYWARD_LOG_DIR"

# How much memory programs in Go may use, as part of what they need, before they look for what they need no more. With Go's own
# 100 percent kubectl, which ends after a fraction of a second, spends a third of its processor time on that.
export GOGC=${GOGC:-400}

# A version manager's python3 is a script that starts several shells before Python. Tests start Python often: the interpreter
# itself comes first in PATH.
if [[ "$(command -v python3)" == */shims/* ]]; then
  interpreter=$(python3 -c 'import sys; print(sys.executable)') && export PATH="${interpreter%/*}:$PATH"
fi

# Clones share the target folder, and cargo tells fresh from stale by the time of
# files: what another clone built last would pass for this one's. A clone that
# comes after another one therefore looks new to cargo; dependencies are kept.
CHECKOUT=$CARGO_TARGET_DIR/.checkout
if [ "$(cat "$CHECKOUT" 2>/dev/null)" != "$SKYWARD_ROOT" ]; then
  mkdir -p "$CARGO_TARGET_DIR"
  find "$SKYWARD_ROOT" -name .git -prune -o -type f -exec touch -c {} +
  # What cargo keeps for the next change of the other clone grows to tens of gigabytes.
  rm -rf "$CARGO_TARGET_DIR"/*/incremental
  printf '%s\n' "$SKYWARD_ROOT" >"$CHECKOUT"
fi

say() { printf '%s\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }
die() {
  warn "error: $*"
  exit 1
}

# elapsed SECONDS: 75 -> 1m15s
elapsed() {
  if (($1 < 60)); then printf '%ds' "$1"; else printf '%dm%02ds' $(($1 / 60)) $(($1 % 60)); fi
}

# digest FILE...: one short name for the content of files (and of standard
# input, when a name is -). Paths do not count, so a clone elsewhere agrees.
digest() {
  local file
  for file in "$@"; do sha256sum <"$([ "$file" = - ] && echo /dev/stdin || echo "$file")"; done |
    sha256sum | cut -c1-12
}

# quietly WHAT COMMAND...: run a long command with its output in a log file and
# a line every ten seconds that says how far it is, so that nobody watches a
# silent screen. When it fails, the end of the log is what the user needs to see.
quietly() {
  local what=$1 log beat rc=0 begun=$SECONDS
  shift
  log=$SKYWARD_LOG_DIR/$(printf '%s' "${what%% (*}" | tr -cs 'A-Za-z0-9.' '-').log
  say "  $what …"
  # The heartbeat waits on a pipe that never speaks rather than in a sleep,
  # which would outlive it and hold the caller's descriptors for ten seconds.
  (
    exec {never}<> <(:)
    while ! read -r -t 10 -u "$never"; do
      kill -0 $$ 2>/dev/null || exit 0
      printf '  … %s (%s): %s\n' "${what%% (*}" "$(elapsed $((SECONDS - begun)))" \
        "$(tail -n 1 "$log" 2>/dev/null | tr -d '\r\033' | sed 's/^ *//' | cut -c1-70)"
    done
  ) &
  beat=$!
  "$@" </dev/null >"$log" 2>&1 || rc=$?
  kill "$beat" 2>/dev/null || true
  wait "$beat" 2>/dev/null || true
  if ((rc != 0)); then
    warn "error: $what failed (exit status $rc). The end of $log:"
    tail -n "${SKYWARD_TAIL:-25}" "$log" | sed 's/^/    /' >&2
    return "$rc"
  fi
  say "  $what: done ($(elapsed $((SECONDS - begun))))"
}

# remove_root FOLDER: take a root file system away that debootstrap makes. When it is interrupted it leaves /proc and /sys mounted
# there: these must not be deleted, and would keep the folder.
remove_root() {
  unmount_root "$1" && rm -rf --one-file-system "$1"
}
unmount_root() {
  local mount
  for mount in "$1/proc" "$1/sys"; do ! mountpoint -q "$mount" || umount "$mount" || return; done
}

# debian PACKAGE...: install what is missing, and remove nothing for it: Docker's containerd.io,
# for one, excludes Debian's containerd, and Docker would go with it.
debian() {
  local missing=() package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | tr -d ' ')" = ii ] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  command -v apt-get >/dev/null || die "these Debian packages are missing and there is no apt-get to install them: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # Stages run side by side, and apt-get fails while another apt-get is at work. A daemon that a package starts
  # must not inherit the lock.
  (
    flock 9 || exit
    quietly "apt-get update" apt-get update 9>&- || exit
    quietly "install Debian packages ${missing[*]}" apt-get install -y --no-remove --no-install-recommends "${missing[@]}" 9>&- || exit
  ) 9>"$SKYWARD_CACHE/.packages.lock" || return
  # Debian starts its own containerd where systemd runs; we start ours.
  if [ -d /run/systemd/system ] && [[ " ${missing[*]} " == *" containerd "* ]]; then
    systemctl disable --now containerd >/dev/null 2>&1 || true
  fi
}

# virtual_environment DIR [ARGUMENT...]: one of Python's own; Debian packs a part of it apart.
virtual_environment() {
  if ! python3 -c 'import ensurepip, venv' 2>/dev/null &&
    dpkg-query -S "$(realpath "$(command -v python3)")" >/dev/null 2>&1; then
    debian python3-venv
  fi
  python3 -m venv "${@:2}" "$1"
}

# Rust links with a C compiler, and its cryptography is partly C.
c_compiler() { command -v cc >/dev/null || debian gcc libc6-dev; }
