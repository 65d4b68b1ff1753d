#!/usr/bin/env python3
"""Print the files that Linux programs need, also those of another architecture.

    elf.py PROGRAM...                 the machine they are for, then FILE=/PATH of each shared library
    elf.py --root DIR PROGRAM...      the same, with libraries of the file system that is unpacked in DIR
    elf.py --static PROGRAM...        the machine alone; fails when one needs a library

`ldd` would run the program's own loader, which only works for programs of this machine.
"""

import argparse
import os
import struct
import sys

MACHINES = {62: "x86_64", 183: "aarch64"}
LOAD, DYNAMIC, INTERPRETER = 1, 2, 3
NEEDED, STRINGS = 1, 5


class Program:
    """The few parts of a 64-bit little-endian ELF file that say what it needs."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        if self.data[:6] != b"\x7fELF\x02\x01" or len(self.data) < 64:
            raise SystemExit(f"error: {path} is no 64-bit Linux program")
        self.path = path
        code = struct.unpack_from("<H", self.data, 18)[0]
        self.machine = MACHINES.get(code)
        if not self.machine:
            raise SystemExit(f"error: {path} is for a machine that we do not build for (ELF machine {code})")
        offset, = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        # Of each header: type, offset in the file, address in memory, size in the file.
        self.headers = []
        for at in range(offset, offset + size * count, size or 1):
            kind, _, start, address, _, length = struct.unpack_from("<IIQQQQ", self.data, at)
            self.headers.append((kind, start, address, length))

    def text(self, at):
        return self.data[at : self.data.index(b"\0", at)].decode()

    def position(self, address):
        for kind, start, begin, length in self.headers:
            if kind == LOAD and begin <= address < begin + length:
                return start + address - begin
        raise SystemExit(f"error: {self.path} is damaged: address {address:#x} is in none of its parts")

    def interpreter(self):
        return next((self.text(start) for kind, start, _, _ in self.headers if kind == INTERPRETER), None)

    def needed(self):
        entries = []
        for kind, start, _, length in self.headers:
            if kind == DYNAMIC:
                entries = list(struct.iter_unpack("<QQ", self.data[start : start + length // 16 * 16]))
        strings = next((self.position(value) for tag, value in entries if tag == STRINGS), None)
        return [self.text(strings + value) for tag, value in entries if tag == NEEDED]


def resolve(path, root):
    """The file behind a path of the file system in `root`, where links must not lead out of it."""
    file = path
    for _ in range(16):
        # A folder on the way may be a link, too: /lib is one to usr/lib.
        folder, name = os.path.split(file)
        real = os.path.realpath(root + folder)
        if not (real + "/").startswith(root + "/"):
            return None
        if not os.path.islink(f"{real}/{name}"):
            return f"{real}/{name}" if os.path.isfile(f"{real}/{name}") else None
        target = os.readlink(f"{real}/{name}")
        file = target if target.startswith("/") else os.path.normpath(f"{folder}/{target}")
    return None


def libraries(programs, root):
    """{path that a loader looks at: file to put there}, of all they need, each by each."""
    machine = programs[0].machine
    triplet = f"{machine}-linux-gnu"
    folders = [f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64"]
    loaders = {os.path.basename(program.interpreter()) for program in programs if program.interpreter()}
    found, open_ = {}, list(programs)

    def take(path):
        file = resolve(path, root)
        if not file or (library := Program(file)).machine != machine:
            return False
        if path not in found:
            found[path] = file
            open_.append(library)
        return True

    while open_:
        program = open_.pop()
        if program.interpreter() and not take(program.interpreter()):
            raise SystemExit(f"error: {program.path} needs the loader {program.interpreter()}, which is not in {root or '/'}")
        for name in program.needed():
            if name not in loaders and not any(take(f"{folder}/{name}") for folder in folders):
                raise SystemExit(f"error: {program.path} needs the shared library {name}, which is not in {root or '/'}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="", metavar="DIR")
    parser.add_argument("--static", action="store_true")
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    args = parser.parse_args()
    programs = [Program(path) for path in args.programs]
    for program in programs:
        if program.machine != programs[0].machine:
            raise SystemExit(f"error: {programs[0].path} is for {programs[0].machine}, {program.path} for {program.machine}")
        if args.static and (program.interpreter() or program.needed()):
            raise SystemExit(f"error: {program.path} is not statically linked, so it would not run on other machines")
    print(programs[0].machine)
    if not args.static:
        # Without the slash at its end, so that the machine's own root is "".
        root = os.path.realpath(args.root or "/").rstrip("/")
        for path, file in sorted(libraries(programs, root).items()):
            print(f"{file}={path}")


if __name__ == "__main__":
    sys.exit(main())
