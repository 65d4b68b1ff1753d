#!/usr/bin/env python3
"""Write a container image as a tar archive, with nothing but Python.

The archive is an OCI layout and a docker-archive at once (as BuildKit writes
them): `ctr images import`, `kind load image-archive`, `crane push` and
`docker load` all take it. The same input gives the same bytes: times, owners
and order are fixed, so an image changes its digest only when its content did.

    oci.py --out image.tar --tag skyward.dev/pause:dev --add pause=/pause --entrypoint /pause
    oci.py --out image.tar --tag skyward.dev/node:dev --rootfs /path/to/tree --cmd /bin/bash
    oci.py --out larger.tar --tag skyward.dev/node:dev --base image.tar --add agent=/usr/local/share/agent

Layers are not compressed: the archives are read on the machine that wrote them.
Prints the image's digest.
"""

import argparse
import hashlib
import io
import json
import os
import stat
import sys
import tarfile
import tempfile

EPOCH = 0


class Hashing:
    """A file that knows the SHA-256 and the size of what was written to it."""

    def __init__(self, file):
        self.file, self.sha, self.size = file, hashlib.sha256(), 0

    def write(self, data):
        self.sha.update(data)
        self.size += len(data)
        return self.file.write(data)

    def tell(self):
        return self.size


def entry(name, mode, kind=tarfile.REGTYPE, uid=0, gid=0):
    info = tarfile.TarInfo(name.lstrip("/"))
    info.type, info.mode, info.mtime = kind, mode, EPOCH
    info.uid, info.gid, info.uname, info.gname = uid, gid, "", ""
    return info


def add_parents(tar, path, seen):
    parts = path.strip("/").split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        folder = "/".join(parts[:depth])
        if folder not in seen:
            seen.add(folder)
            tar.addfile(entry(folder, 0o755, tarfile.DIRTYPE))


def add_file(tar, source, target, seen):
    """Files come with the mode their execute bit asks for, and no owner."""
    add_parents(tar, target, seen)
    source = os.path.realpath(source)
    with open(source, "rb") as file:
        executable = os.stat(source).st_mode & 0o111
        info = entry(target, 0o755 if executable else 0o644)
        info.size = os.fstat(file.fileno()).st_size
        tar.addfile(info, file)


def add_tree(tar, root):
    """A whole root file system: owners, modes and links as they are."""
    links = {}
    for folder, folders, files in os.walk(root):
        folders.sort()
        # Walk reports a link to a folder as a folder; it is stored as a link.
        for name in sorted(files + [d for d in folders if os.path.islink(os.path.join(folder, d))]):
            add_node(tar, root, os.path.join(folder, name), links)
        for name in folders:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                add_node(tar, root, path, links)


def add_node(tar, root, path, links):
    status = os.lstat(path)
    name = os.path.relpath(path, root)
    mode = stat.S_IMODE(status.st_mode)
    owner = (status.st_uid, status.st_gid)
    if stat.S_ISLNK(status.st_mode):
        info = entry(name, 0o777, tarfile.SYMTYPE, *owner)
        info.linkname = os.readlink(path)
        tar.addfile(info)
    elif stat.S_ISDIR(status.st_mode):
        tar.addfile(entry(name, mode, tarfile.DIRTYPE, *owner))
    elif stat.S_ISREG(status.st_mode):
        twin = links.get((status.st_dev, status.st_ino))
        if twin:
            info = entry(name, mode, tarfile.LNKTYPE, *owner)
            info.linkname = twin
            tar.addfile(info)
            return
        if status.st_nlink > 1:
            links[(status.st_dev, status.st_ino)] = name
        info = entry(name, mode, tarfile.REGTYPE, *owner)
        info.size = status.st_size
        with open(path, "rb") as file:
            tar.addfile(info, file)
    # Devices and sockets are left out: the container runtime makes /dev.


class Archive:
    """The outer tar: blobs by digest, then the indexes that name them."""

    def __init__(self, file):
        self.tar = tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT)
        self.seen = set()

    def file(self, name, data):
        info = entry(name, 0o644)
        info.size = len(data)
        add_parents(self.tar, name, self.seen)
        self.tar.addfile(info, io.BytesIO(data))

    def blob(self, data):
        digest = hashlib.sha256(data).hexdigest()
        self.file(f"blobs/sha256/{digest}", data)
        return f"sha256:{digest}", len(data)

    def blob_file(self, file, digest, size):
        info = entry(f"blobs/sha256/{digest}", 0o644)
        info.size = size
        add_parents(self.tar, info.name, self.seen)
        file.seek(0)
        self.tar.addfile(info, file)


class Base:
    """The image that another one is made on: its layers, and what they run."""

    def __init__(self, path):
        self.tar = tarfile.open(path)
        listed = json.load(self.tar.extractfile("index.json"))["manifests"][0]
        manifest = json.load(self.blob(listed["digest"]))
        self.architecture = listed["platform"]["architecture"]
        self.layers = manifest["layers"]
        image = json.load(self.blob(manifest["config"]["digest"]))
        self.config, self.diff_ids, self.history = image["config"], image["rootfs"]["diff_ids"], image["history"]

    def blob(self, digest):
        return self.tar.extractfile("blobs/" + digest.replace(":", "/"))


