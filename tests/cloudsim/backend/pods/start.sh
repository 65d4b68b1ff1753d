#!/bin/sh
# First process of a simulated machine that is a Pod: what a cloud's image and its
# first boot would do. What to do comes in SIM_ variables:
#   SIM_USER              the user that the keys go to
#   SIM_KEYS              authorized_keys, a line each
#   SIM_PASSWORD          the password with which the user may log in, if the cloud makes one
#   SIM_INIT              what cloud-init does before sshd answers, for #cloud-config
#   SIM_MODE              user-data | on-start | command | nothing
#   SIM_SCRIPT            user data or start script, in base64
#   SIM_PORT              a port besides 22 that leads to sshd
#   SIM_GPUS              names of NVIDIA GPUs, a line each
#   SIM_INTRUDER          what an attacker answers that stands in front of the machine, if one does
#   SIM_FORWARD, SIM_IMDS_PROXY, SIM_INTRUDER_PROGRAM   programs of ours
# Arguments are the command of SIM_MODE=command.
set -u
umask 022
export DEBIAN_FRONTEND=noninteractive
mode=$SIM_MODE user=$SIM_USER keys=$SIM_KEYS script=$SIM_SCRIPT port=$SIM_PORT
init=$SIM_INIT gpus=$SIM_GPUS forward=$SIM_FORWARD imds_proxy=$SIM_IMDS_PROXY
intruder=${SIM_INTRUDER:-} intruder_program=${SIM_INTRUDER_PROGRAM:-} password=${SIM_PASSWORD:-}
unset SIM_MODE SIM_USER SIM_KEYS SIM_SCRIPT SIM_PORT SIM_INIT SIM_GPUS SIM_FORWARD SIM_IMDS_PROXY
unset SIM_INTRUDER SIM_INTRUDER_PROGRAM SIM_PASSWORD

child=
# TERM is the power button: the simulator sends it to halt the machine.
trap 'trap "" TERM INT; [ -z "$child" ] || kill "$child" 2>/dev/null; exit 0' TERM INT
# The Pod has the image of our own Pods; the images of clouds have neither uv nor an agent.
rm -rf /usr/local/bin/uv /usr/local/share/skyward
mkdir -p /run/sshd /var/lib/cloudsim
chmod 755 /run/sshd

# A Pod has no init: these stand for its halt commands.
cat >/usr/sbin/shutdown <<'SCRIPT'
#!/bin/sh
# shutdown [-h|-P|-r] [now|+MINUTES|MINUTES] | -c
delay=60
for word in "$@"; do
  case $word in
    -c)
      [ ! -f /run/shutdown.pid ] || kill "$(cat /run/shutdown.pid)" 2>/dev/null
      rm -f /run/shutdown.pid
      exit 0
      ;;
    now | +0) delay=0 ;;
    +[0-9]*) delay=$((${word#+} * 60)) ;;
    [0-9]*) delay=$((word * 60)) ;;
  esac
done
if [ "$delay" = 0 ]; then
  kill -TERM 1
else
  (
    trap '' HUP
    sleep "$delay"
    kill -TERM 1
  ) </dev/null >/dev/null 2>&1 &
  echo $! >/run/shutdown.pid
fi
SCRIPT
chmod 755 /usr/sbin/shutdown
printf '#!/bin/sh\nexec kill -TERM 1\n' >/usr/sbin/poweroff
chmod 755 /usr/sbin/poweroff
ln -sf poweroff /usr/sbin/halt

# Images of machines with GPUs have the driver's command. There is no driver here: it
# only names what was rented, as `nvidia-smi -L` does.
if [ -n "$gpus" ]; then
  {
    printf '#!/bin/sh\ncat <<LIST\n'
    printf '%s\n' "$gpus" | awk '{ printf "GPU %d: %s (simulated)\n", NR - 1, $0 }'
    printf 'LIST\n'
  } >/usr/bin/nvidia-smi
  chmod 755 /usr/bin/nvidia-smi
fi

# Users of cloud images may become root without a password. The image has no sudo;
# su, which it has, can do the same for a group.
if { [ "$user" != root ] || [ -n "$init" ]; } && ! command -v sudo >/dev/null; then
  groupadd -f sudo
  sed -i '1i auth sufficient pam_wheel.so trust group=sudo' /etc/pam.d/su
  cat >/usr/bin/sudo <<'SCRIPT'
#!/bin/sh
user=root
shell=
while [ $# -gt 0 ]; do
  case $1 in
    -u) user=$2 && shift 2 ;;
    -i | -s) shell=yes && shift ;;
    -v | -l | -k) exit 0 ;;
    --) shift && break ;;
    -*) shift ;;
    *) break ;;
  esac
