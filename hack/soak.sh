#!/usr/bin/env bash
# The end-to-end tests again and again on one cluster, until the time is over or
# one fails: what happens once in fifty runs shows here. The tests read
# SKYWARD_SOAK_ROUND, which is another number in every round, as the seed of
# whatever they do at random moments.
#
#   MINUTES=60 make soak
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

until=$((SECONDS + 60 * ${MINUTES:-60}))
round=0
# A cluster that this run makes is taken down at its end, and not in between.
before=$("$SKYWARD_ROOT/hack/cluster/leftovers.sh" || true)
rc=0
while ((SECONDS < until)); do
  round=$((round + 1))
  say "##### round $round ($(elapsed $((until - SECONDS))) to go)"
  SKYWARD_SOAK_ROUND=$round KEEP=1 "$SKYWARD_ROOT/hack/test.sh" e2e || rc=$?
  ((rc == 0)) || break
done
if [ -z "$before" ] && [ -z "${KEEP:-}" ]; then "$SKYWARD_ROOT/hack/cluster/cluster.sh" down; fi
if ((rc == 0)); then say "$round rounds passed."; else say "Round $round failed."; fi
exit "$rc"
