#!/usr/bin/env python3
"""Join images of several architectures, as oci.py writes them, into one that has all.

    join.py --out image.oci.tar --tag registry.example/operator:1.0.0 amd64.tar arm64.tar

The archive is an OCI layout with one image index, which `skopeo copy --all oci-archive:…`,
`oras cp --from-oci-layout` and, unpacked, `crane push` publish as it is. Layers are compressed
with zlib, without times and names: the same archives, tag and zlib give the same bytes.
Prints the index's digest.
"""

import argparse
import gzip
import hashlib
import json
import os
import shutil
import sys
import tarfile
import tempfile

# Nothing that is built stays in the clone.
sys.dont_write_bytecode = True
from oci import Archive, Hashing, compact  # noqa: E402

INDEX = "application/vnd.oci.image.index.v1+json"
COMPRESSED = "application/vnd.oci.image.layer.v1.tar+gzip"


class Image:
    """The first image of an archive; oci.py lists the same one once for each tag."""

    def __init__(self, path):
        self.tar = tarfile.open(path)
        entry = json.load(self.tar.extractfile("index.json"))["manifests"][0]
        self.platform = entry["platform"]
        self.manifest = json.loads(self.read(entry["digest"]))

    def open(self, digest):
        return self.tar.extractfile("blobs/" + digest.replace(":", "/"))

    def read(self, digest):
        data = self.open(digest).read()
        if "sha256:" + hashlib.sha256(data).hexdigest() != digest:
            raise SystemExit(f"error: {self.tar.name} is damaged: {digest} has another content")
        return data


def put(archive, image, scratch):
    """Copies an image, its layers compressed; the descriptor of its manifest."""
    manifest = image.manifest
    for layer in manifest["layers"]:
        with tempfile.TemporaryFile(dir=scratch) as file:
            hashing = Hashing(file)
            with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=hashing, mtime=0) as packed:
                shutil.copyfileobj(image.open(layer["digest"]), packed, 1 << 20)
            digest = hashing.sha.hexdigest()
            archive.blob_file(file, digest, hashing.size)
            layer.update(mediaType=COMPRESSED, digest=f"sha256:{digest}", size=hashing.size)
    archive.blob(image.read(manifest["config"]["digest"]))
    digest, size = archive.blob(compact(manifest))
    return {"mediaType": manifest["mediaType"], "digest": digest, "size": size, "platform": image.platform}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="TAR")
    parser.add_argument("--tag", required=True, metavar="NAME:TAG")
    parser.add_argument("--annotation", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("images", nargs="+", metavar="TAR")
    args = parser.parse_args()

    images = sorted((Image(path) for path in args.images), key=lambda image: image.platform["architecture"])
    names = [image.platform["architecture"] for image in images]
    if len(set(names)) < len(names):
        raise SystemExit(f"error: two of these images are for the same architecture: {', '.join(names)}")
    scratch = os.path.dirname(os.path.abspath(args.out))
    with open(args.out + ".partial", "wb") as file:
        archive = Archive(file)
        index = compact({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [put(archive, image, scratch) for image in images],
            "annotations": dict(pair.split("=", 1) for pair in args.annotation),
        })
        digest, size = archive.blob(index)
        archive.file("oci-layout", compact({"imageLayoutVersion": "1.0.0"}))
        archive.file("index.json", compact({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [{
                "mediaType": INDEX,
                "digest": digest,
                "size": size,
                "annotations": {
                    "io.containerd.image.name": args.tag,
                    "org.opencontainers.image.ref.name": args.tag.rsplit(":", 1)[1],
                },
            }],
        }))
        archive.tar.close()
    os.replace(args.out + ".partial", args.out)
    print(digest)


if __name__ == "__main__":
    sys.exit(main())
