# Debian or Ubuntu packages.
# Expects: packages (words), digest, lock_wait (seconds), env. Comes after bundle.sh. The user's variables are here.
set -u
have apt-get && have dpkg-query || die 'apt packages are asked for, but this machine is neither Debian nor Ubuntu. Use an image that has them, or take them out of image.apt'

# Prints the packages that are not installed (in the version asked for, if one is).
missing() {
  for skyward_package in $skyward_packages; do
    skyward_name=${skyward_package%%=*}
    skyward_status=$(dpkg-query -W -f '${db:Status-Status} ${Version}' "$skyward_name" 2>/dev/null) || skyward_status=
    case $skyward_package in
      *=*) [ "$skyward_status" = "installed ${skyward_package#*=}" ] || printf '%s ' "$skyward_package" ;;
      *) case $skyward_status in installed\ *) ;; *) printf '%s ' "$skyward_package" ;; esac ;;
    esac
  done
}

skyward_wanted=$(missing)
if [ -n "$skyward_wanted" ]; then
  as_root true || die "apt packages need root, and user \"$(id -un)\" is not root and has no sudo without password. Use an image that has the packages: $skyward_wanted"
  DEBIAN_FRONTEND=noninteractive
  NEEDRESTART_MODE=a
  export DEBIAN_FRONTEND NEEDRESTART_MODE
  # sudo may drop our environment, and what stands in an argument everybody on the machine may
  # read: the addresses of proxies, which may hold passwords, go over standard input.
  apt() {
    printf '%s\n' "${http_proxy:-}" "${https_proxy:-}" "${no_proxy:-}" | as_root sh -c '
      read -r http_proxy; read -r https_proxy; read -r no_proxy
      [ -z "$http_proxy" ] || export http_proxy
      [ -z "$https_proxy" ] || export https_proxy
      [ -z "$no_proxy" ] || export no_proxy
      exec "$@" </dev/null' sh env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a LC_ALL=C \
      apt-get -y -q -o "DPkg::Lock::Timeout=$skyward_lock_wait" -o Acquire::Retries=3 \
      -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold \
      ${SSL_CERT_FILE:+-o "Acquire::https::CaInfo=$SSL_CERT_FILE"} "$@"
  }
  # The lists have a lock of their own, for which apt-get does not wait: a machine that
  # has just booted often updates them by itself.
  update() {
    skyward_waited=0
    until apt update >"$skyward_home/bootstrap/apt.update" 2>&1; do
      cat "$skyward_home/bootstrap/apt.update"
      if ! grep -q 'Could not get lock' "$skyward_home/bootstrap/apt.update" || [ "$skyward_waited" -ge "$skyward_lock_wait" ]; then
        return 1
      fi
      sleep 2
      skyward_waited=$((skyward_waited + 2))
    done
  }
  skyward_known=yes
  for skyward_package in $skyward_wanted; do
    apt-cache show "$skyward_package" >/dev/null 2>&1 || skyward_known=no
  done
  # Old lists name versions that are gone: then update and try once more.
  if [ "$skyward_known" = no ] || ! apt install --no-install-recommends $skyward_wanted; then
    update || die 'the lists of packages could not be updated (apt-get update)'
    apt install --no-install-recommends $skyward_wanted || die "these packages could not be installed: $skyward_wanted"
  fi
  skyward_wanted=$(missing)
  [ -z "$skyward_wanted" ] || die "apt-get reported success, but these packages are not installed: $skyward_wanted"
fi
renew_bundle
mark apt "$skyward_digest"
