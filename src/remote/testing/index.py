"""An index of Python packages and a mirror of interpreters for tests, on this machine alone.

index.py wheel FOLDER NAME VERSION [PROGRAM]
                                       makes a package with one module, and a program of its name with that text
index.py python FOLDER                 packs the interpreter that runs this as uv's source of interpreters has it, and
                                       prints its name
index.py serve FOLDER [CERTIFICATE KEY [USER PASSWORD]]
                                       serves both, prints the port, and notes each request in FOLDER/requests
"""

import base64
import http.server
import json
import os
import platform
import ssl
import sys
import sysconfig
import tarfile
import zipfile

# Where uv's own list says that interpreters are; a mirror takes the place of this part.
SOURCE = "https://github.com/astral-sh/python-build-standalone/releases/download"
DAY = "20260101"


def wheel(folder, name, version, program=None):
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if program is not None:
        files[f"{name}-{version}.data/scripts/{name}"] = program
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    os.makedirs(f"{folder}/packages/{name}", exist_ok=True)
    with zipfile.ZipFile(f"{folder}/packages/{name}/{name}-{version}-py3-none-any.whl", "w") as archive:
        for file, text in files.items():
            entry = zipfile.ZipInfo(file)
            entry.external_attr = (0o100755 if "/scripts/" in file else 0o100644) << 16
            archive.writestr(entry, text)


def python(folder):
    major, minor, patch = sys.version_info[:3]
    short = f"python{major}.{minor}"
    library = sysconfig.get_path("stdlib")
    program = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    machine = platform.machine()
    file = f"cpython-{major}.{minor}.{patch}+{DAY}-{machine}-unknown-linux-gnu-install_only_stripped.tar.gz"

    def wanted(entry):
        parts = entry.name.split("/")
        left_out = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
        is_left_out = left_out.intersection(parts) or any(part.startswith("config-") for part in parts)
        return None if is_left_out or entry.name.endswith("sitecustomize.py") else entry

    os.makedirs(f"{folder}/python/{DAY}", exist_ok=True)
    with tarfile.open(f"{folder}/python/{DAY}/{file}", "w:gz", compresslevel=1, dereference=True) as archive:
        archive.add(program, f"python/bin/{short}")
        archive.add(library, f"python/lib/{short}", filter=wanted)
    name = f"cpython-{major}.{minor}.{patch}-linux-{machine}-gnu"
    known = {
        "name": "cpython",
        "arch": {"family": machine, "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": major,
        "minor": minor,
        "patch": patch,
        "prerelease": "",
        "url": f"{SOURCE}/{DAY}/{file.replace('+', '%2B')}",
        "sha256": None,
        "variant": None,
        "build": DAY,
    }
    with open(f"{folder}/python/downloads.json", "w") as file:
        json.dump({name: known}, file)
    print(f"cpython-{major}.{minor}.{patch}")


def serve(folder, certificate="", key="", user="", password=""):
    login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __init__(self, *arguments):
            super().__init__(*arguments, directory=folder)

        def do_GET(self):
            if user and self.headers.get("Authorization") != login:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="index"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            parts = self.path.strip("/").split("/")
            if parts[0] != "simple":
                super().do_GET()
                return
            packages = os.path.join(folder, "packages", os.path.basename(parts[-1]))
            if not os.path.isdir(packages):
                self.send_error(404)
                return
            links = [f'<a href="/packages/{parts[-1]}/{file}">{file}</a>' for file in sorted(os.listdir(packages))]
            page = ("<!DOCTYPE html><html><body>" + "".join(links) + "</body></html>").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_request(self, code="-", size="-"):
            with open(f"{folder}/requests", "a") as file:
                file.write(f"{int(code)} {self.path}\n")

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_address[1], flush=True)
    server.serve_forever()


{"wheel": wheel, "python": python, "serve": serve}[sys.argv[1]](*sys.argv[2:])
