#!/usr/bin/env bash
# Lets libFuzzer make up what machines, clouds, users and the front proxy send (tests/fuzz), for so many minutes
# for all targets together; found inputs are kept. docs/decisions/0018-hostile-bytes.md says how this works.
#
#   make fuzz                            for five minutes
#   make fuzz MINUTES=60 ONLY=plans,aws  for an hour, with these targets
#   SEED=1 hack/fuzz.sh                  the same random numbers each time
#   hack/fuzz.sh --build                 only builds
#
# What is found is kept in the cache's folder fuzz/, so that the next run goes on from there. An input that fails
# goes into the log folder: its mend puts it into tests/fuzz/corpus/TARGET/, which the tests replay.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$SKYWARD_ROOT"

MINUTES=${MINUTES:-5}
# A target that takes longer for one input, or more memory than that, has failed.
TIMEOUT=30
MEGABYTES=1024
ONE_ALLOCATION=256
LONGEST=8192

command -v c++ >/dev/null || debian g++

export RUSTC_WORKSPACE_WRAPPER=$SKYWARD_ROOT/hack/fuzz-rustc.sh
# No other program has that name: with and without counters ours are kept apart by cargo.
program=$CARGO_TARGET_DIR/debug/fuzz
build() { cargo build --locked --workspace --features skyward-fuzz/libfuzzer --bin fuzz; }
quietly "build the fuzzer" build
[ "${1:-}" != --build ] || exit 0

targets=$(sed -n 's/^        name: "\(.*\)",$/\1/p' tests/fuzz/lib.rs)
if [ -n "${ONLY:-}" ]; then
  for target in ${ONLY//,/ }; do
    grep -qx "$target" <<<"$targets" || die "there is no target $target; there are: $(tr '\n' ' ' <<<"$targets")"
  done
  targets=${ONLY//,/$'\n'}
fi
seconds=$((MINUTES * 60 / $(wc -l <<<"$targets")))
((seconds > 0)) || seconds=1

# fuzz TARGET: prints its line, and says how to see its failure again.
executions=0
failed=()
fuzz() {
  local target=$1 corpus=$SKYWARD_CACHE/fuzz/$1 log=$SKYWARD_LOG_DIR/fuzz-$1.log found=$SKYWARD_LOG_DIR/fuzz-$1-
  local mended=() count
  mkdir -p "$corpus"
  [ ! -d "tests/fuzz/corpus/$target" ] || mended=("tests/fuzz/corpus/$target")
  SKYWARD_FUZZ_TARGET=$target SKYWARD_FUZZ_SEEDS=$corpus RUST_BACKTRACE=1 \
    "$program" -max_total_time="$seconds" -timeout=$TIMEOUT -rss_limit_mb=$MEGABYTES -malloc_limit_mb=$ONE_ALLOCATION \
    -max_len=$LONGEST -seed="${SEED:-0}" -print_final_stats=1 -verbosity=1 -artifact_prefix="$found" \
    "$corpus" "${mended[@]}" >"$log" 2>&1 </dev/null || failed+=("$target")
  count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '%-16s %9s executions %7s inputs kept\n' "$target" "${count:-0}" "$(find "$corpus" -type f | wc -l)"
  executions=$((executions + ${count:-0}))
}

for target in $targets; do fuzz "$target"; done
printf '%-16s %9s executions, %s seconds for each of %s targets\n' all "$executions" "$seconds" "$(wc -l <<<"$targets")"

for target in "${failed[@]}"; do
  warn
  warn "##### target $target failed ($SKYWARD_LOG_DIR/fuzz-$target.log):"
  { grep -E -A 3 'panicked at|ERROR: libFuzzer|Test unit written' "$SKYWARD_LOG_DIR/fuzz-$target.log" || true; } | head -n 20 | cut -c1-300 | sed 's/^/    /' >&2
  warn "Again: SKYWARD_FUZZ_TARGET=$target $program FILE"
done
((${#failed[@]} == 0))
