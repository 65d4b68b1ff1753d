# What starts the machine starts the agent too: a machine that came back without one would never
# stop itself. Before the agent is started for the first time, since nothing comes here again
# afterwards. Not worth to fail for: we start the agent as well, whenever none answers.
# Expects: launcher (a script), unit, units (the folder of systemd's units), systemd (a folder
# that exists where it runs), local (a script), locals (the folder of OpenRC's local scripts),
# openrc (a folder that exists where it runs), entry (a line), entries (the folder of cron's).
leave() {
  if [ "$(cat "$1" 2>/dev/null)" != "$2" ]; then
    printf '%s\n' "$2" | as_root tee "$1.tmp.$$" >/dev/null &&
      as_root chmod "$3" "$1.tmp.$$" && as_root mv -f "$1.tmp.$$" "$1"
  fi
}
boot() {
  # Also where nothing below starts it: the first process of some containers does.
  write "$skyward_home/boot.sh" "$skyward_launcher" || return 1
  if ! as_root true; then
    return 0
  elif [ -d "$skyward_systemd" ]; then
    wanted=$skyward_units/multi-user.target.wants
    leave "$skyward_units/skyward-agent.service" "$skyward_unit" 644 || return 1
    # What `systemctl enable` does. It is read at the next boot: nothing is started now.
    as_root mkdir -p "$wanted" && as_root ln -sfn ../skyward-agent.service "$wanted/skyward-agent.service"
  elif [ -d "$skyward_openrc" ] && [ -d "$skyward_locals" ]; then
    leave "$skyward_locals/skyward-agent.start" "$skyward_local" 755 || return 1
    if have rc-update; then as_root rc-update -q add local default >/dev/null; fi
  elif [ -d "$skyward_entries" ] && { have cron || have crond; }; then
    # A name without a dot and no more rights than these, or it is not read.
    leave "$skyward_entries/skyward-agent" "$skyward_entry" 644
  fi
}
boot || echo "the agent will not be started when the machine reboots" >&2
