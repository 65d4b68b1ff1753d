# A Python other than the machine's own, in the environment that is being made.
# Expects: version, digest, env. Comes after uv.sh.
set -u
"$skyward_uv" python install "$skyward_version" </dev/null ||
  die "Python $skyward_version could not be installed. uv gets it from its own source of interpreters; for a machine without a way there a ConfigMap of image.stepsEnvFrom names a mirror in UV_PYTHON_INSTALL_MIRROR (https:// or file://)"
clear_broken
"$skyward_uv" venv --quiet --allow-existing --python "$skyward_version" "$skyward_env" </dev/null || die "the environment $skyward_env could not be made with Python $skyward_version"
skyward_found=$("$skyward_env/bin/python" -ISc 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || die "Python $skyward_version was installed but does not run"
say venv_python "$skyward_found"
mark_in_environment python "$skyward_digest"
