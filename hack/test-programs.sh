#!/usr/bin/env bash
# Runs the test programs of one package.
#
#   hack/test-programs.sh skyward-e2e -- --test-threads=4 name_of_one_test
#   hack/test-programs.sh --list skyward-e2e
#
# They are named one by one and not by `-p`, with which cargo would choose other features
# for dependencies, and compile all of them again. After a failure the others still run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

list=
if [ "$1" = --list ]; then
  list=yes
  shift
fi
package=$1
shift
programs=$(cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    if package["name"] == sys.argv[1]:
        print(*(target["name"] for target in package["targets"] if "test" in target["kind"] and target["test"]))
' "$package")
[ -n "$programs" ] || {
  printf 'error: the workspace has no package "%s" with test programs\n' "$package" >&2
  exit 1
}
if [ -n "$list" ]; then
  printf '%s\n' "$programs"
  exit
fi
read -ra programs <<<"$programs"
exec cargo test --locked --workspace --no-fail-fast "${programs[@]/#/--test=}" "$@"
