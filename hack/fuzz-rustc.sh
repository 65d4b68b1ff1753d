#!/bin/sh
# cargo calls this in the place of rustc for the crates of this workspace (RUSTC_WORKSPACE_WRAPPER): the
# same, with the counters that libFuzzer reads. Dependencies are compiled as ever, so nothing of them is built again.
exec "$@" \
  -Cpasses=sancov-module \
  -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
  -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares
