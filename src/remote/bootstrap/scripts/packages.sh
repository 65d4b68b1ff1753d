# Python packages, in the environment that is being made.
# Expects: requirements (a file's content), project (a file's content: packages that come
# from indexes of their own), lock (a file's content: the versions that were found for the whole Pool),
# digest, env, link_mode, bytecode (a program). Comes after uv.sh and requirements.sh.
set -u
# Half of an installation may be there, of these or of other versions: uv takes a package for installed as soon as it
# has a name, whatever files of it are missing.
skyward_file=$skyward_env/.skyward/installed.txt
if [ -e "$skyward_file" ] && { [ ! -s "$skyward_env/.skyward/packages.done" ] || [ "$(cat "$skyward_file")" != "$skyward_lock" ]; }; then
  rm -f "$skyward_env/.skyward/packages.done"
  clear_environment
fi
write "$skyward_file" "$skyward_lock" || die "the list of versions cannot be written to $skyward_env"
make_environment
write_requirements
set -- -r requirements.txt -c installed.txt
if [ -n "$skyward_project" ]; then set -- "$@" -r pyproject.toml; fi
# What the environment in use has compiled, if it has the same version of Python.
skyward_compiled=
for skyward_site in "$skyward_env"/lib/python*/site-packages; do
  skyward_folder=$skyward_home/venv/${skyward_site#"$skyward_env"/}
  if [ "$skyward_link_mode" = hardlink ] && [ -d "$skyward_folder" ]; then
    skyward_compiled=$skyward_folder
    unset UV_COMPILE_BYTECODE
    break
  fi
done
"$skyward_uv" pip install --python "$skyward_env/bin/python" "$@" </dev/null || die 'the Python packages could not be installed'
# Without what is compiled Python only starts more slowly.
if [ -n "$skyward_compiled" ]; then
  "$skyward_env/bin/python" -IS -c "$skyward_bytecode" "$skyward_compiled" "$skyward_site" </dev/null || :
fi
"$skyward_env/bin/python" -Ic '' </dev/null || die "the environment $skyward_env does not run after installing the packages"
mark_in_environment packages "$skyward_digest"
