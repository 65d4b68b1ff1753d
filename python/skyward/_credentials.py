"""Where the keys for a storage come from: what was given, the environment, or the role of the machine."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Union

from skyward._http import ask
from skyward._sign import Keys

Credential = Union[str, Callable[[], Union[str, Awaitable[str]]]]
"""A key, or a function that gives it, which may be async."""

METADATA = "http://169.254.169.254"
HYPERSTACK = "https://infrahub-api.nexgencloud.com/v1"


class NoCredentialsError(RuntimeError):
    """No keys were given and none were found."""


def resolve(credential: Credential) -> str:
    """The key itself. An async function runs in a thread of its own, as this thread may have a loop."""
    value = credential if isinstance(credential, str) else credential()
    if isinstance(value, str):
        # Secrets that were made of files end with the files' last end of line.
        return value.strip()
    found: list[str] = []
    errors: list[BaseException] = []

    async def wait(pending: Awaitable[str]) -> str:
        return await pending

    def work() -> None:
        try:
            found.append(asyncio.run(wait(value)))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0].strip()


def of_environment() -> Keys | None:
    """The keys in the variables that all tools for S3 read."""
    access, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not access or not secret:
        return None
    return Keys(access.strip(), secret.strip(), os.environ.get("AWS_SESSION_TOKEN", "").strip())


class MachineRole:
    """The keys that AWS lends to a machine with an instance profile; they are renewed before they expire."""

    def __init__(self, metadata: str = METADATA) -> None:
        self._metadata = metadata
        self._keys: Keys | None = None
        self._until = 0.0
        self._lock = threading.Lock()

    def keys(self) -> Keys | None:
        """The present keys; None on a machine without a role, or of another cloud."""
        with self._lock:
            if time.time() > self._until:
                try:
                    self._renew()
                except (OSError, ValueError, KeyError, IndexError):
                    self._keys = None
            return self._keys

    def _renew(self) -> None:
        seconds = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
        session = ask(f"{self._metadata}/latest/api/token", "PUT", seconds, None, timeout=2).decode()
        headers = {"X-aws-ec2-metadata-token": session}
        path = f"{self._metadata}/latest/meta-data/iam/security-credentials/"
        role = ask(path, "GET", headers, None, timeout=2).decode().split()[0]
        found: dict[str, Any] = json.loads(ask(path + role, "GET", headers, None, timeout=2))
        self._keys = Keys(found["AccessKeyId"], found["SecretAccessKey"], found["Token"])
        ends = datetime.fromisoformat(found["Expiration"].replace("Z", "+00:00")).timestamp()
        self._until = ends - 300


class HyperstackKey:
    """A pair of keys that Hyperstack makes for its API key at the first use, and that `remove` takes away."""

    def __init__(self, api_key: str, region: str, api: str = HYPERSTACK) -> None:
        self._headers = {"api_key": api_key, "Content-Type": "application/json"}
        self._region = region
        self._url = f"{api}/object-storage/access-keys"
        self._made: dict[str, Any] | None = None
        self._lock = threading.Lock()

    def access(self) -> str:
        """The public half."""
        return str(self._pair()["access_key"])

    def secret(self) -> str:
        """The secret half."""
        return str(self._pair()["secret_key"])

    def _pair(self) -> dict[str, Any]:
        with self._lock:
            if self._made is None:
                body = json.dumps({"region": self._region, "description": "skyward"}).encode()
                answer = json.loads(ask(self._url, "POST", self._headers, body, timeout=30))
                # Descriptions of this answer differ in whether it has an envelope.
                self._made = dict(answer.get("access_key") if isinstance(answer.get("access_key"), dict) else answer)
            return self._made

    def remove(self) -> None:
        """Removes the pair, if there is one; the next use makes another."""
        with self._lock:
            made, self._made = self._made, None
            if made is not None and "id" in made:
                try:
                    ask(f"{self._url}/{int(made['id'])}", "DELETE", self._headers, None, timeout=30)
                except OSError:
                    pass  # It does no harm, and the work is done.
