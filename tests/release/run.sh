#!/usr/bin/env bash
# A release packed twice, from programs that are stubs: every byte is the same, whatever the clock,
# the umask, the language and the folder are; and what it has can be published and installed.
# Compiles nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

CACHE=$(realpath -m "${SKYWARD_CACHE:-${HOME:-/root}/.cache/skyward}")
WORK=$(mktemp -d)
registry=
finish() {
  [ -z "$registry" ] || kill "$registry" 2>/dev/null || true
  rm -rf "$WORK"
}
trap finish EXIT
bad() {
  printf 'FAILED  %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf '%s\n' "$2" | tail -n 20 | sed 's/^/        /' >&2
  exit 1
}

# A cache of its own with the tools of the other, which takes this clone for the one that was built last.
unset MAKEFLAGS MAKELEVEL MFLAGS PROFILE REGISTRY RELEASE_URL ARCHES SKYWARD_LOG_DIR
mkdir -p "$WORK/cache" "$WORK/target"
ln -s "$CACHE/bin" "$WORK/cache/bin"
pwd >"$WORK/target/.checkout"
export SKYWARD_CACHE=$WORK/cache CARGO_TARGET_DIR=$WORK/target REGISTRY=registry.example/skyward
# Also where this is no clone with a history.
export SOURCE_DATE_EPOCH=1700000000
version=$(sed -n 's/^appVersion: //p' charts/skyward/Chart.yaml)

# --- twice the same ----------------------------------------------------------

tests/release/stubs.py "$WORK/programs"
release=$WORK/one
said=$(hack/release.sh pack "$WORK/programs" "$release" 2>&1) || bad "a release is packed" "$said"
[[ $said == *"note: there is no node image for linux-amd64"*"note: there is no node image for linux-arm64"* ]] ||
  bad "it says which images are missing" "$said"

# Later, for somebody else, elsewhere.
cp -r "$WORK/programs" "$WORK/moved"
find "$WORK/moved" -exec touch -h -d '2001-02-03' {} +
said=$(umask 077 && cd / && LC_ALL=C.UTF-8 TZ=Asia/Tokyo TMPDIR=$WORK "$OLDPWD/hack/release.sh" pack "$WORK/moved" "$WORK/two" 2>&1) ||
  bad "a release is packed again" "$said"
said=$(diff -r "$release" "$WORK/two") || bad "both times every byte is the same" "$said"
(cd "$release" && sha256sum --quiet --check SHA256SUMS) || bad "the sums hold"
[ "$(find "$release" -type f ! -name SHA256SUMS | wc -l)" = "$(wc -l <"$release/SHA256SUMS")" ] || bad "every file has its sum"
# Packing over a release replaces it; over anything else it does not.
said=$(hack/release.sh pack "$WORK/programs" "$WORK/two" 2>&1) || bad "a release is packed over an older one" "$said"
mkdir "$WORK/theirs"
if said=$(hack/release.sh pack "$WORK/programs" "$WORK/theirs" 2>&1); then bad "a folder of somebody's is left alone" "$said"; fi

# --- the node image ----------------------------------------------------------

cp -r "$WORK/programs" "$WORK/with-node"
python3 hack/images/oci.py --out "$WORK/with-node/linux-amd64/node.tar" --tag skyward.dev/node:dev --architecture amd64 \
  --text $'/etc/os-release=a stub\n' --cmd /bin/bash >/dev/null
said=$(hack/release.sh pack "$WORK/with-node" "$WORK/three" 2>&1) || bad "a release with a node image is packed" "$said"
said=$(python3 - "$WORK/three" "$version" "$WORK/with-node/linux-amd64/skyward-agent" 2>&1 <<'PYTHON'
import gzip, hashlib, io, json, pathlib, sys, tarfile

layout = tarfile.open(pathlib.Path(sys.argv[1]) / f"node-{sys.argv[2]}.oci.tar")
read = lambda digest: layout.extractfile("blobs/" + digest.replace(":", "/")).read()
(top,) = json.load(layout.extractfile("index.json"))["manifests"]
(image,) = json.loads(read(top["digest"]))["manifests"]
manifest = json.loads(read(image["digest"]))
config = json.loads(read(manifest["config"]["digest"]))
layers = [gzip.decompress(read(layer["digest"])) for layer in manifest["layers"]]
assert config["config"]["Cmd"] == ["/bin/bash"] and config["architecture"] == "amd64", config
assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers], config
base, own = (tarfile.open(fileobj=io.BytesIO(layer)) for layer in layers)
assert base.extractfile("etc/os-release").read() == b"a stub\n", base.getnames()
agent = pathlib.Path(sys.argv[3]).read_bytes()
name = "usr/local/share/skyward/skyward-agent-" + hashlib.sha256(agent).hexdigest()[:12]
assert own.extractfile(name).read() == agent and own.getmember(name).mode == 0o755, own.getnames()
PYTHON
) || bad "the node image brings the agent of its release" "$said"

