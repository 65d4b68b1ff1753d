# One round trip: what kind of machine is it, our key and no other, the worker's user,
# and what is there already.
# Expects: wanted_home, authorized_key, worker_user, git_user, hidden (names of variables, with | in
# between), environment (the name of the one to make; "" = none), agent_x86_64, agent_aarch64 (file names of the agent for each architecture, ""
# where there is none), of_image (the folder in which an image may bring agents).
set -u

say step probe
uid=$(id -u) || die 'the machine has no `id` command'
user=$(id -un 2>/dev/null) || user=$uid
arch=$(uname -m)
say os "$(uname -s)"
say arch "$arch"
say uid "$uid"
say user "$user"
say path "$PATH"
if [ -n "$skyward_wanted_home" ]; then
  skyward_home=$skyward_wanted_home
elif [ "$uid" = 0 ]; then
  skyward_home=/opt/skyward
else
  skyward_home=${HOME:?}/.skyward
fi
mkdir -p "$skyward_home/bin" "$skyward_home/bootstrap" || die "the directory $skyward_home cannot be made: a full disk, or user \"$user\" may not write there"
chmod 755 "$skyward_home" "$skyward_home/bin"
chmod 700 "$skyward_home/bootstrap"
say home "$skyward_home"
free=$(df -Pk "$skyward_home" 2>/dev/null | awk 'NR == 2 { print $4 }')
say disk_free_kb "${free:-}"
# A Python that comes later, as a Debian package or with uv, is not the machine's own: each environment is made on the
# Python that a new machine gets.
if [ ! -e "$skyward_home/bootstrap/no_python" ]; then
  if python=$(command -v python3 2>/dev/null); then
    version=$("$python" -ISc 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null </dev/null) || version=
    say python "$version"
  else
    touch "$skyward_home/bootstrap/no_python" 2>/dev/null || :
  fi
fi
if have apt-get && have dpkg-query; then say apt yes; fi
if have gzip; then say gzip yes; fi

say step authorized_keys
keys=${HOME:?}/.ssh/authorized_keys
if [ -n "$skyward_authorized_key" ] && [ "$(cat "$keys" 2>/dev/null)" != "$skyward_authorized_key" ]; then
  # Some clouds put every key of the account on every machine. Where the file does not
  # exist and cannot be made, the machine takes our key from elsewhere.
  if mkdir -p "$HOME/.ssh" 2>/dev/null && chmod 700 "$HOME/.ssh" 2>/dev/null &&
    (umask 077 && printf '%s\n' "$skyward_authorized_key" >"$keys.tmp.$$") 2>/dev/null; then
    mv -f "$keys.tmp.$$" "$keys" || die "$keys cannot be replaced by the Pool's key alone"
  elif [ -e "$keys" ]; then
    die "$keys holds other keys than the Pool's and cannot be written"
  fi
fi
if [ -s "$HOME/.ssh/authorized_keys2" ]; then
  rm -f "$HOME/.ssh/authorized_keys2" || die "$HOME/.ssh/authorized_keys2 holds other keys and cannot be removed"
fi

say step user
if [ "$uid" = 0 ] && [ -n "$skyward_worker_user" ] && [ "$skyward_worker_user" != root ]; then
  if ! id -u "$skyward_worker_user" >/dev/null 2>&1; then
    shell=$(command -v bash 2>/dev/null) || shell=/bin/sh
    if have useradd; then
      useradd --no-log-init --create-home --home-dir "/home/$skyward_worker_user" --shell "$shell" "$skyward_worker_user" >&2 ||
        id -u "$skyward_worker_user" >/dev/null 2>&1 || die "the user \"$skyward_worker_user\" could not be made with useradd"
    elif have adduser; then
      adduser -D -h "/home/$skyward_worker_user" -s "$shell" "$skyward_worker_user" >&2 ||
        id -u "$skyward_worker_user" >/dev/null 2>&1 || die "the user \"$skyward_worker_user\" could not be made with adduser"
    else
      die "the user \"$skyward_worker_user\" cannot be made: the machine has neither useradd nor adduser. Use an image that has the user, or set worker.user to root"
    fi
  fi
  worker_home=$(awk -F: -v user="$skyward_worker_user" '$1 == user { print $6; exit }' /etc/passwd)
  if [ -n "$worker_home" ] && [ ! -d "$worker_home" ]; then
    mkdir -p "$worker_home" && chown "$skyward_worker_user:" "$worker_home" || die "the home $worker_home of user \"$skyward_worker_user\" cannot be made"
  fi
