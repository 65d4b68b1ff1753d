#!/usr/bin/env bash
# cargo calls this in the place of rustc for the crates of this workspace (RUSTC_WORKSPACE_WRAPPER), where all is compiled to
# be tested: clippy's compiler, which is rustc with more lints, so that each crate is read once and not twice. Programs of tests are not
# optimised, which takes a quarter of the time: most of their tests end at once, and libraries that they use are optimised as ever.
# The simulation is the exception, since it works for minutes. Not by sh: it takes away variables whose names have a hyphen, such as that of a
# program.
case " $* " in
  *" --crate-name skyward_simulation "*) ;;
  *" --test "*) set -- "$@" -C opt-level=0 ;;
esac
# Beside the compiler, or where programs are looked for.
driver=${1%/*}/clippy-driver
[ -x "$driver" ] || driver=clippy-driver
exec "$driver" "$@"
