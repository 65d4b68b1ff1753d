#!/usr/bin/env python3
"""The metadata address inside a machine that is a Pod.

Listens at 169.254.169.254:80 and passes requests on to the simulator, at
$SKYWARD_SIM_IMDS (http://HOST:PORT/_imds/MACHINE). The Pod has to have the
address: `ip address add 169.254.169.254/32 dev lo`, for which it needs NET_ADMIN.
Other processes of the machine then find the service where Amazon has it.
"""

import http.client
import http.server
import os
import sys
import urllib.parse

TARGET = urllib.parse.urlsplit(os.environ["SKYWARD_SIM_IMDS"])
ADDRESS = (sys.argv[1] if len(sys.argv) > 1 else "169.254.169.254", int(sys.argv[2]) if len(sys.argv) > 2 else 80)


class Handler(http.server.BaseHTTPRequestHandler):
    """Passes one request on."""

    def pass_on(self) -> None:
        upstream = http.client.HTTPConnection(TARGET.hostname, TARGET.port, timeout=5)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        # The proxy is part of the machine and no hop; a container inside it says so itself.
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        upstream.request(self.command, TARGET.path.rstrip("/") + self.path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        if answer.status == 504:
            # The packet would have been lost on its way.
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "connection", "date", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = pass_on

    def log_message(self, *_: object) -> None:
        """Is quiet: the simulator has the log."""


if __name__ == "__main__":
    with http.server.ThreadingHTTPServer(ADDRESS, Handler) as server:
        if ADDRESS[1] == 0:
            # Any free port: the process that began this one has to be told.
            print(server.server_address[1], flush=True)
        server.serve_forever()
