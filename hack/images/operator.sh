#!/usr/bin/env bash
# The operator image, without Docker: the given programs, the shared libraries
# they name, certificate authorities, a user. No shell, no package manager.
#
#   hack/images/operator.sh [--agent AGENT] BINARY...
#
# The first binary is what the image runs. The agent, which the operator uploads
# to machines, goes beside it as data. Prints the image's name, whose tag is made
# from its content, so that `helm upgrade` sees a new build as a change; the tag
# `dev` is the newest one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

NAME=skyward.dev/operator
OUT=$SKYWARD_IMAGES/operator.tar
arguments=()

agent=
if [ "${1:-}" = --agent ]; then
  agent=$2
  shift 2
fi
(($#)) || die "usage: hack/images/operator.sh [--agent AGENT] BINARY..."
for binary in "$@" ${agent:+"$agent"}; do
  [ -x "$binary" ] || die "$binary is not there; 'make build' builds it"
done

# libraries BINARY...: the paths they are loaded from. The vDSO has none.
libraries() {
  local binary
  for binary in "$@"; do
    ldd "$binary" 2>/dev/null | awk '$2 == "=>" && $3 == "not" {print "missing " $1} $2 == "=>" && $3 ~ /^\// {print $3} $1 ~ /^\// {print $1}'
  done | LC_ALL=C sort -u
}
while read -r library; do
  case $library in
    missing*) die "a binary needs the shared library ${library#missing }, which is not installed here" ;;
    # Under the name it is asked for; ld.so looks in these folders by itself.
    *) arguments+=(--add "$library=$library") ;;
  esac
done < <(libraries "$@")

for binary in "$@"; do arguments+=(--add "$binary=/usr/local/bin/$(basename "$binary")"); done
if [ -n "$agent" ]; then
  # A static program: machines have whatever C library they have.
  if ldd "$agent" >/dev/null 2>&1 && ! ldd "$agent" | grep -q 'statically linked'; then
    die "$agent is not statically linked, so it would not run on other machines; 'make build' builds it right"
  fi
  arguments+=(--add "$agent=/usr/local/share/skyward/agent/$(uname -m)/skyward-agent")
fi

# Debian's own certificate authorities and not this machine's bundle, to which
# somebody may have added a proxy's.
[ -d /usr/share/ca-certificates/mozilla ] || debian ca-certificates >&2
bundle=$SKYWARD_IMAGES/ca-certificates.crt
find /usr/share/ca-certificates/mozilla -name '*.crt' | LC_ALL=C sort | xargs cat >"$bundle"

exec {lock}>"$SKYWARD_IMAGES/operator.lock"
flock "$lock"
python3 "$SKYWARD_ROOT/hack/images/oci.py" --out "$OUT" --tag "$NAME:dev" --digest-tag "$NAME" "${arguments[@]}" \
  --add "$bundle=/etc/ssl/certs/ca-certificates.crt" \
  --text $'/etc/passwd=root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n' \
  --text $'/etc/group=root:x:0:\nnonroot:x:65532:\n' \
  --text $'/etc/nsswitch.conf=hosts: files dns\n' \
  --tmp /tmp --env HOME=/tmp --env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
  --user 65532:65532 --entrypoint "/usr/local/bin/$(basename "$1")" \
  --label org.opencontainers.image.title="Skyward operator" >"$SKYWARD_IMAGES/operator.digest"
digest=$(cat "$SKYWARD_IMAGES/operator.digest")
printf '%s:%s\n' "$NAME" "${digest:7:12}" | tee "$SKYWARD_IMAGES/operator.name"
