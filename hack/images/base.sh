#!/usr/bin/env bash
# The two images that every local cluster has: `pause`, which holds a Pod's
# namespaces open, and `busybox`, for a quick Pod by hand or in a test.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

oci() { python3 "$SKYWARD_ROOT/hack/images/oci.py" "$@"; }

# fresh NAME DIGEST: whether this archive is the one that would be made now.
fresh() { [ -f "$SKYWARD_IMAGES/$1.tar" ] && [ "$(cat "$SKYWARD_IMAGES/$1.key" 2>/dev/null)" = "$2" ]; }

key=$(digest "$SKYWARD_BIN_DIR/pause" "$SKYWARD_ROOT/hack/images/oci.py" "${BASH_SOURCE[0]}")
if ! fresh pause "$key"; then
  oci --out "$SKYWARD_IMAGES/pause.tar" --tag skyward.dev/pause:dev \
    --add "$SKYWARD_BIN_DIR/pause=/pause" --entrypoint /pause --user 65535:65535 >/dev/null
  echo "$key" >"$SKYWARD_IMAGES/pause.key"
fi

# A static one, since there are no libraries in the image. Debian's package of it excludes the
# other busybox, which most machines have for their start: then it is unpacked, and not installed.
unpack_busybox() {
  local to=$SKYWARD_CACHE/busybox-static
  rm -rf "$to" "$to.new" && mkdir -p "$to.new" && apt-get update && (cd "$to.new" && apt-get download busybox-static) &&
    dpkg-deb -x "$to.new"/busybox-static_*.deb "$to.new" && mv "$to.new" "$to"
}
busybox=$(command -v busybox || true)
if [ -z "$busybox" ] || { ldd "$busybox" >/dev/null 2>&1 && ! ldd "$busybox" | grep -q 'statically linked'; }; then
  busybox=$SKYWARD_CACHE/busybox-static/bin/busybox
  [ -x "$busybox" ] || quietly "get the Debian package busybox-static" unpack_busybox
fi
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
