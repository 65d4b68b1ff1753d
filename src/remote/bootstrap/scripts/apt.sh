# Debian or Ubuntu packages.
# Expects: packages (words), digest, lock_wait (seconds).
set -u
have apt-get && have dpkg-query || die 'apt packages are asked for, but this machine is neither Debian nor Ubuntu. Use an image that has them, or take them out of image.apt'

# Prints those that are not installed (in the version asked for, if one is).
missing() {
  for package in $packages; do
    name=${package%%=*}
    status=$(dpkg-query -W -f '${db:Status-Status} ${Version}' "$name" 2>/dev/null) || status=
    case $package in
      *=*) [ "$status" = "installed ${package#*=}" ] || printf '%s ' "$package" ;;
      *) case $status in installed\ *) ;; *) printf '%s ' "$package" ;; esac ;;
    esac
  done
}

wanted=$(missing)
if [ -n "$wanted" ]; then
  as_root true || die "apt packages need root, and user \"$(id -un)\" is not root and has no sudo without password. Use an image that has the packages: $wanted"
  DEBIAN_FRONTEND=noninteractive
  NEEDRESTART_MODE=a
  export DEBIAN_FRONTEND NEEDRESTART_MODE
  apt() {
    # env: sudo may drop our environment.
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a LC_ALL=C \
      ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
      ${no_proxy:+no_proxy="$no_proxy"} \
      apt-get -y -q -o "DPkg::Lock::Timeout=$lock_wait" -o Acquire::Retries=3 \
      -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold \
      ${SSL_CERT_FILE:+-o "Acquire::https::CaInfo=$SSL_CERT_FILE"} "$@" </dev/null
  }
  # The lists have a lock of their own, for which apt-get does not wait: a machine that
  # has just booted often updates them by itself.
  update() {
    waited=0
    until apt update >"$home/bootstrap/apt.update" 2>&1; do
      cat "$home/bootstrap/apt.update"
      if ! grep -q 'Could not get lock' "$home/bootstrap/apt.update" || [ "$waited" -ge "$lock_wait" ]; then
        return 1
      fi
      sleep 2
      waited=$((waited + 2))
    done
  }
  known=yes
  for package in $wanted; do
    apt-cache show "$package" >/dev/null 2>&1 || known=no
  done
  # Old lists name versions that are gone: then update and try once more.
  if [ "$known" = no ] || ! apt install --no-install-recommends $wanted; then
    update || die 'the lists of packages could not be updated (apt-get update)'
    apt install --no-install-recommends $wanted || die "these packages could not be installed: $wanted"
  fi
  wanted=$(missing)
  [ -z "$wanted" ] || die "apt-get reported success, but these packages are not installed: $wanted"
fi
mark apt "$digest"
