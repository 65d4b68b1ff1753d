#!/usr/bin/env bash
# A release: all that a user installs without a compiler, in one folder (docs/releasing.md).
#
#   hack/release.sh                    fetch, build and pack
#   hack/release.sh fetch              all that comes from a network; nothing below needs one
#   hack/release.sh build              compile into $SKYWARD_CACHE/release/programs
#   hack/release.sh pack [FROM [TO]]   pack the programs of that folder; compiles nothing
#   hack/release.sh verify DIR         check the sums of a release, and build it again to compare
#
#   ARCHES="amd64 arm64"   architectures that are built
#   REGISTRY=host/path     where the images will be pushed: chart and install.yaml name them there
#   RELEASE_URL=https://…  where the archives will be: the krew manifest names them there
#
# The same commit, compilers and Debian packages give the same bytes: no time but the commit's,
# no path of this machine, no order of a folder gets into a file.
set -euo pipefail

# Its programs have other flags than all others, so that they need a folder of their own. One that
# is new holds nothing of another clone: files need not be touched for it (lib.sh).
if [[ ${1:-all} =~ ^(all|build)$ ]]; then
  export CARGO_TARGET_DIR=${SKYWARD_RELEASE_TARGET:-${SKYWARD_CACHE:-${HOME:-/root}/.cache/skyward}/release/target}
  if [ ! -d "$CARGO_TARGET_DIR" ]; then
    mkdir -p "$CARGO_TARGET_DIR"
    (cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) >"$CARGO_TARGET_DIR/.checkout"
  fi
fi
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$SKYWARD_ROOT"

ARCHES=${ARCHES:-amd64 arm64}
# What was fetched stays from release to release; what is built can be moved there from another machine.
FETCHED=$SKYWARD_CACHE/release/fetched
PROGRAMS=$SKYWARD_CACHE/release/programs
# The C library and its companion that the operator needs, the one that the agent has in it, and
# the authorities that are trusted.
PACKAGES=(libc6 libgcc-s1 libc6-dev ca-certificates)
VERSION=$(sed -n '/^\[workspace\.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
REPOSITORY=$(sed -n '/^\[workspace\.package\]/,/^\[/s/^repository = "\(.*\)"/\1/p' Cargo.toml)
REGISTRY=${REGISTRY:-skyward.dev}
RELEASE_URL=${RELEASE_URL:-$REPOSITORY/releases/download/v$VERSION}
COMMIT=$(git rev-parse HEAD 2>/dev/null || echo unknown)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || true)}
[ -n "$SOURCE_DATE_EPOCH" ] ||
  die "this is no clone with a history: set SOURCE_DATE_EPOCH to the time of the release, in seconds since 1970"
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC

machine() {
  case $1 in
    amd64) echo x86_64 ;;
    arm64) echo aarch64 ;;
    *) die "ARCHES has '$1'; it can have amd64 and arm64" ;;
  esac
}
native() { [ "$(machine "$1")" = "$(uname -m)" ]; }
# The compiler and linker for an architecture, by Debian's names.
compiler() { if native "$1"; then echo cc; else echo "$(machine "$1")-linux-gnu-gcc"; fi; }

# --- fetch -------------------------------------------------------------------

