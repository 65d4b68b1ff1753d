"""Return values that are no JSON, as JSON: a header that says how to read them, and their bytes.

    {"skyward.dev/value": {"codec": "npy", "type": "numpy.ndarray", "bytes": 136, "sha256": "…",
     "python": "3.12.1", "packages": {"numpy": "2.1.0"}}, "skyward.dev/value.data": "…"}

The bytes are in Base64. Kubernetes sorts the names of an object, and the header stays in front. Only the program that asked for a value reads it: nothing on the way there unpickles anything. The
agent's function runner uses this; it is no part of the package's interface.
"""

from __future__ import annotations

import sys
from typing import Any

MARK = "skyward.dev/value"
DATA = "skyward.dev/value.data"
LONGEST_NAME = 128


class Unwritable(Exception):
    """There is no codec for the value."""


class TooLarge(Exception):
    """The written value is larger than the limit."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def write(value: object, limit: int) -> bytes:
    """The value with its header, in at most `limit` bytes."""
    import base64
    import hashlib
    import json

    try:
        codec, data, packages = encode(value)
    except (Unwritable, MemoryError):
        raise
    except Exception as error:
        # Of a package whose value it is.
        raise Unwritable(f"{type(error).__name__}: {error}") from None
    header = {
        "codec": codec,
        "type": name(type(value)),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "packages": packages,
    }
    begin = json.dumps({MARK: header}, separators=(",", ":"))[:-1] + f',"{DATA}":"'
    # Asked before the value is there twice.
    size = len(begin) + (len(data) + 2) // 3 * 4 + 2
    if size > limit:
        raise TooLarge(size)
    return b"".join((begin.encode("ascii"), base64.b64encode(data), b'"}'))


def encode(value: object) -> tuple[str, bytes, dict[str, str]]:
    """The codec, the bytes, and the packages that read them."""
    import io

    kind = type(value)
    loaded = sys.modules.get
    buffer = io.BytesIO()
    # A value of a package is there only where the package is. A subclass may have more than its base writes.
    numpy: Any = loaded("numpy")
    if hasattr(numpy, "ndarray") and (kind is numpy.ndarray or isinstance(value, numpy.generic)):
        array = numpy.asarray(value)
        if not array.dtype.hasobject:
            numpy.save(buffer, array, allow_pickle=False)
            return "npy", buffer.getvalue(), version(numpy)
    torch: Any = loaded("torch")
    if hasattr(torch, "Tensor") and kind is torch.Tensor:
        tensor: Any = value
        # A view would be written with all that it is a view of.
        torch.save(tensor.detach().cpu().clone(), buffer)
        return "torch", buffer.getvalue(), version(torch)
    arrow: Any = loaded("pyarrow")
    if hasattr(arrow, "Table") and kind in (arrow.Table, arrow.RecordBatch):
        table: Any = value
        with arrow.ipc.new_stream(buffer, table.schema) as writer:
            writer.write(table)
        return "arrow", buffer.getvalue(), version(arrow)
    return "pickle", pickled(value, torch), {**version(loaded(top(kind))), **version(numpy), **version(torch)}


def pickled(value: object, torch: Any) -> bytes:
    import io
    import pickle

    class Pickler(pickle.Pickler):
        """Writes tensors of accelerators, such as those of a model's `state_dict()`, as copies in main memory: the
        reader may have no accelerator."""

        def reducer_override(self, one: Any) -> Any:
            if type(one) is not torch.Tensor or one.device.type in ("cpu", "meta"):
                return NotImplemented
            return one.detach().cpu().requires_grad_(one.requires_grad).__reduce_ex__(5)

    try:
        if not hasattr(torch, "Tensor"):
            return pickle.dumps(value, protocol=5)
        buffer = io.BytesIO()
        Pickler(buffer, protocol=5).dump(value)
        return buffer.getvalue()
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise Unwritable(f"{type(error).__name__}: {error}") from None


def name(kind: type) -> str:
    """The bounded name of a type."""
    text = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain if len(plain) <= LONGEST_NAME else plain[: LONGEST_NAME - 1] + "…"


def top(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def version(package: Any) -> dict[str, str]:
    found = getattr(package, "__version__", None)
    return {package.__name__: found[:64]} if isinstance(found, str) else {}