fi

if [ "$uid" = 0 ] && [ -n "$skyward_git_user" ] && ! id -u "$skyward_git_user" >/dev/null 2>&1; then
  # A machine that cannot have it runs everything but what is fetched from git, and then says so.
  if have useradd; then
    useradd --no-log-init --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$skyward_git_user" >&2 || :
  elif have adduser; then
    adduser -S -D -H -h /nonexistent -s /sbin/nologin "$skyward_git_user" >&2 || :
  fi
fi

if [ -n "$skyward_hidden" ]; then
  # What the cloud keeps for itself: out of what logins and login shells read.
  pattern="^[[:space:]]*((export|declare +-x) +)?($skyward_hidden)="
  for file in /etc/environment /etc/rp_environment /etc/profile /etc/profile.d/*.sh /etc/bash.bashrc /etc/bashrc \
    "$HOME/.profile" "$HOME/.bash_profile" "$HOME/.bash_login" "$HOME/.bashrc" "$HOME/.ssh/environment"; do
    grep -Eqs "$pattern" "$file" || continue
    rest=$(grep -Ev "$pattern" "$file") || rest=
    printf '%s\n' "$rest" >"$file" || die "$file holds a key of the cloud for its machine and cannot be written"
  done
fi

say step agent
case $arch in
  x86_64) agent=$skyward_agent_x86_64 ;;
  aarch64) agent=$skyward_agent_aarch64 ;;
  *) agent= ;;
esac
# Our own image brings its release's agent, so that none need be sent. A copied agent is measured like a sent one, and an agent
# with another digest is sent anew.
if [ -n "$agent" ] && [ ! -e "$skyward_home/bin/$agent" ] && [ -f "$skyward_of_image/$agent" ]; then
  if cp "$skyward_of_image/$agent" "$skyward_home/bin/.$agent.$$" 2>/dev/null && chmod 755 "$skyward_home/bin/.$agent.$$"; then
    mv -f "$skyward_home/bin/.$agent.$$" "$skyward_home/bin/$agent"
  else
    rm -f "$skyward_home/bin/.$agent.$$"
  fi
fi
if [ -n "$agent" ] && [ -x "$skyward_home/bin/$agent" ]; then say agent_digest "$(sha256 "$skyward_home/bin/$agent")"; fi
if [ -S "$skyward_home/agent.sock" ]; then say socket yes; fi
# Which environment runs find, by the link to it; an older release made a folder, which has no name.
used=$(readlink "$skyward_home/venv" 2>/dev/null) || used=
used=${used##*/}
say environment "$used"
env=
if [ -n "$skyward_environment" ]; then
  env=$skyward_home/envs/$skyward_environment
  mkdir -p "$env/.skyward" && chmod 700 "$env/.skyward" || die "the directory $env cannot be made: is the disk full?"
  # Nothing runs while an environment is made: what is neither in use nor wanted goes, in the background, and under
  # another name. It may be wanted again before all of it is gone, with marks of steps whose work is gone.
  for other in "$skyward_home"/envs/*; do
    case ${other##*/} in
      "$used" | "$skyward_environment" | '*') ;;
      *) mv "$other" "$skyward_home/envs/.former.$$.${other##*/}" || die "the directory $other cannot be renamed" ;;
    esac
  done
  (rm -rf "$skyward_home"/envs/.former.* </dev/null >/dev/null 2>&1 &)
fi
if [ -s "$skyward_home/env.json" ]; then say env_digest "$(sha256 "$skyward_home/env.json")"; fi
for file in "$skyward_home/bootstrap/apt.done" ${env:+"$env"/.skyward/*.done}; do
  [ -s "$file" ] || continue
  step=${file##*/}
  say "done" "${step%.done}" "$(cat "$file")"
done
if [ -n "$env" ] && [ -s "$env/.skyward/shell_vars.values" ]; then
  while read -r name value; do say var "$name" "$value"; done <"$env/.skyward/shell_vars.values"
fi
say prepared yes
