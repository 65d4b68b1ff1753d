#!/usr/bin/env bash
# moto, a third-party server of EC2's API, for the wire tests of the AWS provider:
# installed once, from the machine's own package index. Prints the path of its program.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VERSION=5.2.5
MOTO=$SKYWARD_CACHE/moto-$VERSION

# The mark comes last: half an installation is begun again.
if [ ! -e "$MOTO/complete" ]; then
  rm -rf "$MOTO"
  virtual_environment "$MOTO" >&2 ||
    die "python3 makes no virtual environments here"
  "$MOTO/bin/pip" install --quiet --no-compile --disable-pip-version-check "moto[ec2,ssm,server]==$VERSION" >&2 ||
    die "pip could not install moto; without it the AWS client is not checked against a server of others"
  touch "$MOTO/complete"
fi
say "$MOTO/bin/moto_server"
