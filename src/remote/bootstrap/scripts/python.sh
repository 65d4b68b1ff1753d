# A Python other than the machine's own, in an environment of its own.
# Expects: version, digest. Comes after uv.sh.
set -u
"$skyward_uv" python install "$skyward_version" </dev/null || die "Python $skyward_version could not be installed"
if ! "$skyward_home/venv/bin/python" -Ic '' >/dev/null 2>&1; then rm -rf "$skyward_home/venv"; fi
"$skyward_uv" venv --quiet --allow-existing --python "$skyward_version" "$skyward_home/venv" </dev/null || die "the environment $skyward_home/venv could not be made with Python $skyward_version"
skyward_found=$("$skyward_home/venv/bin/python" -ISc 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || die "Python $skyward_version was installed but does not run"
say venv_python "$skyward_found"
mark python "$skyward_digest"
