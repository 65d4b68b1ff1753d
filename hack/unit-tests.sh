#!/usr/bin/env bash
# Runs the programs of unit and property tests, as many at a time as there are processors: most of these programs wait for a while
# at their end, or have one long test. What a program says is shown when it has ended. `cargo test` runs one after the other.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$SKYWARD_ROOT"

# Packages whose tests need a cluster, or measure.
OTHERS=(--exclude skyward-e2e --exclude skyward-control-plane-tests --exclude skyward-bench)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

# A line for each program: its package and its target, the package's folder, the program. The one that takes longest comes first.
cargo test --no-run --locked --workspace --tests "${OTHERS[@]}" --message-format json-render-diagnostics | python3 -c '
import json, os, sys
programs = []
for line in sys.stdin:
    said = json.loads(line)
    if said.get("executable") and said["profile"]["test"]:
        folder = os.path.dirname(said["manifest_path"])
        programs.append((os.path.relpath(folder), said["target"]["name"], folder, said["executable"]))
programs.sort(key=lambda program: program[0] != "tests/simulation")
for program in programs:
    print(*program, sep="\t")
' >"$WORK/programs"
[ -s "$WORK/programs" ] || die "cargo names no programs of tests"

one() {
  local package target folder program said rc=0
  IFS=$'\t' read -r package target folder program <<<"$1"
  said=$(mktemp -p "$WORK")
  # As cargo runs it: some tests read files of their package.
  (cd "$folder" && CARGO_MANIFEST_DIR=$folder exec "$program") >"$said" 2>&1 || rc=$?
  # One at a time: a line of one program must not stand within what another one says.
  flock "$WORK/printing" cat <(printf '\n     Running %s of %s (%s)\n' "$target" "$package" "$program") "$said"
  [ "$rc" = 0 ] || printf 'error: %s of %s failed (exit status %s)\n' "$target" "$package" "$rc"
  return "$rc"
}

running=0 failed=0
while IFS= read -r program; do
  if ((running == $(nproc))); then
    wait -n || failed=1
    running=$((running - 1))
  fi
  one "$program" &
  running=$((running + 1))
done <"$WORK/programs"
for ((; running > 0; running--)); do wait -n || failed=1; done
exit $failed
