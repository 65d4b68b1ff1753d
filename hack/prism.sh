#!/usr/bin/env bash
# Prism, a third-party proxy: it checks requests and answers against a description of
# an API. The clouds' clients meet it in tests/conformance. Installed once, by npm, from the
# registry that the machine's own npm is set to. Prints the path of its program.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VERSION=5.16.0
PRISM=$SKYWARD_CACHE/prism-$VERSION

# The mark comes last: half an installation is begun again.
if [ ! -e "$PRISM/complete" ]; then
  rm -rf "$PRISM"
  mkdir -p "$PRISM"
  # Install scripts of its packages are not run.
  npm install --prefix "$PRISM" --no-audit --no-fund --ignore-scripts "@stoplight/prism-cli@$VERSION" >&2 ||
    die "npm could not install Prism; it needs Node 18 or newer and a registry (npm config get registry)"
  touch "$PRISM/complete"
fi
say "$PRISM/node_modules/.bin/prism"
