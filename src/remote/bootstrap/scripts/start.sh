# The agent, which goes on without us.
# Expects: agent (file name), machine, worker_user,
# stop_command, reclaim_command ("" = none), hidden (names of variables, between commas).
set -u
set -- start --home "$skyward_home" --machine "$skyward_machine" --user "$skyward_worker_user"
if [ -n "$skyward_stop_command" ]; then set -- "$@" --stop-command "$skyward_stop_command"; fi
if [ -n "$skyward_reclaim_command" ]; then set -- "$@" --reclaim-command "$skyward_reclaim_command"; fi
if [ -n "$skyward_hidden" ]; then set -- "$@" --hide "$skyward_hidden"; fi
"$skyward_home/bin/$skyward_agent" "$@" </dev/null || die "the agent could not be started (exit code $?)"
[ -S "$skyward_home/agent.sock" ] || die "the agent was started but did not open its socket $skyward_home/agent.sock"
