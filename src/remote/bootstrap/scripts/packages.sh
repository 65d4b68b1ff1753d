# Python packages, in the environment that is being made.
# Expects: requirements (a file's content), project (a file's content: packages that come
# from indexes of their own), lock (a file's content: the versions that were found for the whole Pool),
# digest, env, link_mode. Comes after uv.sh, requirements.sh and bytecode.sh.
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
if [ "$skyward_link_mode" = hardlink ] && is_compiled; then unset UV_COMPILE_BYTECODE; else skyward_compiled=; fi
"$skyward_uv" pip install --python "$skyward_env/bin/python" "$@" </dev/null || die 'the Python packages could not be installed'
# Without what is compiled Python only starts more slowly.
if [ -n "$skyward_compiled" ]; then compile_new || :; fi
"$skyward_env/bin/python" -Ic '' </dev/null || die "the environment $skyward_env does not run after installing the packages"
mark_in_environment packages "$skyward_digest"
