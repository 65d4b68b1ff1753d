#!/usr/bin/env bash
# The clients that the clouds themselves publish for Python, which test our simulator of each
# cloud: installed once, from the machine's own package index, one environment each because
# they want different versions of the same packages. Prints the folder of these environments.
# Behind a blank is what such a client needs in another version than the newest.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

CLIENTS=(boto3==1.44.5 runpod==1.12.0 vastai==1.9.1 verda==1.25.0 vultr-python-client==1.0.2 pydo==0.44.0 scaleway==2.12.0
  hyperstack==1.56.1a0 google-cloud-compute==1.57.0 jarvislabs==0.2.19 novita==0.1.0 "massed-compute-mcp==1.0.3 mcp==1.30.0")
TO=$SKYWARD_CACHE/vendor-clients

# One pip for all of them: an environment's own takes seconds to make.
if [ ! -e "$TO/pip/complete" ]; then
  rm -rf "$TO/pip"
  virtual_environment "$TO/pip" >&2 ||
    die "python3 makes no virtual environments here"
  touch "$TO/pip/complete"
fi
for client in "${CLIENTS[@]}"; do
  name=${client%%==*} home=$TO/${client%%==*}
  # The mark comes last: half an installation is begun again, and so is another version.
  [ "$(cat "$home/complete" 2>/dev/null)" != "$client" ] || continue
  rm -rf "$home"
  read -ra wanted <<<"$client"
  python3 -m venv --without-pip "$home" >&2
  "$TO/pip/bin/pip" --python "$home/bin/python3" install --quiet --no-compile --disable-pip-version-check "${wanted[@]}" >&2 ||
    die "pip could not install $name; without it the simulator of that cloud is not checked against the cloud's own client"
  printf '%s' "$client" >"$home/complete"
done
say "$TO"
