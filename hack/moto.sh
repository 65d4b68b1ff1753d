#!/usr/bin/env bash
# moto, a third-party server of the APIs of EC2 and S3, for the wire tests of the AWS provider and of the
# Python package's Storage: installed once, from the machine's own package index. Prints the path of its program.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VERSION=5.2.5
MOTO=$SKYWARD_CACHE/moto-s3-$VERSION

# The mark comes last: half an installation is begun again.
if [ ! -e "$MOTO/complete" ]; then
  rm -rf "$MOTO"
  virtual_environment "$MOTO" >&2 ||
    die "python3 makes no virtual environments here"
  "$MOTO/bin/pip" install --quiet --no-compile --disable-pip-version-check "moto[ec2,s3,ssm,server]==$VERSION" >&2 ||
    die "pip could not install moto; without it the clients of AWS and S3 are not checked against a server of others"
  touch "$MOTO/complete"
fi
say "$MOTO/bin/moto_server"
