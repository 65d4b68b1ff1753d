"""Requests over HTTP with deadlines, repetition and bounds, from the standard library alone.

What a server answers is read up to a limit, and no redirect is followed: requests carry credentials.
"""

from __future__ import annotations

import http.client
import random
import socket
import ssl
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar
from urllib.parse import unquote, urlsplit

T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds that a server may say nothing."""
BLOCK = 1 << 20
"""Bytes that are read or written at once."""
TRIES = 5
"""How often a request is tried that brings nothing."""

pause: Callable[[float], None] = time.sleep


class Readable(Protocol):
    """A body that http.client sends block by block."""

    def read(self, size: int = ..., /) -> bytes:
        """At most `size` bytes."""
        ...


class Interrupted(OSError):
    """The connection broke, or the server was too busy: another try may succeed."""


class Connections:
    """Connections to the hosts of one service, kept for the next request until they are closed."""

    def __init__(self, secure: bool) -> None:
        self._secure = secure
        self._idle: dict[str, list[http.client.HTTPConnection]] = {}

    def close(self) -> None:
        """Closes the connections that wait for a request."""
        while self._idle:
            for connection in self._idle.popitem()[1]:
                connection.close()

    def exchange(
        self,
        host: str,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | Readable | None,
        read: Callable[[http.client.HTTPResponse], T],
    ) -> T:
        """One try of one request; `read` makes the result of the answer, which it may leave unread."""
        idle = self._idle.setdefault(host, [])
        try:
            connection = idle.pop()
        except IndexError:
            connection = connect(host, self._secure, TIMEOUT)
        is_kept = False
        try:
            response = self._answer(connection, method, target, headers, body)
            result = read(response)
            if response.isclosed() and connection.sock is not None:
                idle.append(connection)
                is_kept = True
            return result
        except ssl.SSLCertVerificationError:
            raise
        except (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError, http.client.HTTPException) as error:
            raise Interrupted(f"{host}: {error or type(error).__name__}") from error
        finally:
            if not is_kept:
                connection.close()

    @staticmethod
    def _answer(
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | Readable | None,
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, target, body, dict(headers))
        except (BrokenPipeError, ConnectionResetError) as error:
            # A server that refuses a long body says why and hangs up before it has read all.
            try:
                return connection.getresponse()
            except (OSError, http.client.HTTPException):
                raise error from None
        return connection.getresponse()


def connect(host: str, secure: bool, timeout: float) -> http.client.HTTPConnection:
    """A connection that is not open yet; one of https goes through the proxy of the environment."""
    if not secure:
        return http.client.HTTPConnection(host, timeout=timeout, blocksize=BLOCK)
    context = ssl.create_default_context()
    proxy = urllib.request.getproxies().get("https")
    if not proxy or urllib.request.proxy_bypass(host):
        return http.client.HTTPSConnection(host, timeout=timeout, blocksize=BLOCK, context=context)
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    user = {}
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        user = {"Proxy-Authorization": "Basic " + b64encode(pair.encode()).decode()}
    tunnel = http.client.HTTPSConnection(
        parts.hostname or "", parts.port or 80, timeout=timeout, blocksize=BLOCK, context=context
    )
    tunnel.set_tunnel(host, headers=user)
    return tunnel


def repeated(action: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
    """Tries until there is a result, or until TRIES in a row were interrupted and brought nothing.

    progress: how much there is already; a try that adds to it is none that brought nothing.
    """
    failures, before = 0, progress()
    while True:
        try:
            return action()
        except Interrupted:
            now = progress()
            failures = 1 if now > before else failures + 1
            before = max(before, now)
            if failures >= TRIES:
                raise
            pause(random.uniform(0.5, 1.0) * 0.2 * 2**failures)


def ask(url: str, method: str, headers: Mapping[str, str], body: bytes | None, timeout: float) -> bytes:
    """A short answer of a service that is no storage; OSError for whatever is none."""
    parts = urlsplit(url)
    connection = connect(parts.netloc, parts.scheme == "https", timeout)
    try:
        connection.request(method, parts.path, body, dict(headers))
        response = connection.getresponse()
        text = response.read(1 << 16)
    except http.client.HTTPException as error:
        raise OSError(f"{parts.netloc}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if response.status >= 300:
        raise OSError(f"{method} {parts.netloc}{parts.path} answered {response.status}: {text[:300]!r}")
    return text