done
while [ $# -gt 0 ]; do
  case $1 in
    [A-Za-z_]*=*) export "$1" && shift ;;
    *) break ;;
  esac
done
[ -z "$shell" ] || [ $# -gt 0 ] || set -- /bin/bash
if [ "$(id -un)" = "$user" ]; then exec "$@"; fi
exec su "$user" -s /bin/sh -c 'exec "$@"' -- sh "$@"
SCRIPT
  chmod 755 /usr/bin/sudo
fi
id "$user" >/dev/null 2>&1 || useradd -m -s /bin/bash "$user"
[ "$user" = root ] || usermod -aG sudo "$user"
home=$(getent passwd "$user" | cut -d: -f6)

put_keys() {
  [ -n "$keys" ] || return 0
  mkdir -p "$home/.ssh"
  printf '%s\n' "$keys" >>"$home/.ssh/authorized_keys"
  chmod 700 "$home/.ssh"
  chmod 600 "$home/.ssh/authorized_keys"
  chown -R "$user:" "$home/.ssh"
}

# Images let nobody in with a password. The first value of a setting counts, so these come first; an
# attacker reads the same file.
if [ -n "$password" ]; then
  printf '%s:%s\n' "$user" "$password" | chpasswd
  sed -i '1i PasswordAuthentication yes\nPermitRootLogin yes' /etc/ssh/sshd_config
fi

# Not `ssh-keygen -A`, as a real machine does: an RSA key takes half a second of a processor, and no client asks for it.
run_sshd() {
  for kind in ecdsa ed25519; do
    file=/etc/ssh/ssh_host_${kind}_key
    [ -f "$file" ] || ssh-keygen -q -t "$kind" -N '' -f "$file"
  done
  /usr/sbin/sshd -D -e -p "$own" &
}

# Where the machine's own server listens, and where its users come in: an attacker takes the way in.
own=22 way_in=22
if [ -n "$intruder" ]; then
  if [ -n "$port" ]; then way_in=2022; else own=2022; fi
  printf '%s' "$intruder_program" >/var/lib/cloudsim/intruder.sh
  sh /var/lib/cloudsim/intruder.sh "$intruder" "$way_in" &
fi
if [ -n "$port" ]; then
  printf '%s' "$forward" >/var/lib/cloudsim/forward.py
  python3 /var/lib/cloudsim/forward.py "$port" "$way_in" &
fi
if [ -n "${SKYWARD_SIM_IMDS:-}" ]; then
  ip address add 169.254.169.254/32 dev lo
  printf '%s' "$imds_proxy" >/var/lib/cloudsim/imds-proxy.py
  python3 /var/lib/cloudsim/imds-proxy.py &
fi
unset SKYWARD_SIM_IMDS

case $mode in
  command)
    # Nothing but what the client says; it must start sshd itself.
    "$@" &
    child=$!
    wait "$child"
    exit
    ;;
  user-data)
    # As cloud-init: keys, then sshd, and user data beside it, once, as root.
    put_keys
    [ -z "$init" ] || sh -c "$init"
    run_sshd
    if [ -n "$script" ] && [ ! -e /var/lib/cloudsim/user-data ]; then
      printf '%s' "$script" | base64 -d >/var/lib/cloudsim/user-data
      chmod 700 /var/lib/cloudsim/user-data
      env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        /var/lib/cloudsim/user-data >/var/log/cloud-init-output.log 2>&1 </dev/null &
    fi
    ;;
  on-start)
    put_keys
    run_sshd
    if [ -n "$script" ]; then
      printf '%s' "$script" | base64 -d >/var/lib/cloudsim/on-start
      bash /var/lib/cloudsim/on-start >/var/log/onstart.log 2>&1 </dev/null &
    fi
    ;;
  *)
    put_keys
    run_sshd
    ;;
esac

# Reaps whatever loses its parent, until the power button.
while :; do
  sleep 3600 &
  child=$!
  wait "$child"
done
