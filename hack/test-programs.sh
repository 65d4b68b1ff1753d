#!/usr/bin/env bash
# Runs the test programs of one package.
#
#   hack/test-programs.sh skyward-e2e -- --test-threads=4 name_of_one_test
#   hack/test-programs.sh --files FILE skyward-e2e
#
# They are named one by one and not by `-p`, with which cargo would choose other features
# for dependencies, and compile all of them again. After a failure the others still run.
# --files builds them, and writes a line for each into FILE: its name, and the command that
# runs it without cargo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

files=
if [ "$1" = --files ]; then
  files=$2
  shift 2
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
read -ra programs <<<"$programs"
selection=(--locked --workspace "${programs[@]/#/--test=}")
[ -n "$files" ] || exec cargo test --no-fail-fast "${selection[@]}" "$@"
cargo test --no-run --message-format json-render-diagnostics "${selection[@]}" | python3 -c '
import json, os, sys
for line in sys.stdin:
    said = json.loads(line)
    if said.get("executable") and "test" in said["target"]["kind"]:
        folder = os.path.dirname(said["manifest_path"])
        print(said["target"]["name"], "env", "--chdir=" + folder, said["executable"])
' >"$files"
