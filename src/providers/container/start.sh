#!/bin/sh
# First process of a machine that is a Pod, whatever image it has.
#
# It makes a host key that no other machine has, prints its public half (the
# controller reads it through the API server, so it need not trust the network),
# starts an SSH server that only the Pool's key may enter, and reaps what others
# leave behind: in a container the first process inherits every orphan.
#
# TERM ends the machine at once: the kernel kills whatever is left in it.
# Exit codes: 0 asked to stop; 64 the image cannot be used; 65 sshd does not stay up.
set -u
umask 022
unset SKYWARD_START

image_path=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
PATH=$image_path:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
user=${SKYWARD_SSH_USER:-root}
port=${SKYWARD_SSH_PORT:-2222}

fail() {
  code=$1
  shift
  printf 'skyward-error: %s\n' "$*"
  # The kubelet shows this file in the Pod's status.
  { printf 'skyward-error: %s\n' "$*" >/dev/termination-log; } 2>/dev/null
  exit "$code"
}

# Set before anything that takes time, or the first process would ignore TERM.
child=
trap 'trap "" TERM INT; [ -z "$child" ] || kill "$child" 2>/dev/null; exit 0' TERM INT

sshd=$(command -v sshd) ||
  fail 64 'the image has no sshd. Use an image with an SSH server (Debian and Ubuntu: apt-get install openssh-server), or leave "image" out of the Provider to use the one of Skyward.'
command -v ssh-keygen >/dev/null ||
  fail 64 'the image has sshd but no ssh-keygen, which makes its host key. Install the whole of openssh-server in the image.'

if [ "$(id -u)" = 0 ]; then
  dir=/run/skyward
  # sshd wants it, and no init has made it.
  { mkdir -p /run/sshd && chmod 755 /run/sshd; } || fail 64 'the file system of the image cannot be written: /run/sshd'
  # sshd refuses an account that is locked, even to a key; some images lock root.
  if [ -f /etc/shadow ] && grep -q "^$user:!" /etc/shadow; then
    sed -i "s/^$user:![^:]*:/$user:*:/" /etc/shadow
  fi
else
  dir=$HOME/.skyward-sshd
fi
{ mkdir -p "$dir" && chmod 755 "$dir"; } || fail 64 "the file system of the image cannot be written: $dir"
grep -q "^$user:" /etc/passwd ||
  fail 64 "the image has no user \"$user\". Create it in the image, or set sshUser of the Provider to a user that it has."

rm -f "$dir/host_ed25519" "$dir/host_ed25519.pub"
ssh-keygen -q -t ed25519 -N '' -C '' -f "$dir/host_ed25519" || fail 64 'ssh-keygen could not make a host key.'
printf '%s\n' "${SKYWARD_AUTHORIZED_KEY:-}" >"$dir/authorized_keys"

# Programs started over SSH do not inherit the environment of the image; where CUDA
# and Python are must not be lost.
set_env=
for name in PATH LD_LIBRARY_PATH LIBRARY_PATH CUDA_HOME CUDA_VERSION NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES \
  CONDA_PREFIX VIRTUAL_ENV LANG LC_ALL; do
  eval "value=\${$name-}"
  [ "$name" != PATH ] || value=$image_path
  case $value in
    '' | *[!a-zA-Z0-9_./:,=@%+~-]*) continue ;;
  esac
  set_env="$set_env $name=$value"
done

configure() {
  cat >"$dir/sshd_config" <<CONFIG
Port $port
HostKey $dir/host_ed25519
PidFile none
AuthorizedKeysFile $dir/authorized_keys
StrictModes no
AllowUsers $user
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
ChallengeResponseAuthentication no
PermitRootLogin prohibit-password
UsePAM no
UseDNS no
AllowStreamLocalForwarding yes
AllowTcpForwarding local
AllowAgentForwarding no
X11Forwarding no
PermitTunnel no
PermitUserEnvironment no
PrintMotd no
PrintLastLog no
MaxSessions 200
MaxStartups 200
LoginGraceTime 30
ClientAliveInterval 30
ClientAliveCountMax 4
Subsystem sftp internal-sftp
$1
CONFIG
}
configure "${set_env:+SetEnv$set_env}"
# An old sshd does not know SetEnv.
"$sshd" -t -f "$dir/sshd_config" >/dev/null 2>&1 || configure ''
answer=$("$sshd" -t -f "$dir/sshd_config" 2>&1) || fail 64 "the sshd of the image refuses its configuration: $answer"

printf 'skyward-host-key: %s\n' "$(cut -d ' ' -f 1,2 "$dir/host_ed25519.pub")"

# A shell starts what it puts in the background deaf to INT and QUIT, and every Task
# would inherit that.
undeaf=
! env --default-signal=INT,QUIT true 2>/dev/null || undeaf='env --default-signal=INT,QUIT'

# Whatever kills sshd (a Task with too many rights, the kernel short of memory) must
# not cost the machine: it comes back with the same host key.
quick=0
while :; do
  started=$(date +%s)
  # shellcheck disable=SC2086 # two words, or none
  $undeaf "$sshd" -D -e -f "$dir/sshd_config" &
  child=$!
  wait "$child"
  code=$?
  if [ $(($(date +%s) - started)) -lt 5 ]; then quick=$((quick + 1)); else quick=0; fi
  [ "$quick" -lt 5 ] || fail 65 "sshd ends as soon as it starts (exit code $code); the log of the Pod has its words."
  sleep 1 &
  child=$!
  wait "$child"
done
