# Finds the versions of the Python packages, for all machines of the Pool.
# Expects: requirements (a file's content), project (a file's content), most (bytes), digest, env.
# Comes after uv.sh and requirements.sh.
set -u
skyward_list=$skyward_env/.skyward/lock.txt
if [ -s "$skyward_env/.skyward/packages.done" ] && [ -e "$skyward_env/.skyward/installed.txt" ]; then
  # A controller that ended before it had kept them left them here.
  skyward_list=$skyward_env/.skyward/installed.txt
else
  make_environment
  write_requirements
  if [ "$(cat resolve.done 2>/dev/null)" != "$skyward_digest" ]; then
    rm -f lock.txt.tmp
    set -- requirements.txt
    if [ -n "$skyward_project" ]; then set -- "$@" pyproject.toml; fi
    "$skyward_uv" pip compile --quiet --python "$skyward_env/bin/python" --no-header --no-annotate --output-file lock.txt.tmp "$@" </dev/null >/dev/null ||
      die 'the versions of the Python packages could not be found'
    skyward_size=$(wc -c <lock.txt.tmp)
    [ "$skyward_size" -le "$skyward_most" ] || die "the list of versions has $skyward_size bytes; at most $skyward_most are taken. Ask for fewer packages in image.pip"
    mv -f lock.txt.tmp lock.txt || die "the list of versions cannot be written to $skyward_env"
  fi
fi
od -An -v -tx1 "$skyward_list" | tr -d ' \n' | fold -w 60000 | while read -r skyward_part || [ -n "$skyward_part" ]; do say lock "$skyward_part"; done
mark_in_environment resolve "$skyward_digest"
