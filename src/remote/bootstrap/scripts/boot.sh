# Where systemd runs the machine, it starts the agent at each boot: a machine that came back
# without one would never stop itself. Before the agent is started for the first time, since
# nothing comes here again afterwards. Not worth to fail for: we start the agent as well.
# Expects: launcher (a script), unit, units (the folder of systemd's units), systemd (a folder
# that exists where it runs).
boot() {
  [ -d "$skyward_systemd" ] && as_root true || return 0
  service=$skyward_units/skyward-agent.service
  wanted=$skyward_units/multi-user.target.wants
  write "$skyward_home/boot.sh" "$skyward_launcher" || return 1
  if [ "$(cat "$service" 2>/dev/null)" != "$skyward_unit" ]; then
    printf '%s\n' "$skyward_unit" | as_root tee "$service.tmp.$$" >/dev/null &&
      as_root mv -f "$service.tmp.$$" "$service" || return 1
  fi
  # What `systemctl enable` does. It is read at the next boot: nothing is started now.
  as_root mkdir -p "$wanted" && as_root ln -sfn ../skyward-agent.service "$wanted/skyward-agent.service"
}
boot || echo "the agent will not be started when the machine reboots" >&2
