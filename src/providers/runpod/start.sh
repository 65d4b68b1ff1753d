# First process of a machine at RunPod: lets the Pool's key in, starts what every machine
# is told at its first boot, and keeps an SSH server running. The image may lack one.
mkdir -p /root/.ssh /run/sshd
chmod 700 /root /root/.ssh
printf '%s\n' "$PUBLIC_KEY" > /root/.ssh/authorized_keys
chmod 600 /root/.ssh/authorized_keys
# What SSH sessions would not see otherwise; keys of the cloud are left out.
env | grep -E '^(PATH|LD_LIBRARY_PATH|LIBRARY_PATH|CUDA_[A-Z_]+|NVIDIA_[A-Z_]+|NCCL_[A-Z_]+|RUNPOD_POD_ID|RUNPOD_DC_ID)=' >> /etc/environment
if [ -n "$SKYWARD_BOOT" ]; then
  printf '%s' "$SKYWARD_BOOT" | base64 -d > /root/.skyward-boot
  sh /root/.skyward-boot
  rm -f /root/.skyward-boot
fi
unset SKYWARD_BOOT
tries=0
until [ -x /usr/sbin/sshd ]; do
  tries=$((tries + 1))
  if [ "$tries" -gt 5 ]; then
    echo 'skyward: the image has no openssh-server and none could be installed' >&2
    exit 64
  fi
  (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openssh-server) || sleep 5
done
ssh-keygen -A
# Of a container that was started again with its disk: it stops itself when nobody needs it.
if [ -f /opt/skyward/boot.sh ]; then sh /opt/skyward/boot.sh </dev/null >>/opt/skyward/agent.log 2>&1 & fi
# The first process of a container gets no signal that it has no handler for.
trap 'exit 143' TERM INT
while :; do
  /usr/sbin/sshd -D -e -p 22 -o PermitRootLogin=prohibit-password -o PasswordAuthentication=no -o AllowStreamLocalForwarding=yes -o AllowTcpForwarding=yes &
  wait $!
  sleep 1
done