def compact(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="TAR")
    parser.add_argument("--tag", action="append", required=True, metavar="NAME:TAG")
    parser.add_argument("--digest-tag", metavar="NAME", help="also tag NAME:<first 12 digits of the content's digest>")
    parser.add_argument("--base", metavar="TAR", help="an image of oci.py; what is added makes one more layer")
    parser.add_argument("--rootfs", metavar="DIR", help="a whole root file system, as a layer")
    parser.add_argument("--add", action="append", default=[], metavar="FILE=/PATH", help="one file into the layer")
    parser.add_argument("--text", action="append", default=[], metavar="/PATH=TEXT", help="a small file with this content")
    parser.add_argument("--tmp", action="append", default=[], metavar="/PATH", help="an empty folder anybody may write to")
    parser.add_argument("--link", action="append", default=[], metavar="/PATH=TARGET", help="a symbolic link")
    parser.add_argument("--entrypoint", action="append")
    parser.add_argument("--cmd", action="append")
    parser.add_argument("--user")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--workdir", default="/")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--architecture", default={"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine))
    args = parser.parse_args()
    base = Base(args.base) if args.base else None

    out_dir = os.path.dirname(os.path.abspath(args.out))
    os.makedirs(out_dir, exist_ok=True)
    with tempfile.TemporaryFile(dir=out_dir) as layer_file:
        hashing = Hashing(layer_file)
        with tarfile.open(fileobj=hashing, mode="w", format=tarfile.PAX_FORMAT) as layer:
            if args.rootfs:
                add_tree(layer, args.rootfs)
            seen = set()
            for pair in sorted(args.add, key=lambda p: p.split("=", 1)[1]):
                source, target = pair.split("=", 1)
                add_file(layer, source, target, seen)
            for pair in sorted(args.text):
                target, text = pair.split("=", 1)
                add_parents(layer, target, seen)
                info, data = entry(target, 0o644), text.encode()
                info.size = len(data)
                layer.addfile(info, io.BytesIO(data))
            for path in sorted(args.tmp):
                add_parents(layer, path, seen)
                layer.addfile(entry(path, 0o1777, tarfile.DIRTYPE))
            for pair in sorted(args.link):
                target, to = pair.split("=", 1)
                add_parents(layer, target, seen)
                info = entry(target, 0o777, tarfile.SYMTYPE)
                info.linkname = to
                layer.addfile(info)
        layer_hex, layer_size = hashing.sha.hexdigest(), hashing.size
        layers = [*(base.layers if base else []), {
            "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": f"sha256:{layer_hex}", "size": layer_size,
        }]

        made = {"created": "1970-01-01T00:00:00Z", "created_by": "hack/images/oci.py"}
        config = {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "WorkingDir": args.workdir}
        if base:
            config = base.config
        config["Env"] += args.env
        if args.entrypoint:
            config["Entrypoint"] = args.entrypoint
        if args.cmd:
            config["Cmd"] = args.cmd
        if args.user:
            config["User"] = args.user
        if args.label:
            config.setdefault("Labels", {}).update(pair.split("=", 1) for pair in args.label)
        architecture = base.architecture if base else args.architecture
        image = compact({
            "architecture": architecture,
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [*(base.diff_ids if base else []), f"sha256:{layer_hex}"]},
            "history": [*(base.history if base else []), made],
        })

        partial = args.out + ".partial"
        with open(partial, "wb") as file:
            archive = Archive(file)
            for layer in layers[:-1]:
                archive.blob_file(base.blob(layer["digest"]), layer["digest"].split(":")[1], layer["size"])
            archive.blob_file(layer_file, layer_hex, layer_size)
            config_digest, config_size = archive.blob(image)
            manifest = compact({
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config_digest, "size": config_size},
                "layers": layers,
            })
            digest, size = archive.blob(manifest)
            tags = list(args.tag)
            if args.digest_tag:
                tags.append(f"{args.digest_tag}:{digest.split(':')[1][:12]}")
            archive.file("oci-layout", compact({"imageLayoutVersion": "1.0.0"}))
            archive.file("index.json", compact({
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.index.v1+json",
                "manifests": [{
                    "mediaType": "application/vnd.oci.image.manifest.v1+json",
                    "digest": digest,
                    "size": size,
                    "platform": {"architecture": architecture, "os": "linux"},
                    "annotations": {"io.containerd.image.name": tag, "org.opencontainers.image.ref.name": tag.rsplit(":", 1)[1]},
                } for tag in tags],
            }))
            archive.file("manifest.json", compact([{
                "Config": "blobs/sha256/" + config_digest.split(":")[1],
                "RepoTags": tags,
                "Layers": ["blobs/" + layer["digest"].replace(":", "/") for layer in layers],
            }]))
            archive.tar.close()
    os.replace(partial, args.out)
    print(digest)


if __name__ == "__main__":
    sys.exit(main())
