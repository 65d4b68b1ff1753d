#!/bin/sh
# An attacker in front of a machine: intruder.sh ANSWER PORT [FOLDER [CONFIG]]
#
# An SSH server at PORT with a host key of its own. It lets in whom the machine lets in, carries out at the
# machine what it is asked, and answers the question for the proof of the machine's host key with
#   copied    the machine's own proof
#   garbage   what is no proof
#   nothing   nothing
#   endless   an answer without an end
# FOLDER gets its host key and the commands that it was asked to carry out.
set -eu
answer=$1 port=$2 folder=${3:-/var/lib/cloudsim/intruder} config=${4:-/etc/ssh/sshd_config}
mkdir -p "$folder"
ssh-keygen -q -t ed25519 -N '' -f "$folder/host_key"
: >"$folder/commands"
chmod 666 "$folder/commands"
cat >"$folder/asked" <<'SCRIPT'
#!/bin/sh
asked=${SSH_ORIGINAL_COMMAND:-${SHELL:-/bin/sh}}
printf '%s\n' "$asked" >>"${0%/*}/commands"
case $1:$asked in
  garbage:*skyward_host_key_proof) exec head -c 64 /dev/urandom ;;
  nothing:*skyward_host_key_proof) exit 0 ;;
  endless:*skyward_host_key_proof) exec yes ;;
esac
exec /bin/sh -c "$asked"
SCRIPT
chmod 755 "$folder/asked"
exec /usr/sbin/sshd -D -e -f "$config" -p "$port" -o PidFile=none \
  -o "HostKey=$folder/host_key" -o "ForceCommand=$folder/asked $answer"
