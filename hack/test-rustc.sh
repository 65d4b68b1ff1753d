#!/usr/bin/env bash
# cargo calls this in the place of rustc for the crates of this workspace (RUSTC_WORKSPACE_WRAPPER), where all is compiled to
# be tested: clippy's compiler, which is rustc with more lints, so that each crate is read once and not twice. Programs of tests are not
# optimised (docs/decisions/0031-how-long-make-test-takes.md): most of their tests end at once, and libraries that they use are
# optimised as ever. Two that work for minutes are the exceptions: the simulation, and the conformance tests of clouds. This is a
# script of bash, since sh drops variables whose names have a hyphen, such as CARGO_BIN_EXE_skyward-agent.
case " $* " in
  *" --crate-name skyward_simulation "* | *" --crate-name conformance "*) ;;
  *" --test "*) set -- "$@" -C opt-level=0 ;;
esac
# Beside the compiler, or where programs are looked for.
driver=${1%/*}/clippy-driver
[ -x "$driver" ] || driver=clippy-driver
exec "$driver" "$@"
