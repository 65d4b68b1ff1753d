# A Python other than the machine's own, in an environment of its own.
# Expects: version, digest. Comes after uv.sh.
set -u
"$uv" python install "$version" </dev/null || die "Python $version could not be installed"
if ! "$home/venv/bin/python" -Ic '' >/dev/null 2>&1; then rm -rf "$home/venv"; fi
"$uv" venv --quiet --allow-existing --python "$version" "$home/venv" </dev/null || die "the environment $home/venv could not be made with Python $version"
found=$("$home/venv/bin/python" -ISc 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || die "Python $version was installed but does not run"
say venv_python "$found"
mark python "$digest"
