#!/usr/bin/env python3
"""Write the bill of materials of a release as CycloneDX 1.5: crates, and Debian's libraries.

    cargo metadata … | sbom.py --lock Cargo.lock --time 1700000000 --package skyward --version 1.0.0 \\
        --debian 'libc6 2.36-9 arm64' >sbom.cdx.json

Of crates those count that the named packages use, directly or through others: with the features
that the whole workspace asks for, so that nothing that is built is missing. What only building
uses is marked `excluded`, as CycloneDX calls what is not in the programs.
"""

import argparse
import datetime
import json
import sys
import tomllib
import urllib.parse
import uuid


def reach(nodes, roots, kinds):
    """Ids of what roots use through dependencies of these kinds; a build script's own
    dependencies are of no other kind than building."""
    found, open_ = set(roots), list(roots)
    while open_:
        for dependency in nodes[open_.pop()]["deps"]:
            used = {kind["kind"] for kind in dependency["dep_kinds"]}
            if used & kinds and dependency["pkg"] not in found:
                found.add(dependency["pkg"])
                open_.append(dependency["pkg"])
    return found


def licence(package):
    if package["license"]:
        # What crates wrote before SPDX expressions were asked for.
        return [{"expression": " ".join(package["license"].replace("/", " OR ").split())}]
    return [{"license": {"name": f"see {package['license_file']}"}}] if package["license_file"] else []


def crate(package, checksums, built_in):
    name, version = package["name"], package["version"]
    component = {
        "type": "library",
        "bom-ref": f"pkg:cargo/{name}@{version}",
        "name": name,
        "version": version,
        "scope": "required" if built_in else "excluded",
        "licenses": licence(package),
        "purl": f"pkg:cargo/{name}@{version}",
    }
    if checksum := checksums.get((name, version)):
        component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        component["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return component


def debian(words):
    name, version, architecture = words.split()
    purl = f"pkg:deb/debian/{name}@{urllib.parse.quote(version, safe='.-~')}?arch={architecture}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "scope": "required", "purl": purl}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", required=True, metavar="FILE")
    parser.add_argument("--time", required=True, type=int, metavar="SECONDS")
    parser.add_argument("--package", action="append", required=True, metavar="NAME")
    parser.add_argument("--version", required=True)
    parser.add_argument("--debian", action="append", default=[], metavar="'NAME VERSION ARCHITECTURE'")
    args = parser.parse_args()

    metadata = json.load(sys.stdin)
    with open(args.lock, "rb") as file:
        checksums = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(file)["package"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    roots = [i for i in metadata["workspace_members"] if packages[i]["name"] in args.package]
    if len(roots) != len(set(args.package)):
        raise SystemExit(f"error: the workspace does not have all of {', '.join(args.package)}")
    built_in = reach(nodes, roots, {None})
    used = reach(nodes, roots, {None, "build"})

    def reference(identity):
        return f"pkg:cargo/{packages[identity]['name']}@{packages[identity]['version']}"

    components = [crate(packages[i], checksums, i in built_in) for i in used]
    components += [debian(words) for words in args.debian]
    components.sort(key=lambda component: component["bom-ref"])
    main_component = {
        "type": "application",
        "bom-ref": f"skyward-{args.version}",
        "name": "skyward",
        "version": args.version,
        "licenses": [{"expression": "Apache-2.0"}],
    }
    dependencies = [{"ref": main_component["bom-ref"], "dependsOn": sorted(
        [reference(i) for i in roots] + [debian(words)["bom-ref"] for words in args.debian])}]
    dependencies += sorted(
        ({"ref": reference(i), "dependsOn": sorted({
            reference(d["pkg"]) for d in nodes[i]["deps"] if d["pkg"] in used and {k["kind"] for k in d["dep_kinds"]} & {None, "build"}
        })} for i in used), key=lambda entry: entry["ref"])
    time = datetime.datetime.fromtimestamp(args.time, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": time, "component": main_component},
        "components": components,
        "dependencies": dependencies,
    }
    content = json.dumps(bill, sort_keys=True)
    bill["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, content).urn
    json.dump(bill, sys.stdout, sort_keys=True, indent=1)
    print()


if __name__ == "__main__":
    sys.exit(main())
