# The environment of every run, then the agent, which goes on without us.
# Expects: env_json ("" = is right already), agent (file name), machine, worker_user,
# stop_command, reclaim_command ("" = none), hidden (names of variables, between commas).
set -u
if [ -n "$env_json" ]; then
  (umask 077 && write "$home/env.json" "$env_json") || die "the environment of runs cannot be written to $home/env.json"
fi
set -- start --home "$home" --machine "$machine" --user "$worker_user"
if [ -n "$stop_command" ]; then set -- "$@" --stop-command "$stop_command"; fi
if [ -n "$reclaim_command" ]; then set -- "$@" --reclaim-command "$reclaim_command"; fi
if [ -n "$hidden" ]; then set -- "$@" --hide "$hidden"; fi
"$home/bin/$agent" "$@" </dev/null || die "the agent could not be started (exit code $?)"
[ -S "$home/agent.sock" ] || die "the agent was started but did not open its socket $home/agent.sock"
