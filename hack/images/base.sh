#!/usr/bin/env bash
# The two images that every local cluster has: `pause`, which holds a Pod's
# namespaces open, and `busybox`, for a quick Pod by hand or in a test.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

oci() { python3 "$SKYWARD_ROOT/hack/images/oci.py" "$@"; }

# fresh NAME DIGEST: is this archive the one we would make?
fresh() { [ -f "$SKYWARD_IMAGES/$1.tar" ] && [ "$(cat "$SKYWARD_IMAGES/$1.key" 2>/dev/null)" = "$2" ]; }

key=$(digest "$SKYWARD_BIN_DIR/pause" "$SKYWARD_ROOT/hack/images/oci.py" "${BASH_SOURCE[0]}")
if ! fresh pause "$key"; then
  oci --out "$SKYWARD_IMAGES/pause.tar" --tag skyward.dev/pause:dev \
    --add "$SKYWARD_BIN_DIR/pause=/pause" --entrypoint /pause --user 65535:65535 >/dev/null
  echo "$key" >"$SKYWARD_IMAGES/pause.key"
fi

busybox=$(command -v busybox) || die "busybox is missing; install the Debian package busybox-static"
key=$(digest "$busybox" "$SKYWARD_ROOT/hack/images/oci.py" "${BASH_SOURCE[0]}")
if ! fresh busybox "$key"; then
  links=()
  for applet in $("$busybox" --list); do
    [ "$applet" = busybox ] || links+=(--link "/bin/$applet=busybox")
  done
  oci --out "$SKYWARD_IMAGES/busybox.tar" --tag skyward.dev/busybox:dev --add "$busybox=/bin/busybox" "${links[@]}" \
    --text $'/etc/passwd=root:x:0:0:root:/:/bin/sh\n' --tmp /tmp --cmd /bin/sh >/dev/null
  echo "$key" >"$SKYWARD_IMAGES/busybox.key"
fi
