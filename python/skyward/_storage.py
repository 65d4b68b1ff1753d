"""The client of `skyward.storage`: requests to S3 and what speaks like it, and what their answers mean."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPResponse
from typing import IO, Any, Union
from urllib.parse import unquote_plus, urlsplit
from xml.etree import ElementTree

from skyward._credentials import Credential, MachineRole, NoCredentialsError, of_environment, resolve
from skyward._http import BLOCK, Connections, Interrupted, Readable, repeated
from skyward._sign import EMPTY, Keys, encode_path, encode_query, signed

Path = Union[str, "os.PathLike[str]"]

PART = 64 << 20
"""Bytes of one part; files above that are uploaded in parts."""
MOST_PARTS = 10_000
LONGEST_TEXT = 16 << 20
LONGEST_ERROR = 1 << 16
BUSY = frozenset({429, 500, 502, 503, 504})
BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")


class StorageError(OSError):
    """The storage refused a request, or did not answer.

    status: of HTTP, 0 where there was no answer.
    code: the storage's word for it, such as "AccessDenied"; "" where it has none.
    """

    def __init__(self, message: str, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """The bucket or the object does not exist."""


class _State:
    """What a Storage keeps between requests."""

    def __init__(self, secure: bool) -> None:
        self.connections = Connections(secure)
        self.role = MachineRole()
        self.closing: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Storage:
    """A service that speaks S3's protocol. A context manager, whose end closes the connections.

    endpoint: its URL, such as "https://s3.us-east-1.amazonaws.com".
    access_key, secret_key: text, or functions that give it and may be async; they are called before each
        request. Without them AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN of the
        environment count, and with AWS the role of the machine.
    path_style: True puts the bucket into the path and not into the name of the host. So do False and an
        endpoint that is an address, or a bucket with dots, which no certificate would cover.
    region: the word for it in signatures; most services but AWS ignore it.

    Threads may share one.
    """

    endpoint: str
    access_key: Credential | None = field(default=None, repr=False)
    secret_key: Credential | None = field(default=None, repr=False)
    path_style: bool = False
    region: str = "us-east-1"
    _state: _State = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or parts.query:
            raise ValueError(f"the endpoint must be https:// or http:// with the name of a host, not {self.endpoint!r}")
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key and secret_key belong together: give both or neither")
        object.__setattr__(self, "_state", _State(parts.scheme == "https"))

    def __reduce__(self) -> tuple[type[Storage], tuple[Any, ...]]:
        # Connections stay where they are.
        return Storage, (self.endpoint, self.access_key, self.secret_key, self.path_style, self.region)

    def __enter__(self) -> Storage:
        return self

    def __exit__(self, *_: object) -> None:
        self._state.connections.close()
        self._state.closing()

    def upload(self, bucket: str, local_path: Path, *, key: str | None = None) -> None:
        """Stores a file as an object, in the place of one that has the key already.

        key: of the object; default: the name of the file without its folders.

        Files above 64 MiB go in parts, so that an object of up to 5 TiB can be stored and a broken connection
        costs one part; the storage checks a SHA-256 of each. An upload that fails leaves the old object.
        """
        name = os.path.basename(os.fspath(local_path)) if key is None else key
        with open(local_path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= PART:
                self._put(bucket, name, {}, file, 0, size)
            else:
                self._put_parts(bucket, name, file, size)

    def download(self, bucket: str, key: str, local_path: Path) -> None:
        """Writes an object into a file, in the place of one that is there already; its folders are made.

        The file appears whole or not at all. A broken connection is resumed where it broke.
        """
        path = os.fspath(local_path)
        if os.path.isdir(path):
            raise IsADirectoryError(f"{path} is a folder; name the file to write")
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        part = f"{path}.{secrets.token_hex(4)}.part"
        try:
            with open(part, "xb") as file:
                fetch = _Download(file)
                self._call("GET", bucket, key, headers=fetch.headers, read=fetch.read, download=fetch)
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            raise

    def ls(self, bucket: str, prefix: str = "") -> list[str]:
        """The keys of all objects that begin with `prefix`, in the storage's order: that of their UTF-8."""
        keys: list[str] = []
        token = ""
        while True:
            query = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
            if token:
                query["continuation-token"] = token
            page = _xml(self._call("GET", bucket, None, query, read=_text))
            decode = unquote_plus if page.findtext("EncodingType") == "url" else str
            keys += [decode(item.findtext("Key") or "") for item in page.iterfind("Contents")]
            following = page.findtext("NextContinuationToken") or ""
            if page.findtext("IsTruncated") != "true":
                return keys
            if following in ("", token):
                raise StorageError(f"the list of {bucket} does not go on after {len(keys)} keys")
            token = following

    def exists(self, bucket: str, key: str) -> bool:
        """Whether there is such an object; StorageError where the storage does not say, as with status 403."""
        try:
            self._call("HEAD", bucket, key)
        except ObjectNotFoundError:
            return False
        return True

    def rm(self, bucket: str, key: str) -> None:
        """Removes an object; it is no error if there is none."""
        try:
            self._call("DELETE", bucket, key)
        except ObjectNotFoundError as error:
            if error.code == "NoSuchBucket":
                raise

    # --- requests ------------------------------------------------------------

    def _put_parts(self, bucket: str, key: str, file: IO[bytes], size: int) -> None:
        # Parts of whole MiB, and at most as many of them as a storage takes.
        each = max(PART, -(-size // MOST_PARTS // BLOCK) * BLOCK)
        begun = _xml(self._call("POST", bucket, key, {"uploads": ""}, read=_text))
        upload = {"uploadId": begun.findtext("UploadId") or ""}
        try:
            lines = ["<CompleteMultipartUpload>"]
            for number, offset in enumerate(range(0, size, each), 1):
                query = {**upload, "partNumber": str(number)}
                etag = self._put(bucket, key, query, file, offset, min(each, size - offset))
                lines.append(f"<Part><PartNumber>{number}</PartNumber><ETag>{_escape(etag)}</ETag></Part>")
            lines.append("</CompleteMultipartUpload>")
            body = "".join(lines).encode()
            done = _xml(self._call("POST", bucket, key, upload, body=lambda: body, read=_text))
            if done.tag == "Error":
                # It answers 200 before it knows.
                raise StorageError(
                    f"{bucket}/{key}: {done.findtext('Message')}", 200, done.findtext("Code") or ""
                )
        except BaseException:
            with contextlib.suppress(OSError):  # What went wrong before is what counts.
                self._call("DELETE", bucket, key, upload)
            raise

    def _put(
        self, bucket: str, key: str, query: Mapping[str, str], file: IO[bytes], offset: int, size: int
    ) -> str:
        """Stores a part of a file and gives its ETag."""
        digest = hashlib.sha256()
        part = _Part(file, offset, size)
        while block := part.read(BLOCK):
            digest.update(block)
        etag: str | None = self._call(
            "PUT",
            bucket,
            key,
            query,
            headers=lambda: {"Content-Length": str(size)},
            body=lambda: _Part(file, offset, size),
            digest=digest.hexdigest(),
            read=lambda response: response.getheader("ETag"),
        )
        return etag or ""

    def _call(
        self,
        method: str,
        bucket: str,
        key: str | None,
        query: Mapping[str, str] | None = None,
        *,
        headers: Callable[[], Mapping[str, str]] = dict,
        body: Callable[[], bytes | Readable | None] = lambda: None,
        digest: str | None = None,
        read: Callable[[HTTPResponse], Any] | None = None,
        download: _Download | None = None,
    ) -> Any:
        """One request, as often as it takes; `read` makes the result of an answer that is a success."""
        if not BUCKET.fullmatch(bucket):
            raise ValueError(f"{bucket!r} is no name of a bucket")
        if key == "":
            raise ValueError("the key of an object is empty")
        host, path = self._place(bucket, key)
        target = encode_query(query or {})

        def answer(response: HTTPResponse) -> Any:
            if download and download.done and response.status in (412, 416):
                download.begin_again()
                result: Any = Interrupted("the object was replaced while it was downloaded")
            elif response.status >= 300:
                result = _refusal(response, method, bucket, key)
            else:
                result = read(response) if read else None
            response.read(BLOCK)  # What is left of a short answer, so that the connection can go on.
            return result

        def attempt() -> Any:
            content = body()
            known = digest or (hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else EMPTY)
            all_headers = signed(
                self._keys(),
                region=self.region,
                method=method,
                host=host,
                path=path,
                query=target,
                headers=headers(),
                digest=known,
                time=time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
            )
            url = f"{path}?{target}" if target else path
            result = self._state.connections.exchange(host, method, url, all_headers, content, answer)
            if isinstance(result, OSError):
                raise result
            return result

        try:
            return repeated(attempt, lambda: download.done if download else 0)
        except Interrupted as error:
            raise StorageError(f"{method} {bucket}/{key or ''}: {error}") from error

    def _place(self, bucket: str, key: str | None) -> tuple[str, str]:
        """Host and encoded path of an object, or of the bucket."""
        parts = urlsplit(self.endpoint)
        host = parts.netloc.lower()
        usual = ":443" if parts.scheme == "https" else ":80"
        host = host[: -len(usual)] if host.endswith(usual) else host
        path = parts.path.rstrip("/")
        if self.path_style or "." in bucket or _is_address(parts.hostname or ""):
            path += f"/{bucket}"
        else:
            host = f"{bucket}.{host}"
        return host, encode_path(path if key is None and path else f"{path}/{key or ''}")

    def _keys(self) -> Keys:
        if self.access_key is not None and self.secret_key is not None:
            return Keys(resolve(self.access_key), resolve(self.secret_key))
        found = of_environment()
        if found is None and re.search(r"\.amazonaws\.com(\.cn)?$", urlsplit(self.endpoint).hostname or ""):
            # No other service is shown what the machine may do at AWS.
            found = self._state.role.keys()
        if found is None:
            raise NoCredentialsError(
                f"there are no keys for {self.endpoint}: give access_key and secret_key, or set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for example with envFrom and a Secret"
            )
        return found


class _Part:
    """A part of a file as the body of a request; others may read the file at the same time."""

    def __init__(self, file: IO[bytes], offset: int, size: int) -> None:
        self._file, self._offset, self._left = file, offset, size

    def read(self, size: int = -1, /) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        block = os.pread(self._file.fileno(), wanted, self._offset) if wanted else b""
        if wanted and not block:
            raise StorageError(f"{self._file.name} became shorter while it was uploaded")
        self._offset += len(block)
        self._left -= len(block)
        return block


class _Download:
    """An object on its way into a file, which goes on where it was interrupted."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._etag = ""
        self.done = 0

    def headers(self) -> Mapping[str, str]:
        # Without a name for this version of the object the rest might be another's.
        return {"Range": f"bytes={self.done}-", "If-Match": self._etag} if self.done and self._etag else {}

    def read(self, response: HTTPResponse) -> None:
        begin = re.match(r"bytes (\d+)-", response.getheader("Content-Range") or "")
        if response.status != 206 or not begin or int(begin[1]) != self.done:
            self.begin_again()
        self._etag = response.getheader("ETag") or ""
        length = response.getheader("Content-Length")
        end = self.done + int(length) if length else None
        while block := response.read(BLOCK):
            self._file.write(block)
            self.done += len(block)
        if end is not None and self.done != end:
            raise Interrupted(f"the answer ended after {self.done} of {end} bytes")

    def begin_again(self) -> None:
        """Forgets what there is."""
        self._file.seek(0)
        self._file.truncate()
        self.done = 0


def _text(response: HTTPResponse) -> bytes:
    text = response.read(LONGEST_TEXT + 1)
    if len(text) > LONGEST_TEXT:
        raise StorageError(f"an answer is longer than {LONGEST_TEXT} bytes")
    return text


def _xml(text: bytes) -> ElementTree.Element:
    """The root of an answer; its elements lose the namespace, which services write differently."""
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise StorageError("an answer declares entities, which no storage does")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise StorageError(f"an answer is no XML: {error}: {text[:200]!r}") from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _refusal(response: HTTPResponse, method: str, bucket: str, key: str | None) -> OSError:
    """What an answer that is no success says."""
    code, message = "", ""
    text = response.read(LONGEST_ERROR)
    if text:
        try:
            root = _xml(text)
            code, message = root.findtext("Code") or "", root.findtext("Message") or ""
        except StorageError:
            message = text[:200].decode("utf-8", "replace")
    said = " ".join(f"{code} {message}"[:500].split()) or response.reason
    sentence = f"{method} {bucket}/{key or ''} answered {response.status}: {said}"
    if response.status in BUSY or code in ("SlowDown", "RequestTimeout"):
        return Interrupted(sentence)
    if response.status == 404:
        return ObjectNotFoundError(sentence, 404, code)
    region = response.getheader("x-amz-bucket-region")
    if region and response.status in (301, 307, 400):
        sentence += f"; the bucket is in the region {region}"
    return StorageError(sentence, response.status, code)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
