#!/usr/bin/env bash
# Two third-party servers that speak S3, for the tests of the result store in a bucket: versitygw, which keeps
# objects in files (from v1.8.0 on exactly one of several racers creates an object), and gofakes3, which keeps them in
# memory. They are built once, from the Go module proxy that `go env GOPROXY` names. Prints the folder of the programs.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VERSITYGW=v1.8.0
GOFAKES3=v1.2.0
TO=$SKYWARD_CACHE/s3-servers-$VERSITYGW-$GOFAKES3

# The mark comes last: half an installation is begun again.
if [ ! -e "$TO/complete" ]; then
  rm -rf "$TO"
  mkdir -p "$TO"
  for program in "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW" "github.com/johannesboyne/gofakes3/cmd/gofakes3@$GOFAKES3"; do
    CGO_ENABLED=0 GOBIN=$TO quietly "build $(basename "${program%%@*}")" go install -buildvcs=false -trimpath -ldflags "-s -w" "$program" >&2 ||
      die "go could not build ${program%%@*}; without it the result store is not tried in a bucket"
  done
  touch "$TO/complete"
fi
say "$TO"
