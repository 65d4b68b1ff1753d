# Python packages, in an environment that runs find first.
# Expects: requirements (a file's content), project (a file's content: packages that come
# from indexes of their own), digest. Comes after uv.sh.
set -u
if ! "$home/venv/bin/python" -Ic '' >/dev/null 2>&1; then
  rm -rf "$home/venv"
  # What the machine brings (drivers' libraries, a vendor's PyTorch) stays visible.
  "$uv" venv --quiet --python "$(command -v python3)" --system-site-packages "$home/venv" </dev/null ||
    die "the environment $home/venv could not be made"
fi
directory=$home/bootstrap/packages
mkdir -p "$directory" && write "$directory/requirements.txt" "$requirements" && write "$directory/pyproject.toml" "$project" ||
  die "the list of packages cannot be written to $directory"
set -- -r "$directory/requirements.txt"
if [ -n "$project" ]; then set -- "$@" -r "$directory/pyproject.toml"; fi
cd "$directory" || exit 1
"$uv" pip install --python "$home/venv/bin/python" "$@" </dev/null || die 'the Python packages could not be installed'
"$home/venv/bin/python" -Ic '' </dev/null || die "the environment $home/venv does not run after installing the packages"
mark packages "$digest"
