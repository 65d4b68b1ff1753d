#!/usr/bin/env bash
# The operator image, without Docker: the given programs, the shared libraries
# they name, certificate authorities, a user. No shell, no package manager.
#
#   hack/images/operator.sh [--out TAR] [--root DIR] [--agent AGENT]... BINARY...
#
# The first binary is what the image runs; it says which architecture the image is for. Agents,
# which the operator uploads to machines, go beside it as data, each for its own architecture.
# Libraries and certificate authorities are this machine's, or those of the file system in DIR.
# Prints the image's name, whose tag is made from its content, so that `helm upgrade` sees a
# new build as a change; the tag `dev` is the newest one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

NAME=skyward.dev/operator
OUT=$SKYWARD_IMAGES/operator.tar
ROOT=
agents=()
compressed=() # pairs: an agent, and its compressed copy, which machines with gzip are sent
arguments=()
elf() { python3 "$SKYWARD_ROOT/hack/images/elf.py" "$@"; }

while (($#)); do
  case $1 in
    --out) OUT=$2 ;;
    --root) ROOT=$2 ;;
    --agent) agents+=("$2") ;;
    *) break ;;
  esac
  shift 2
done
(($#)) || die "usage: hack/images/operator.sh [--out TAR] [--root DIR] [--agent AGENT]... BINARY..."
for binary in "$@" "${agents[@]}"; do
  [ -x "$binary" ] || die "$binary is not there; 'make build' builds it"
done

# Under the path that the loader asks for; it looks in these folders by itself.
said=$(elf --root "$ROOT" "$@")
case ${said%%$'\n'*} in
  x86_64) architecture=amd64 ;;
  aarch64) architecture=arm64 ;;
esac
while read -r library; do
  [ -z "$library" ] || arguments+=(--add "$library")
done < <(tail -n +2 <<<"$said")

for binary in "$@"; do arguments+=(--add "$binary=/usr/local/bin/$(basename "$binary")"); done
for agent in "${agents[@]}"; do
  # A static program: machines have whatever C library they have.
  machine=$(elf --static "$agent")
  there=/usr/local/share/skyward/agent/$machine/skyward-agent
  compressed+=("$agent" "${OUT%.tar}.agent-$machine.gz")
  arguments+=(--add "$agent=$there" --add "${compressed[-1]}=$there.gz")
done

# Debian's own certificate authorities and not this machine's bundle, to which
# somebody may have added a proxy's.
authorities=$ROOT/usr/share/ca-certificates/mozilla
[ -d "$authorities" ] || [ -n "$ROOT" ] || debian ca-certificates >&2
[ -d "$authorities" ] || die "there are no certificate authorities in $authorities"

# Libraries travel with their licences, where it is known whose they are.
for licence in ${ROOT:+"$ROOT"/usr/share/doc/*/copyright}; do
  [ ! -f "$licence" ] || arguments+=(--add "$licence=${licence#"$ROOT"}")
done

mkdir -p "$(dirname "$OUT")"
exec {lock}>"${OUT%.tar}.lock"
flock "$lock"
for ((i = 0; i < ${#compressed[@]}; i += 2)); do
  gzip -n <"${compressed[i]}" >"${compressed[i + 1]}"
  chmod 644 "${compressed[i + 1]}"
done
bundle=${OUT%.tar}.ca-certificates.crt
find "$authorities" -name '*.crt' -print0 | LC_ALL=C sort -z | xargs -0 cat >"$bundle"
chmod 644 "$bundle"
python3 "$SKYWARD_ROOT/hack/images/oci.py" --out "$OUT" --tag "$NAME:dev" --digest-tag "$NAME" "${arguments[@]}" \
  --architecture "$architecture" --add "$bundle=/etc/ssl/certs/ca-certificates.crt" \
  --text $'/etc/passwd=root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n' \
  --text $'/etc/group=root:x:0:\nnonroot:x:65532:\n' \
  --text $'/etc/nsswitch.conf=hosts: files dns\n' \
  --tmp /tmp --env HOME=/tmp --env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
  --user 65532:65532 --entrypoint "/usr/local/bin/$(basename "$1")" \
  --label org.opencontainers.image.title="Skyward operator" >"${OUT%.tar}.digest"
digest=$(cat "${OUT%.tar}.digest")
printf '%s:%s\n' "$NAME" "${digest:7:12}" | tee "${OUT%.tar}.name"
