# What finding and installing Python packages share.
# Expects: requirements, project, version (of Python; "" = the machine's own), env. Comes after uv.sh.

make_environment() {
  clear_broken
  if [ -x "$skyward_env/bin/python" ]; then return 0; fi
  if [ -n "$skyward_version" ]; then
    set -- --python "$skyward_version"
  else
    # What the machine brings (drivers' libraries, a vendor's PyTorch) stays visible.
    set -- --python "$(command -v python3)" --system-site-packages
  fi
  "$skyward_uv" venv --quiet --allow-existing "$@" "$skyward_env" </dev/null || die "the environment $skyward_env could not be made"
}

# uv reads the indexes of a project from its folder.
write_requirements() {
  write "$skyward_env/.skyward/requirements.txt" "$skyward_requirements" && write "$skyward_env/.skyward/pyproject.toml" "$skyward_project" ||
    die "the list of packages cannot be written to $skyward_env"
  if [ -z "$skyward_project" ]; then rm -f "$skyward_env/.skyward/pyproject.toml"; fi
  cd "$skyward_env/.skyward" || exit 1
}
