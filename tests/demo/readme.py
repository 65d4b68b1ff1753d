#!/usr/bin/env python3
"""Runs the commands of README.md's tour as they stand there, and compares what they print.

    tests/demo/readme.py KUBECONFIG [--write]

The operator and the demo's Provider must be on that cluster. What differs from run to run
(names of machines, addresses, times) is compared by its shape only. With --write the
README gets what was printed.
"""

import difflib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
MARK = "=== command %d ==="


def commands(lines):
    """[(first line of the output, line after it, command)] of all console blocks."""
    found, inside, at = [], False, 0
    while at < len(lines):
        if lines[at].startswith("```"):
            inside = lines[at] == "```console"
        elif inside and lines[at].startswith("$ "):
            text = [lines[at][2:]]
            while lines[at + 1].startswith("> "):
                at += 1
                text.append(lines[at][2:])
            begin = at + 1
            while not lines[at + 1].startswith(("$ ", "```")):
                at += 1
            found.append((begin, at + 1, "\n".join(text)))
        at += 1
    return found


def run(steps, kubeconfig):
    """What each command printed."""
    with tempfile.TemporaryDirectory() as home:
        # The README's paths are for a person whose home is empty but for the demo.
        cache = pathlib.Path(home, ".cache/skyward")
        (cache / "demo").mkdir(parents=True)
        (cache / "target").mkdir()
        shutil.copy(kubeconfig, cache / "demo/kubeconfig")
        (cache / "bin").symlink_to(os.environ["SKYWARD_BIN_DIR"])
        (cache / "target/debug").symlink_to(os.environ["SKYWARD_TARGET_BIN"])
        script = "exec 2>&1\n" + "".join(
            f"echo '{MARK % number}'\n{command}\n" for number, (_, _, command) in enumerate(steps)
        )
        environment = {**os.environ, "HOME": home}
        answer = subprocess.run(
            ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
    parts = re.split("^" + MARK.replace("%d", r"\d+") + "\n", answer.stdout, flags=re.MULTILINE)
    return [part.splitlines() for part in parts[1:]]


def shape(lines):
    """Without what differs from run to run."""
    plain = []
    for line in lines:
        line = re.sub(r"\b\d{1,3}(\.\d{1,3}){3}\b", "<address>", line)
        line = re.sub(r"port \d+", "port <port>", line)
        line = re.sub(r"-[0-9a-f]{5}-(\d+)-\d+", r"-<pool>-\1-<attempt>", line)
        line = re.sub(r"(<1s|\b\d+m\d+s|\b\d+(\.\d+)?m?s|\b\d+m)\b", "<time>", line)
        line = re.sub(r"^step \d+$", "step <n>", line)
        line = re.sub(r" +", " ", line)
        # The two ranks print at the same time, and a killed run got as far as it got.
        if not (plain and line == plain[-1] == "step <n>"):
            plain.append(line)
    return sorted(plain) if any(line.startswith("[") for line in plain) else plain


def main():
    lines = README.read_text(encoding="utf-8").splitlines()
    steps = commands(lines)
    printed = run(steps, sys.argv[1])
    if len(printed) != len(steps):
        sys.exit(f"the tour ended after {len(printed)} of {len(steps)} commands: {printed[-1]}")
    failed = False
    for (begin, end, command), now in reversed(list(zip(steps, printed))):
        if "--write" in sys.argv:
            lines[begin:end] = now
            continue
        before = lines[begin:end]
        if shape(before) != shape(now):
            failed = True
            print(f"$ {command}")
            print("\n".join(difflib.unified_diff(before, now, "README.md", "now", lineterm="", n=1)))
    if "--write" in sys.argv:
        README.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if failed:
        sys.exit("the README's tour does not print what stands there; look whether that is right, then run this with --write")
    print(f"  the README's tour: {len(steps)} commands print what stands there")


if __name__ == "__main__":
    main()
