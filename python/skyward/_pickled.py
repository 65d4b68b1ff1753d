"""A function that a Python client has pickled, as bytes that can be unpickled on this machine.

    {"python": "3.12.4", "cloudpickle": "3.1.1", "data": "…"}

The data is what cloudpickle writes, compressed as one frame of LZ4, in Base64. Only the runner of the Task unpickles it:
a pickle is a program, and runs as the Task does. The agent's function runner uses this; it is no part of the package's
interface.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

# Bytes of a pickle. A pickle that fits into a Task is at most 255 times as long as its frame, which is less.
LIMIT = 32 * 1024 * 1024
NEEDED = "a pickled function needs the packages cloudpickle and lz4 on the machine: add both to the Pool's image.pip"


class Unreadable(Exception):
    """The function cannot be read on this machine; the sentence says why."""


def unpacked(pickle: Mapping[str, str], limit: int = LIMIT) -> bytes:
    """The bytes to unpickle, at most `limit`. What wrote them is asked first: the code of a function is that of one
    minor version of Python, and another one may end on it with a signal and without a word."""
    import base64

    wanted = minor(pickle["python"])
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if wanted != here:
        raise Unreadable(
            f"the function was pickled with Python {pickle['python']} and the machine has {here}: "
            f'set the Pool\'s image.python to "{wanted}", or pickle with Python {here}'
        )
    try:
        # The pickle itself imports cloudpickle; said here, the remedy can be named.
        import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore] # noqa: F401
        import lz4.frame  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise Unreadable(f"{NEEDED} ({error})") from None
    frame: Any = lz4.frame.LZ4FrameDecompressor()
    try:
        packed = base64.b64decode(pickle["data"], validate=True)
        data: bytes = frame.decompress(packed, max_length=limit + 1)
    except (ValueError, RuntimeError, EOFError) as error:
        raise Unreadable(f"the pickle is no Base64 of one frame of LZ4: {error}") from None
    if len(data) > limit:
        raise Unreadable(f"the pickle is longer than {limit} bytes: read large data in the function, from spec.source")
    if not frame.eof or frame.unused_data:
        raise Unreadable("the pickle is no Base64 of one frame of LZ4: its end is missing, or something follows it")
    return data


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def misfit(why: str, pickle: Mapping[str, str]) -> str:
    """What to say of a pickle that could not be unpickled."""
    wrote, here = pickle["cloudpickle"], str(sys.modules["cloudpickle"].__version__)
    remedy = ""
    if why.startswith("ModuleNotFoundError: "):
        remedy = "; add the package to the Pool's image.pip, or the file to spec.source"
    elif here != wrote:
        remedy = (
            f"; it was written by cloudpickle {wrote} and the machine has {here}: "
            f"write cloudpickle=={wrote} into the Pool's image.pip"
        )
    return f"the function cannot be unpickled: {why}{remedy}"
