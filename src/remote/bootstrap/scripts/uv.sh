# Finds or installs uv, which makes environments and installs packages; sets `skyward_uv`.
# Expects: env (the folder of the environment), link_mode (of uv). Comes after bundle.sh.
# The user's variables are here, some of them meant for uv and pip.
UV_PYTHON_INSTALL_DIR=$skyward_home/pythons
UV_CACHE_DIR=$skyward_home/cache/uv
UV_NO_PROGRESS=1
# An interpreter is found by its environment, and leaves no link in the home of the login.
UV_PYTHON_INSTALL_BIN=0
# Where work cannot write into what is installed it may be one file with the cache, and Python cannot keep what it
# compiles; else work could change what the next environment is made of.
UV_LINK_MODE=$skyward_link_mode
export UV_PYTHON_INSTALL_DIR UV_CACHE_DIR UV_NO_PROGRESS UV_PYTHON_INSTALL_BIN UV_LINK_MODE
if [ "$skyward_link_mode" = hardlink ]; then
  UV_COMPILE_BYTECODE=1
  export UV_COMPILE_BYTECODE
fi
# What the machine trusts, uv should trust; without such a list it has its own.
if [ -z "${SSL_CERT_FILE:-}" ] && [ -s /etc/ssl/certs/ca-certificates.crt ]; then
  UV_SYSTEM_CERTS=1
  UV_NATIVE_TLS=1
  export UV_SYSTEM_CERTS UV_NATIVE_TLS
fi
# Where the machine's pip looks, uv should look.
setting() {
  python3 -m pip config get "global.$1" 2>/dev/null </dev/null || :
}
if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
  skyward_index=${PIP_INDEX_URL:-$(setting index-url)}
  if [ -n "$skyward_index" ]; then
    UV_DEFAULT_INDEX=$skyward_index
    export UV_DEFAULT_INDEX
  fi
fi
if [ -z "${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-}" ]; then
  skyward_index=${PIP_EXTRA_INDEX_URL:-$(setting extra-index-url)}
  if [ -n "$skyward_index" ]; then
    UV_INDEX=$skyward_index
    export UV_INDEX
  fi
fi

# The step of a controller that was killed may still be at work here: its half of an
# installation is not for us. The lock goes with the process that holds it.
if have flock; then
  exec 9>"$skyward_home/bootstrap/uv.lock"
  flock 9 || die 'the lock of the installation cannot be taken'
fi

# Takes the interpreter and the packages out of the environment, and leaves what its other steps made.
clear_environment() {
  rm -rf "$skyward_env/bin" "$skyward_env/lib" "$skyward_env/lib64" "$skyward_env/include" "$skyward_env/share" "$skyward_env/pyvenv.cfg"
}

clear_broken() {
  if ! "$skyward_env/bin/python" -Ic '' >/dev/null 2>&1; then clear_environment; fi
}

find_uv() {
  for skyward_uv in "$skyward_home/uv/bin/uv" "$(command -v uv 2>/dev/null)" "${HOME:-/}/.local/bin/uv"; do
    if [ -n "$skyward_uv" ] && "$skyward_uv" --version >/dev/null 2>&1 </dev/null; then return 0; fi
  done
  return 1
}

# Installs Debian packages; what they say is shown only when that fails, because it would
# hide what the step itself says.
quiet_apt() {
  if { as_root apt-get update -q && as_root apt-get install -y -q --no-install-recommends "$@"; } </dev/null >"$skyward_home/bootstrap/uv.log" 2>&1; then
    # Debian's python3-venv brings ca-certificates.
    renew_bundle
    return 0
  fi
  cat "$skyward_home/bootstrap/uv.log" >&2
  return 1
}

# Python brings a wheel of pip to install it from. That pip can be run as it is: to install it first, which is what a new
# environment does, takes longer than to install uv. The exit status is 100 where this Python has no such pip: Debian has
# it in a package of its own.
install_uv_alone() {
  rm -rf "$skyward_home/uv"
  python3 -m venv --without-pip "$skyward_home/uv" </dev/null >/dev/null 2>&1 || return 100
  "$skyward_home/uv/bin/python" -c '
import subprocess, sys
try:
    import ensurepip
    run = ensurepip._run_pip
    # It would install pip, and from nowhere but its wheel.
    ensurepip._run_pip = lambda _, *paths: run(sys.argv[1:], *paths)
    ensurepip._disable_pip_configuration_settings = lambda: None
    status = ensurepip._bootstrap()
except subprocess.CalledProcessError as error:
    # That pip has said why.
    status = error.returncode
except Exception:
    status = 100
sys.exit(status)
' install --quiet --disable-pip-version-check uv </dev/null
}

install_uv() {
  if ! have python3 && have apt-get && as_root true; then
    quiet_apt python3 python3-venv || :
  fi
  have python3 || die 'the machine has neither Python nor uv, so no other Python can be installed. Use an image with Python 3 or with uv'
  install_uv_alone
  case $? in
    0) return 0 ;;
    100) ;;
    *) return 1 ;;
  esac
  rm -rf "$skyward_home/uv"
  if python3 -m venv "$skyward_home/uv" </dev/null >"$skyward_home/bootstrap/uv.log" 2>&1; then
    "$skyward_home/uv/bin/python" -m pip install --quiet --disable-pip-version-check uv </dev/null && return 0
    return 1
  fi
  # Debian keeps ensurepip in a package of its own; pip alone can do it, too.
  rm -rf "$skyward_home/uv"
  if python3 -m pip --version >/dev/null 2>&1 </dev/null; then
    python3 -m pip install --quiet --disable-pip-version-check --target "$skyward_home/uv" uv </dev/null && return 0
    return 1
  fi
  if have apt-get && as_root true; then
    quiet_apt python3-venv || return 1
    python3 -m venv "$skyward_home/uv" </dev/null && "$skyward_home/uv/bin/python" -m pip install --quiet --disable-pip-version-check uv </dev/null
    return $?
  fi
  cat "$skyward_home/bootstrap/uv.log" >&2
  die 'uv cannot be installed: the machine has Python, but neither venv nor pip. Use an image with python3-venv or with uv'
}

if ! find_uv; then
  install_uv || die 'uv could not be installed from the package index'
  find_uv || die 'uv was installed but does not run'
fi