# --- what it has -------------------------------------------------------------

said=$(python3 - "$release" "$version" 2>&1 <<'PYTHON'
import gzip, hashlib, io, json, pathlib, sys, tarfile

release, version = pathlib.Path(sys.argv[1]), sys.argv[2]
layout = tarfile.open(release / f"operator-{version}.oci.tar")
read = lambda digest: layout.extractfile("blobs/" + digest.replace(":", "/")).read()
for name in layout.getnames():
    if name.startswith("blobs/sha256/"):
        assert hashlib.sha256(layout.extractfile(name).read()).hexdigest() == name[13:], f"{name} is what its name says"
(top,) = json.load(layout.extractfile("index.json"))["manifests"]
index = json.loads(read(top["digest"]))
assert [entry["platform"]["architecture"] for entry in index["manifests"]] == ["amd64", "arm64"], "both architectures"
assert index["annotations"]["org.opencontainers.image.version"] == version
expected = f"registry.example/skyward/operator:{version}@{top['digest']}\n"
assert (release / "images.txt").read_text() == expected, "images.txt names it by its digest"
loaders = {"amd64": "lib64/ld-linux-x86-64.so.2", "arm64": "lib/ld-linux-aarch64.so.1"}
for entry in index["manifests"]:
    arch = entry["platform"]["architecture"]
    manifest = json.loads(read(entry["digest"]))
    config = json.loads(read(manifest["config"]["digest"]))
    assert config["architecture"] == arch
    (layer,) = manifest["layers"]
    content = gzip.decompress(read(layer["digest"]))
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(content).hexdigest()], "the layer is the image's"
    files = tarfile.open(fileobj=io.BytesIO(content))
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[arch]
    for name in ["usr/local/bin/skyward", loaders[arch], f"lib/{machine}-linux-gnu/libc.so.6",
                 f"lib/{machine}-linux-gnu/libgcc_s.so.1", "usr/share/doc/libc6/copyright",
                 *(f"usr/local/share/skyward/agent/{theirs}/skyward-agent{end}" for theirs in ["x86_64", "aarch64"] for end in ["", ".gz"])]:
        assert files.getmember(name).isfile() and files.getmember(name).size, f"{arch} has {name}"
    assert files.extractfile("etc/ssl/certs/ca-certificates.crt").read() == b"A\nB\n"

bill = json.loads((release / "sbom.cdx.json").read_text())
names = {component["name"] for component in bill["components"]}
assert {"skyward", "skyward-cli", "skyward-agent", "tokio", "libc6"} <= names, "the bill has ours, theirs and Debian's"
assert not {"proptest", "skyward-e2e", "xtask"} & names, "the bill has nothing of the tests"
references = {component["bom-ref"] for component in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
for entry in bill["dependencies"]:
    assert {entry["ref"], *entry["dependsOn"]} <= references, entry
for component in bill["components"]:
    ours = component["name"].startswith("skyward")
    assert component["purl"].startswith("pkg:deb/") or ours or component["hashes"], component["name"]

for name in ["linux-amd64", "linux-arm64", "darwin-arm64", "windows-amd64"]:
    archive = release / f"kubectl-skyward-{name}.tar.gz"
    program = "kubectl-skyward.exe" if name.startswith("windows") else "kubectl-skyward"
    entries = tarfile.open(archive).getmembers()
    assert [entry.name for entry in entries] == ["LICENSE", program], archive
    assert all((entry.uid, entry.gid, entry.mode) == (0, 0, 0o644 if entry.name == "LICENSE" else 0o755) for entry in entries)
    krew = (release / "krew.yaml").read_text()
    assert hashlib.sha256(archive.read_bytes()).hexdigest() in krew and f"/v{version}/{archive.name}" in krew, archive
PYTHON
) || bad "the release has what it should" "$said"

