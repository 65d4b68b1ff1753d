"""Says how far the work of a Task is."""

from __future__ import annotations

import operator
import os
from typing import SupportsIndex

from skyward._info import instance_info

VARIABLE = "SKYWARD_PROGRESS_FILE"
_LARGEST = 2**64 - 1
# What is longer than the new text is overwritten too, so that no reader sees parts of two.
_BYTES = 64


def progress(done: SupportsIndex, total: SupportsIndex | None = None) -> None:
    """Says how many parts of the work are done, and of how many, as `kubectl get tasks` shows it.

    Both are whole numbers from 0 to 2**64 - 1 of any unit, such as steps or files; `total` is None where it is not
    known. Each rank tells its own part: the Task shows the sums. It may be called as often as one likes, which costs
    microseconds: the machine looks every two seconds, and the Task's status is written every 30 seconds at most.

    Raises NotInTaskError outside of a Task, TypeError for a number that is not whole, and ValueError for one that
    is negative or too large.
    """
    numbers = [operator.index(done)] if total is None else [operator.index(done), operator.index(total)]
    for number in numbers:
        if not 0 <= number <= _LARGEST:
            raise ValueError(f"progress must be from 0 to 2**64 - 1, not {number}")
    path = os.environ.get(VARIABLE)
    if not path:
        # Raises outside of a Task. The agent of a machine that is older keeps no such file.
        instance_info()
        return
    text = "/".join(map(str, numbers)).ljust(_BYTES - 1) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(file, text.encode(), 0)
    finally:
        os.close(file)
