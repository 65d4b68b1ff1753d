#!/usr/bin/env bash
# Runs the test programs of one package.
#
#   hack/test-programs.sh skyward-e2e -- --test-threads=4 name_of_one_test
#
# They are named one by one and not by `-p`, with which cargo would choose other features
# for what others wrote, and compile all of it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

package=$1
shift
programs=$(cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    if package["name"] == sys.argv[1]:
        print(*("--test=" + target["name"] for target in package["targets"] if "test" in target["kind"]))
' "$package")
[ -n "$programs" ] || {
  printf 'error: the workspace has no package "%s" with test programs\n' "$package" >&2
  exit 1
}
# shellcheck disable=SC2086 # a list
exec cargo test --locked --workspace $programs "$@"