# debian_root ARCH DIR: what the operator's image needs of Debian, unpacked and not installed, so
# that this machine may have another architecture. With lists of its own, so that apt's stay.
debian_root() {
  local arch=$1 to=$2 new=$2.new options file
  rm -rf "$new" && mkdir -p "$new/apt/lists/partial" "$new/apt/cache/archives/partial" "$new/deb" "$new/root" || return
  : >"$new/apt/status"
  options=(-o "APT::Architecture=$arch" -o "APT::Architectures=$arch" -o "Dir::State=$new/apt" -o "Dir::Cache=$new/apt/cache"
    -o "Dir::State::status=$new/apt/status" -o "APT::Sandbox::User=$(id -un)")
  apt-get "${options[@]}" update || return
  (cd "$new/deb" && apt-get "${options[@]}" download "${PACKAGES[@]}") || return
  for file in "$new"/deb/*.deb; do
    dpkg-deb -x "$file" "$new/root" || return
    # shellcheck disable=SC2016 # dpkg-deb fills these in
    dpkg-deb --show --showformat '${Package} ${Version} ${Architecture}\n' "$file" >>"$new/packages" || return
  done
  rm -rf "$new/apt" "$new/deb" "$to" && mv "$new" "$to"
}

fetch() {
  local arch cross=() targets=()
  command -v apt-get >/dev/null || die "there is no apt-get: the operator's image has Debian's C library, so a release is built on Debian"
  for arch in $ARCHES; do
    targets+=("$(machine "$arch")-unknown-linux-gnu")
    native "$arch" || cross+=("gcc-$(machine "$arch" | tr _ -)-linux-gnu" "libc6-dev-$arch-cross")
  done
  c_compiler
  debian "${cross[@]}"
  # Without rustup the distribution provides the targets; `build` reports missing ones.
  ! command -v rustup >/dev/null || quietly "get Rust's library for ${targets[*]}" rustup target add "${targets[@]}"
  quietly "get the crates" cargo fetch --locked "${targets[@]/#/--target=}"
  for arch in $ARCHES; do
    quietly "get Debian's packages ${PACKAGES[*]} for $arch" debian_root "$arch" "$FETCHED/debian-$arch"
  done
  hack/tools.sh
  # debootstrap runs programs of what it makes, as root: so the node image is for this machine's
  # architecture. `pack` says which are missing.
  [ "$(id -u)" = 0 ] || return 0
  for arch in $ARCHES; do
    ! native "$arch" || cp "$(hack/images/node.sh)" "$FETCHED/node-$arch.tar"
  done
}

# --- build -------------------------------------------------------------------

# cargo_for ARCH FLAGS ARGUMENT...: build for it, with these flags of the compiler (or none). Paths of
# this machine stay out of panics, of debugging information and of what C code says about itself.
cargo_for() {
  local arch=$1 flag target triple variable flags
  target=$(machine "$arch")-unknown-linux-gnu
  triple=${target//-/_}
  variable=CARGO_TARGET_${triple^^}_LINKER
  flags="--remap-path-prefix=$SKYWARD_ROOT=/skyward"
  flags+=$'\x1f'"--remap-path-prefix=$CARGO_TARGET_DIR=/target"
  flags+=$'\x1f'"--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
  for flag in $2; do flags+=$'\x1f'-C$'\x1f'$flag; done
  env -u RUSTFLAGS CARGO_ENCODED_RUSTFLAGS="$flags" CARGO_INCREMENTAL=0 \
    "$variable=$(compiler "$arch")" "CC_$triple=$(compiler "$arch")" \
    "CFLAGS_$triple=-ffile-prefix-map=$CARGO_TARGET_DIR=/target -ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
    cargo build --frozen --target "$target" "${@:3}"
}

build() {
  local arch target to
  [ -z "$(git status --porcelain 2>/dev/null)" ] ||
    die "the clone has changes that are not committed, and a release names its commit: commit or stash them"
  for arch in $ARCHES; do
    target=$(machine "$arch")-unknown-linux-gnu
    command -v "$(compiler "$arch")" >/dev/null ||
      die "there is no $(compiler "$arch") to link for $arch: run 'hack/release.sh fetch', or build on a machine of that architecture (docs/releasing.md)"
    [ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] ||
      die "there is no Rust library for $target: run 'rustup target add $target'"
    [ -e "$FETCHED/debian-$arch/packages" ] || die "Debian's packages for $arch are not there: run 'hack/release.sh fetch'"
  done
  for arch in $ARCHES; do
    target=$(machine "$arch")-unknown-linux-gnu
    to=$PROGRAMS/linux-$arch
    quietly "build operator and plugin for $arch" cargo_for "$arch" "" --profile release \
      -p skyward -p skyward-cli --bin skyward --bin kubectl-skyward
    # A machine has whatever C library it has: the agent has its own in it. Debian's for cross
    # compilers lacks the updates of Debian's own, so that the one that was fetched goes first.
    quietly "build the agent for $arch" cargo_for "$arch" \
      "target-feature=+crt-static link-arg=-L$FETCHED/debian-$arch/root/usr/lib/$(machine "$arch")-linux-gnu" \
      --profile agent -p skyward-agent --bin skyward-agent
    rm -rf "$to" && mkdir -p "$to"
    cp "$CARGO_TARGET_DIR/$target/release/"{skyward,kubectl-skyward} "$CARGO_TARGET_DIR/$target/agent/skyward-agent" "$to"
    cp -r "$FETCHED/debian-$arch" "$to/debian"
    [ ! -e "$FETCHED/node-$arch.tar" ] || cp "$FETCHED/node-$arch.tar" "$to/node.tar"
    { rustc -vV | grep -E '^(release|commit-hash|LLVM)' && "$(compiler "$arch")" --version | head -n 1; } >"$to/compilers"
  done
}

# --- pack --------------------------------------------------------------------

# archive OUT DIR NAME...: these files and folders of DIR, with nothing of this machine in it.
archive() {
  tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
    --mode='u=rwX,go=rX' -C "$2" -cf - "${@:3}" | gzip -9 -n >"$1"
}
# named FILE: images that are named in it, by where they will be.
named() {
  sed -e "s|skyward\.dev/operator:$VERSION|$REGISTRY/operator:$VERSION|" -e "s|skyward\.dev/node:$VERSION|$REGISTRY/node:$VERSION|" \
    -e "s|repository: skyward\.dev/operator$|repository: $REGISTRY/operator|" "$1"
}
# join WHAT TO IMAGE...: one layout of images of several architectures, and its name for images.txt.
join() {
  local name=$REGISTRY/$1:$VERSION digest
  digest=$(python3 hack/images/join.py --out "$2/$1-$VERSION.oci.tar" --tag "$name" \
    --annotation "org.opencontainers.image.version=$VERSION" --annotation "org.opencontainers.image.revision=$COMMIT" \
    --annotation "org.opencontainers.image.source=$REPOSITORY" --annotation "org.opencontainers.image.licenses=Apache-2.0" \
    --annotation "org.opencontainers.image.created=$(date -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" "${@:3}")
  echo "$name@$digest" >>"$2/images.txt"
}

pack_images() {
  local from=$1 to=$2 work=$3 platform operators=() nodes=() agents=()
  for platform in "$from"/linux-*/; do
    platform=$(basename "$platform")
    [ -e "$from/$platform/skyward-agent" ] || continue
    python3 hack/images/elf.py --static "$from/$platform/skyward-agent" >"$work/machine"
    [ "$(cat "$work/machine")" = "$(machine "${platform#linux-}")" ] ||
      die "$from/$platform/skyward-agent is for $(cat "$work/machine")"
    agents+=(--agent "$from/$platform/skyward-agent")
    install -m 755 "$from/$platform/skyward-agent" "$to/skyward-agent-$platform"
  done
  ((${#agents[@]})) || die "there is no linux-amd64/skyward-agent or linux-arm64/skyward-agent in $from: run 'hack/release.sh build'"
  for platform in "$from"/linux-*/; do
    platform=$(basename "$platform")
    if [ -e "$from/$platform/skyward" ]; then
      hack/images/operator.sh --out "$work/operator-$platform.tar" --root "$from/$platform/debian/root" "${agents[@]}" \
        "$from/$platform/skyward" >/dev/null
      operators+=("$work/operator-$platform.tar")
    fi
    if [ -e "$from/$platform/node.tar" ]; then
      nodes+=("$(hack/images/node.sh --agent "$from/$platform/skyward-agent" --base "$from/$platform/node.tar" --out "$work/node-$platform.tar")")
    else
      warn "note: there is no node image for $platform: make it as root on such a machine ('hack/images/node.sh'), and put it at $from/$platform/node.tar"
    fi
  done
  ((${#operators[@]})) || die "there is no program of the operator in $from: run 'hack/release.sh build'"
  join operator "$to" "${operators[@]}"
  ((${#nodes[@]} == 0)) || join node "$to" "${nodes[@]}"
}

# The chart as Helm packs it, but with no time of its own.
pack_chart() {
  local to=$1 work=$2
  [ "$(grep -cxE "(version|appVersion): $VERSION" charts/skyward/Chart.yaml)" = 2 ] ||
    die "charts/skyward/Chart.yaml has another version than Cargo.toml ($VERSION): write it into version and appVersion"
  mkdir -p "$work/chart"
  cp -r charts/skyward "$work/chart/skyward"
  named charts/skyward/values.yaml >"$work/chart/skyward/values.yaml"
  "$SKYWARD_BIN_DIR/helm" package "$work/chart/skyward" --destination "$work/chart" >"$work/helm.out" || die "$(cat "$work/helm.out")"
  mkdir "$work/chart/unpacked"
  tar -xzmf "$work/chart/skyward-$VERSION.tgz" -C "$work/chart/unpacked"
  archive "$to/skyward-$VERSION.tgz" "$work/chart/unpacked" skyward
}

pack_manifests() {
  local to=$1 work=$2
  "$SKYWARD_BIN_DIR/kubectl" kustomize config/default >"$work/install.yaml"
  named "$work/install.yaml" >"$to/install.yaml"
  [ "$(grep -c "$REGISTRY/\(operator\|node\):$VERSION" "$to/install.yaml")" -ge 3 ] ||
    die "config/default does not name the images of version $VERSION: run 'tests/chart/run.sh --write'"
  "$SKYWARD_BIN_DIR/kubectl" kustomize config/crds >"$to/crds.yaml"
}

# The plugin: an archive for each platform that was built, and what krew reads.
pack_plugin() {
  local from=$1 to=$2 work=$3 directory platform program name
  cat >"$to/krew.yaml" <<YAML
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: skyward
spec:
  version: v$VERSION
  homepage: $REPOSITORY
  shortDescription: Logs and results of Skyward's Tasks
  description: |
    Prints what the Tasks of Skyward printed and returned. It needs the operator
    of Skyward on the cluster, and asks the Kubernetes API server only.
  platforms:
YAML
  for directory in "$from"/*/; do
    platform=$(basename "$directory")
    program=kubectl-skyward
    [ "${platform%%-*}" != windows ] || program=kubectl-skyward.exe
    [ -e "$directory$program" ] || continue
    name=kubectl-skyward-$platform
    mkdir -p "$work/plugin/$platform"
    install -m 755 "$directory$program" "$work/plugin/$platform/$program"
    install -m 644 LICENSE "$work/plugin/$platform/LICENSE"
    archive "$to/$name.tar.gz" "$work/plugin/$platform" LICENSE "$program"
    cat >>"$to/krew.yaml" <<YAML
  - selector:
      matchLabels:
        os: ${platform%%-*}
        arch: ${platform#*-}
    uri: $RELEASE_URL/$name.tar.gz
    sha256: $(sha256sum <"$to/$name.tar.gz" | cut -d' ' -f1)
    bin: $program
    files:
    - {from: $program, to: .}
    - {from: LICENSE, to: .}
YAML
  done
}

pack_bill() {
  local from=$1 to=$2 packages=() line
  while read -r line; do packages+=(--debian "$line"); done < <(cat "$from"/linux-*/debian/packages | sort -u)
  cargo metadata --frozen --format-version 1 --filter-platform x86_64-unknown-linux-gnu --filter-platform aarch64-unknown-linux-gnu |
    python3 hack/release/sbom.py --lock Cargo.lock --time "$SOURCE_DATE_EPOCH" --version "$VERSION" \
      --package skyward --package skyward-cli --package skyward-agent "${packages[@]}" >"$to/sbom.cdx.json"
}

# What `verify` needs to make it again.
pack_record() {
  local from=$1 to=$2 file
  printf '%s\n' "version $VERSION" "commit $COMMIT" "time $SOURCE_DATE_EPOCH" "registry $REGISTRY" "url $RELEASE_URL" >"$to/release.txt"
  for file in "$from"/linux-*/compilers; do
    [ ! -e "$file" ] || sed "s|^|$(basename "$(dirname "$file")") |" "$file" >>"$to/release.txt"
  done
}

pack() {
  local from to=${2:-$SKYWARD_CACHE/release/skyward-$VERSION} new tool
  from=$(realpath -e "${1:-$PROGRAMS}") || die "there are no programs to pack: run 'hack/release.sh build'"
  for tool in helm kubectl; do
    [ -x "$SKYWARD_BIN_DIR/$tool" ] || die "there is no $tool in $SKYWARD_BIN_DIR: run 'hack/tools.sh'"
  done
  if [ -e "$to" ] && [ ! -e "$to/SHA256SUMS" ]; then die "$to is there, and is no release: name another folder"; fi
  umask 022
  to=$(realpath -m "$to")
  mkdir -p "$(dirname "$to")"
  WORK=$(mktemp -d)
  # A folder of that name is whole, or is not there.
  new=$(mktemp -d "$to.XXXXXX")
  WORK_NEW=$new
  trap 'rm -rf "$WORK" "$WORK_NEW"' EXIT
  chmod 755 "$new"
  pack_images "$from" "$new" "$WORK"
  pack_chart "$new" "$WORK"
  pack_manifests "$new" "$WORK"
  pack_plugin "$from" "$new" "$WORK"
  pack_bill "$from" "$new"
  pack_record "$from" "$new"
  (cd "$new" && sha256sum -- * >"$WORK/sums" && mv "$WORK/sums" SHA256SUMS)
  rm -rf "$to" && mv "$new" "$to"
  say "Release $VERSION is in $to:"
  sed 's/^[0-9a-f]*  /  /' "$to/SHA256SUMS"
  say "docs/releasing.md says how it is published."
}

# --- verify ------------------------------------------------------------------

verify() {
  local of=$1 work key value difference
  [ -e "$of/SHA256SUMS" ] || die "$of is no release: it has no SHA256SUMS"
  of=$(realpath "$of")
  (cd "$of" && sha256sum --quiet --check SHA256SUMS) || die "$of is not as it was made"
  say "  the sums of $of hold"
  while read -r key value; do
    case $key in
      commit) COMMIT=$value ;;
      time) SOURCE_DATE_EPOCH=$value ;;
      registry) REGISTRY=$value ;;
      url) RELEASE_URL=$value ;;
    esac
  done <"$of/release.txt"
  ARCHES=$(cd "$of" && printf '%s\n' skyward-agent-linux-* | sed 's/.*-//' | tr '\n' ' ')
  work=$(mktemp -d "$SKYWARD_CACHE/release/verify.XXXXXX")
  WORK=$work
  trap 'rm -rf "$WORK"' EXIT
  # Another folder, another target folder: a path that got into a program shows.
  git clone --quiet "$SKYWARD_ROOT" "$work/clone"
  git -C "$work/clone" checkout --quiet "$COMMIT" || die "this clone does not have the commit $COMMIT of the release"
  mkdir -p "$work/cache/release"
  ln -s "$SKYWARD_BIN_DIR" "$work/cache/bin"
  ln -s "$FETCHED" "$work/cache/release/fetched"
  export ARCHES REGISTRY RELEASE_URL SOURCE_DATE_EPOCH
  SKYWARD_CACHE=$work/cache SKYWARD_LOG_DIR=$SKYWARD_LOG_DIR "$work/clone/hack/release.sh" build
  SKYWARD_CACHE=$work/cache CARGO_TARGET_DIR=$work/cache/release/target "$work/clone/hack/release.sh" pack "" "$work/again" >/dev/null
  difference=$(diff "$of/SHA256SUMS" "$work/again/SHA256SUMS") ||
    die "the release cannot be made again as it is; these differ (< here, > made again):
$difference"
  say "  $of was made again, and every byte is the same"
}

case ${1:-all} in
  all)
    fetch
    build
    pack
    ;;
  fetch | build) "$1" ;;
  pack) pack "${2:-}" "${3:-}" ;;
  verify) verify "${2:?name the folder of the release}" ;;
  *) die "hack/release.sh does not know '$1'; it can be fetch, build, pack or verify" ;;
esac
