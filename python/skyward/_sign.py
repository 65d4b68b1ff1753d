"""Signatures of requests to S3 and its like: AWS Signature Version 4, as one pure function."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Keys:
    """A pair of keys; those that a role lends have a token, too."""

    access: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


def encode_path(path: str) -> str:
    """A path as S3 wants it in URLs and in signatures: each byte but a few is escaped, once."""
    return quote(path, safe="/-._~")


def encode_query(query: Mapping[str, str]) -> str:
    """Parameters in the one order and spelling that signatures know."""
    pairs = [(quote(name, safe="-._~"), quote(value, safe="-._~")) for name, value in query.items()]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def signed(
    keys: Keys,
    *,
    region: str,
    method: str,
    host: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    digest: str,
    time: str,
) -> dict[str, str]:
    """`headers` with those that sign the request.

    host: as in the header Host, with the port unless it is the usual one.
    path, query: encoded, as they stand in the request.
    digest: SHA-256 of the body in hexadecimal.
    time: in UTC as `20130524T000000Z`.
    """
    result = {**headers, "Host": host, "x-amz-content-sha256": digest, "x-amz-date": time}
    if keys.token:
        result["x-amz-security-token"] = keys.token
    # A proxy on the way may change other headers.
    covered = sorted((name.lower(), name) for name in result if name == "Host" or name.startswith("x-amz-"))
    names = ";".join(low for low, _ in covered)
    lines = [f"{low}:{result[name].strip()}\n" for low, name in covered]
    request = "\n".join([method, path, query, "".join(lines), names, digest])

    scope = f"{time[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", time, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = ("AWS4" + keys.secret).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    result["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope},SignedHeaders={names},Signature={signature}"
    )
    return result