helm=$CACHE/bin/helm
said=$("$helm" template skyward "$release/skyward-$version.tgz" --kube-version 1.34.0 --set store.storageClass=default 2>&1) ||
  bad "the chart can be installed" "$said"
for what in "$said" "$(cat "$release/install.yaml")"; do
  [[ $what == *"registry.example/skyward/operator:$version"* && $what == *"registry.example/skyward/node:$version"* ]] ||
    bad "chart and install.yaml name the images where they will be" "$(grep -n image: <<<"$what")"
  [[ $what != *"skyward.dev/operator:"* && $what != *"skyward.dev/node:"* ]] || bad "and nowhere else" "$(grep -n skyward.dev/ <<<"$what")"
done
[ "$(grep -c '^kind: CustomResourceDefinition$' "$release/crds.yaml")" = "$(find crds -name '*.yaml' | wc -l)" ] || bad "crds.yaml has all of them"

# One push, and the registry has it under the digest that images.txt says.
"$CACHE/bin/crane" registry serve --address 127.0.0.1:0 --disk "$(mkdir "$WORK/registry" && echo "$WORK/registry")" >"$WORK/registry.log" 2>&1 &
registry=$!
port=
for _ in $(seq 600); do
  port=$(sed -n 's/.*serving on port //p' "$WORK/registry.log" 2>/dev/null) || true
  [ -z "$port" ] || break
  sleep 0.1
done
[ -n "$port" ] || bad "the registry says where it listens" "$(cat "$WORK/registry.log")"
mkdir "$WORK/layout"
tar -xf "$release/operator-$version.oci.tar" -C "$WORK/layout"
said=$("$CACHE/bin/crane" push "$WORK/layout" "127.0.0.1:$port/skyward/operator:$version" 2>&1) || bad "the layout can be pushed" "$said"
digest=$("$CACHE/bin/crane" digest "127.0.0.1:$port/skyward/operator:$version")
grep -q "operator:$version@$digest\$" "$release/images.txt" || bad "it has the digest of images.txt" "$digest"
"$CACHE/bin/crane" validate --remote "127.0.0.1:$port/skyward/operator:$version" >/dev/null 2>&1 || bad "the registry has all of it"
"$helm" push --plain-http "$release/skyward-$version.tgz" "oci://127.0.0.1:$port/charts" >"$WORK/out" 2>&1 || bad "the chart can be pushed" "$(cat "$WORK/out")"

# --- what is not packed ------------------------------------------------------

# refused WHAT WORDS: packing says so, and leaves the release that is there.
refused() {
  if said=$(hack/release.sh pack "$WORK/moved" "$release" 2>&1); then bad "$1 is refused" "$said"; fi
  [[ $said == *"$2"* ]] || bad "$1 is refused with \"$2\"" "$said"
  (cd "$release" && sha256sum --quiet --check SHA256SUMS) || bad "the release that was there stays whole"
  [ "$(find "$WORK" -maxdepth 1 -name 'one*')" = "$release" ] || bad "nothing half done stays beside it"
}
at=$WORK/moved/linux-arm64
cp "$at/skyward" "$at/skyward-agent"
refused "an agent that needs a C library" "is not statically linked"
cp "$WORK/moved/linux-amd64/skyward-agent" "$at/skyward-agent"
refused "an agent of another architecture" "skyward-agent is for x86_64"
cp "$WORK/programs/linux-arm64/skyward-agent" "$at/skyward-agent"
cp "$WORK/moved/linux-amd64/skyward" "$at/skyward"
refused "a program of another architecture" "needs the loader /lib64/ld-linux-x86-64.so.2, which is not in"
cp "$WORK/programs/linux-arm64/skyward" "$at/skyward"
rm "$at"/debian/root/lib/*/libgcc_s.so.1
refused "a library that is missing" "needs the shared library libgcc_s.so.1"
echo x >>"$release/crds.yaml"
if said=$(hack/release.sh verify "$release" 2>&1); then bad "a release that was changed is found" "$said"; fi
[[ $said == *"is not as it was made"* ]] || bad "it says so" "$said"

printf '  a release is packed the same twice\n'
