#!/usr/bin/env bash
# The Python package: ruff and mypy for each version that Tasks may have, or its tests on each Python
# of that kind that this machine has.
#
#   hack/python.sh lint|test|tools
#
# SKYWARD_THIRD (0, 1 or 2) leaves out two thirds of the versions between the oldest and the newest one
# (docs/decisions/0033-campaigns-by-thirds.md).
# The linters, packages that the tests import, and uv for the tests of what machines install are installed once,
# from the machine's own package index; `tools` does nothing else.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TOOLS=(ruff==0.17.6 mypy==2.4.1 "numpy>=2,<3" "pandas>=2,<4" "pyarrow>=20" "cloudpickle>=3,<4" "lz4>=4,<5" uv==0.13.9)
OLDEST=3.10
NEWEST=3.14
TO=$SKYWARD_CACHE/python-tools

# The mark comes last: half an installation is begun again, and so are other versions.
if [ "$(cat "$TO/complete" 2>/dev/null)" != "${TOOLS[*]}" ]; then
  rm -rf "$TO"
  virtual_environment "$TO" >&2 ||
    die "python3 makes no virtual environments here"
  "$TO/bin/pip" install --quiet --no-compile --disable-pip-version-check --only-binary :all: "${TOOLS[@]}" >&2 ||
    die "pip could not install ${TOOLS[*]}; without them the Python package is not checked"
  printf '%s' "${TOOLS[*]}" >"$TO/complete"
fi

lint() {
  local version
  "$TO/bin/ruff" check --no-cache "$SKYWARD_ROOT/python"
  # mypy knows the library of each: the oldest lacks what is new, the newest what was taken away.
  for version in $OLDEST $NEWEST; do
    say "mypy for Python $version"
    env -C "$SKYWARD_ROOT/python" "$TO/bin/mypy" --cache-dir "$SKYWARD_CACHE/mypy" --python-version "$version"
  done
}

# Interpreters of these versions, the oldest first: a line with the version and the path of each.
interpreters() {
  local python version
  for python in "$TO/bin/python3" /usr/bin/python3 python3.{10..14} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3; do
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    [ "$(printf '%s\n' $OLDEST "$version" $NEWEST | sort -V | sed -n 2p)" = "$version" ] || continue
    printf '%s %s\n' "$version" "$python"
  done | sort -V -s -u -k1,1
}

# All versions at once, since their tests wait for processes; what each says is shown as a whole.
tests() {
  local said line version number=0 failed=0 found=()
  local -A running=()
  said=$(mktemp -d)
  mapfile -t found < <(interpreters)
  for line in "${found[@]}"; do
    number=$((number + 1))
    version=${line%% *}
    if ((number > 1 && number < ${#found[@]})) && [ -n "${SKYWARD_THIRD:-}" ] && ((number % 3 != SKYWARD_THIRD)); then
      printf 'Python %s: not in this third\n' "$version"
      continue
    fi
    printf 'Python %s (%s)\n' "$version" "${line#* }" >"$said/$version"
    env -C "$SKYWARD_ROOT/python" PYTHONPYCACHEPREFIX="$said/pycache" "${line#* }" -m unittest discover >>"$said/$version" 2>&1 &
    running[$version]=$!
  done
  for line in "${found[@]}"; do
    version=${line%% *}
    [ -n "${running[$version]:-}" ] || continue
    wait "${running[$version]}" || failed=1
    cat "$said/$version"
  done
  rm -rf "$said"
  return $failed
}

case ${1:-} in
  lint) lint ;;
  test) tests ;;
  tools) ;;
  *) die "hack/python.sh lint|test|tools" ;;
esac
