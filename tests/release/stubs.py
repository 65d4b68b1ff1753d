#!/usr/bin/env python3
"""Write what `hack/release.sh pack` packs, without a compiler: programs that are nothing but their
headers, and the few files of Debian that the operator's image needs.

    tests/release/stubs.py DIR
"""

import pathlib
import struct
import sys

MACHINES = {"amd64": (62, "x86_64", "/lib64/ld-linux-x86-64.so.2"), "arm64": (183, "aarch64", "/lib/ld-linux-aarch64.so.1")}


def program(machine, loader=None, needed=()):
    """An ELF file of one page: its headers, its strings, and the table that names libraries."""
    strings, names = b"\0", []
    for name in needed:
        names.append(len(strings))
        strings += name.encode() + b"\0"
    interpreter = loader.encode() + b"\0" if loader else b""
    count = 1 + bool(loader) + bool(needed)
    at = 64 + 56 * count
    loader_at, strings_at = at, at + len(interpreter)
    table_at = (strings_at + len(strings) + 15) // 16 * 16
    table = b"".join(struct.pack("<QQ", 1, name) for name in names) + struct.pack("<QQQQ", 5, strings_at, 0, 0)
    size = table_at + len(table)

    def header(kind, offset, length):
        return struct.pack("<IIQQQQQQ", kind, 5, offset, offset, offset, length, length, 16)

    headers = header(1, 0, size)
    if loader:
        headers += header(3, loader_at, len(interpreter))
    if needed:
        headers += header(2, table_at, len(table))
    begin = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, count, 0, 0, 0)
    return (begin + headers + interpreter + strings).ljust(table_at, b"\0") + table


def main():
    root = pathlib.Path(sys.argv[1])

    def put(path, content, mode=0o644):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)

    for arch, (machine, name, loader) in MACHINES.items():
        own = f"linux-{arch}"
        debian = f"{own}/debian/root"
        put(f"{own}/skyward", program(machine, loader, ["libgcc_s.so.1", "libc.so.6", loader.rsplit("/", 1)[1]]), 0o755)
        put(f"{own}/kubectl-skyward", program(machine, loader, ["libc.so.6"]), 0o755)
        put(f"{own}/skyward-agent", program(machine), 0o755)
        put(f"{own}/compilers", b"release: 1.95.0\n")
        put(f"{own}/debian/packages", f"ca-certificates 20230311 all\nlibc6 2.36-9+deb12u9 {arch}\n".encode())
        put(f"{debian}/usr/share/ca-certificates/mozilla/A.crt", b"A\n")
        put(f"{debian}/usr/share/ca-certificates/mozilla/B.crt", b"B\n")
        put(f"{debian}/usr/share/doc/libc6/copyright", b"LGPL\n")
        put(f"{debian}/lib/{name}-linux-gnu/libgcc_s.so.1", program(machine, None, ["libc.so.6"]))
        put(f"{debian}/lib/{name}-linux-gnu/libc-2.36.so", program(machine))
        (root / debian / f"lib/{name}-linux-gnu/libc.so.6").symlink_to("libc-2.36.so")
        # A link that would lead to this machine's own file system.
        put(f"{debian}/lib/{name}-linux-gnu/ld.so", program(machine))
        (root / debian / loader.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / debian / loader.lstrip("/")).symlink_to(f"/lib/{name}-linux-gnu/ld.so")
    # What another machine built, since this one has no compiler for it.
    put("darwin-arm64/kubectl-skyward", b"plugin\n", 0o755)
    put("windows-amd64/kubectl-skyward.exe", b"plugin\n", 0o755)


if __name__ == "__main__":
    main()
