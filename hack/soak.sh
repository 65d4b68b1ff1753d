#!/usr/bin/env bash
# A campaign for failures that happen once in a thousand times: round after round, each with
# another seed, until the time is over or something fails.
#
#   make soak                      for an hour
#   make soak MINUTES=480          for a night
#   make soak SEED=123 ROUNDS=1    one round again, with the seed that failed
#   make soak ONLY=chaos           chaos alone: round after round of it, and its figures
#   make soak ONLY=simulation      histories of the simulation alone; needs no cluster
# SKYWARD_TORCH_INDEX names a package index with PyTorch for CPUs: then a training with it is among the stories, too.
# `make test` tells a third of what is repeated for each call, cloud or version of Python
# (docs/decisions/0033-campaigns-by-thirds.md); this campaign tells all of it.
#
# Each round runs the simulation and properties (the seed chooses their histories: 2,000 of the
# simulation in each round; CASES says how many each property tries) and the stories of the cluster
# in which something is killed (the seed chooses the moments), and a round of chaos
# (tests/e2e/chaos, the seed chooses what happens; CHAOS_TIMES=2 makes it twice as much,
# CHAOS_CLOCK=1 lets it step this machine's clock); every fifth round runs all stories (SKYWARD_TEST_TORCH=URL, an index with a
# PyTorch for CPUs, adds the story of tensors to all runs of them), also those at clouds, and the Python package's tests. Called by
# hack/test.sh, which brings the cluster; the tests read SKYWARD_SEED. One history again: the line
# that its test prints, or SKYWARD_HISTORY=<seed>.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$SKYWARD_ROOT"

MINUTES=${MINUTES:-60}
ROUNDS=${ROUNDS:-1000000}
first=${SEED:-$(($(date +%s) % 10000000))}
until=$((SECONDS + 60 * MINUTES))
round=0
case ${ONLY:-} in '' | chaos | simulation) ;; *) die "ONLY is '$ONLY'; make soak knows ONLY=chaos and ONLY=simulation" ;; esac

# part WHAT COMMAND...
part() {
  local what=$1 log
  shift
  quietly "$what" env SKYWARD_SEED="$seed" PROPTEST_RNG_SEED="$seed" PROPTEST_CASES="${CASES:-4096}" "$@" && return
  log=$SKYWARD_LOG_DIR/$(printf '%s' "$what" | tr -cs 'A-Za-z0-9.' '-').log
  warn
  warn "##### round $round failed: $what, seed $seed. What it says of seeds and inputs:"
  { grep -nE 'seed|minimal failing input|panicked at|^test .*FAILED' "$log" || true; } | head -n 20 | cut -c1-300 | sed 's/^/    /' >&2
  warn "The whole output: $log"
  warn "Again: make soak SEED=$seed ROUNDS=1"
  exit 1
}

# Its output is shown: what happens in each round, and figures at the end.
if [ "${ONLY:-}" = chaos ]; then
  export SKYWARD_SEED=$first CHAOS_MINUTES=$MINUTES CHAOS_ROUNDS=$ROUNDS
  exec cargo test --locked --workspace --test chaos -- --nocapture whatever_happens
fi

# As many histories as the time gives; their number is shown.
if [ "${ONLY:-}" = simulation ]; then
  export SKYWARD_SEED=$first SKYWARD_MINUTES=$MINUTES
  exec cargo test --locked --workspace --lib -- --nocapture whatever_happens_nothing_leaks_and_nothing_is_doubled
fi

while ((round < ROUNDS)) && { ((round == 0)) || ((SECONDS < until)); }; do
  seed=$((first + round))
  round=$((round + 1))
  say "##### round $round, seed $seed ($(elapsed $((until > SECONDS ? until - SECONDS : 0))) to go)"
  part "simulation and properties" cargo test --locked --workspace --lib
  part "stories of what is killed" cargo test --locked --workspace --test e2e -- --test-threads=2 crash:: maps::twenty
  part "chaos" cargo test --locked --workspace --test chaos -- --nocapture whatever_happens
  ((round % 5)) || part "all stories" cargo test --locked --workspace --test e2e -- --test-threads="${TEST_THREADS:-8}"
  ((round % 5)) || part "hostile bytes" env MINUTES=5 SEED="$seed" hack/fuzz.sh
  ((round % 5)) || part "all stories at clouds" cargo test --locked --workspace --test clouds -- --test-threads="${TEST_THREADS:-12}"
  ((round % 5)) || part "Python package, all versions" hack/python.sh test
done
say "$round rounds passed, seeds $first to $((first + round - 1))."
