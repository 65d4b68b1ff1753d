# Put in front of every script. POSIX sh only: the machine may have nothing else.
# What a script expects is set in front of it, with `skyward_` before each name: variables of
# the user are exported beside them, and ours must not take their place, or theirs ours.
# For the same reason a script that has the user's variables calls all of its own so.
# Expects: tag (marks lines meant for us), home (the agent's home; "" while unknown), and in steps of an
# environment env (its folder).
umask 022
LC_ALL=C
export LC_ALL
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

# A line for the controller.
say() { printf '%s %s\n' "$skyward_tag" "$*"; }

# Ends the step; the text is for the user.
die() {
  printf '%s\n' "$*" >&2
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# Replaces a file at once: readers see the old or the new one.
write() {
  printf '%s' "$2" >"$1.tmp.$$" && mv -f "$1.tmp.$$" "$1"
}

# Marks a step as done with the digest of its inputs.
mark() {
  printf '%s\n' "$2" >"$skyward_home/bootstrap/$1.done.tmp.$$" &&
    mv -f "$skyward_home/bootstrap/$1.done.tmp.$$" "$skyward_home/bootstrap/$1.done"
}

# The same for a step that belongs to the environment that is being made.
mark_in_environment() {
  printf '%s\n' "$2" >"$skyward_env/.skyward/$1.done.tmp.$$" &&
    mv -f "$skyward_env/.skyward/$1.done.tmp.$$" "$skyward_env/.skyward/$1.done"
}

# Runs a command as root, for logins that may.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif have sudo && sudo -n true 2>/dev/null; then
    sudo -n "$@"
  else
    return 126
  fi
}

sha256() {
  if have sha256sum; then
    sha256sum "$1" | cut -d' ' -f1
  elif have shasum; then
    shasum -a 256 "$1" | cut -d' ' -f1
  elif have openssl; then
    openssl dgst -sha256 -r "$1" | cut -d' ' -f1
  fi
}

# If we are given up, this is the group of processes to end.
say pid "$$"
