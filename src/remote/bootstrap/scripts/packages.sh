# Python packages, in an environment that runs find first.
# Expects: requirements (a file's content), project (a file's content: packages that come
# from indexes of their own), digest. Comes after uv.sh.
set -u
if ! "$skyward_home/venv/bin/python" -Ic '' >/dev/null 2>&1; then
  rm -rf "$skyward_home/venv"
  # What the machine brings (drivers' libraries, a vendor's PyTorch) stays visible.
  "$skyward_uv" venv --quiet --python "$(command -v python3)" --system-site-packages "$skyward_home/venv" </dev/null ||
    die "the environment $skyward_home/venv could not be made"
fi
skyward_directory=$skyward_home/bootstrap/packages
mkdir -p "$skyward_directory" && write "$skyward_directory/requirements.txt" "$skyward_requirements" && write "$skyward_directory/pyproject.toml" "$skyward_project" ||
  die "the list of packages cannot be written to $skyward_directory"
set -- -r "$skyward_directory/requirements.txt"
if [ -n "$skyward_project" ]; then set -- "$@" -r "$skyward_directory/pyproject.toml"; fi
cd "$skyward_directory" || exit 1
"$skyward_uv" pip install --python "$skyward_home/venv/bin/python" "$@" </dev/null || die 'the Python packages could not be installed'
"$skyward_home/venv/bin/python" -Ic '' </dev/null || die "the environment $skyward_home/venv does not run after installing the packages"
mark packages "$skyward_digest"
